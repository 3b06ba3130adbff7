"""Reads and changes a limit of slurmd that every job step inherits, for the settings memlock and nofile.

A drop-in of slurmd's unit persists it (systemd.exec(5), ``LimitMEMLOCK=``, ``LimitNOFILE=``). The limit of the running slurmd
is the effective one (/proc/PID/limits, proc_pid_limits(5)).
"""

from __future__ import annotations

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Node

UNIT = "slurmd.service"
# On a machine, the reader replaces "@slurmd" by the process id of slurmd. A machine tree has a folder that is named "@slurmd".
LIMITS = "/proc/@slurmd/limits"
_SYSTEMD_LIMITS = "/proc/1/limits"
_SYSTEMD_STATUS = "/proc/1/status"
READS = (LIMITS, _SYSTEMD_LIMITS, _SYSTEMD_STATUS)
CAP_SYS_RESOURCE = 24  # capabilities(7): without it nobody can raise a hard limit, and systemd cannot either


def drop_in(setting: str) -> str:
    """Return the path of the setting's own drop-in."""
    return f"/etc/systemd/system/{UNIT}.d/50-fairlead-{setting}.conf"


def content(setting: str, line: str) -> str:
    """Return the text of the drop-in. ``line``: such as LimitNOFILE=131072."""
    return f"# Written by fairlead (setting {setting}); changes made here are put back.\n[Service]\n{line}\n"


def parse(text: str, name: str) -> tuple[str, str] | None:
    """Return the soft and the hard limit ``name`` of /proc/PID/limits, as numbers or "infinity". Return None if there is no such
    line."""
    for line in text.splitlines():
        fields = line.removeprefix(name).split()
        if line.startswith(name) and len(fields) >= 2:
            soft, hard = ("infinity" if field == "unlimited" else field for field in fields[:2])
            return soft, hard
    return None


def ceiling(node: Node, name: str) -> int | None:
    """Return the hard limit ``name`` that systemd itself cannot exceed in a container. Return None if systemd can exceed it."""
    status, limits = node.texts.get(_SYSTEMD_STATUS), node.texts.get(_SYSTEMD_LIMITS)
    if not isinstance(status, str) or not isinstance(limits, str):
        return None
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:") and len(line.split()) == 2]
    try:
        may_raise = not effective or int(effective[0], 16) >> CAP_SYS_RESOURCE & 1
    except ValueError:
        return None
    own = parse(limits, name)
    return None if may_raise or own is None or not own[1].isdecimal() else int(own[1])


def out_of_reach(setting: str, limit: str, most: int, what: str, declare: str) -> ConfigError:
    """Return the error for a wanted limit above the ceiling. ``what``: the unit, such as bytes. ``declare``: the value for
    site.toml that declares the highest possible limit."""
    return ConfigError(
        "node.json",
        f"settings.{setting}.limit",
        f"{limit} is out of reach: systemd here has no CAP_SYS_RESOURCE and a hard limit of {most} {what}",
        hint=f"this is a container: raise its own limit, or declare limit = {declare} for it",
    )


def persist(setting: str, line: str, before: str | None) -> tuple[AnyChange, ...]:
    """Return the changes that write the drop-in and make systemd read it."""
    path, wanted = drop_in(setting), content(setting, line)
    if before == wanted:
        return ()
    why = f"{path} does not say {line}"
    return (
        File(setting=setting, why=why, layer=Layer.PERSISTED, path=path, content=wanted, before=before),
        Unit(setting=setting, why=why, layer=Layer.PERSISTED, name=UNIT, daemon_reload=True),
    )


def restart(setting: str, why: str) -> Unit:
    """Return the change that restarts slurmd. A restart does not affect running jobs, because slurmstepd runs them. It is still
    done only on an idle node."""
    return Unit(setting=setting, why=why, disruption=Disruption.IDLE, name=UNIT, restart=True)
