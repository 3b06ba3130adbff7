"""A limit of slurmd that every job step inherits: what the settings memlock and nofile read and change alike.

Persisted is a drop-in of slurmd's unit (systemd.exec(5), ``LimitMEMLOCK=``, ``LimitNOFILE=``), effective is the limit of the
running slurmd (/proc/PID/limits, proc_pid_limits(5)).
"""

from __future__ import annotations

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Node

UNIT = "slurmd.service"
# "@slurmd" stands for the process id of slurmd: the reader of the machine finds it (a machine tree has it by this name).
LIMITS = "/proc/@slurmd/limits"
_SYSTEMD_LIMITS = "/proc/1/limits"
_SYSTEMD_STATUS = "/proc/1/status"
READS = (LIMITS, _SYSTEMD_LIMITS, _SYSTEMD_STATUS)
CAP_SYS_RESOURCE = 24  # capabilities(7): without it nobody can raise a hard limit, systemd neither


def drop_in(setting: str) -> str:
    """The path of the setting's own drop-in."""
    return f"/etc/systemd/system/{UNIT}.d/50-fairlead-{setting}.conf"


def content(setting: str, line: str) -> str:
    """The text of the drop-in; ``line``: such as LimitNOFILE=131072."""
    return f"# Written by fairlead (setting {setting}); changes made here are put back.\n[Service]\n{line}\n"


def parse(text: str, name: str) -> tuple[str, str] | None:
    """Soft and hard limit ``name`` of /proc/PID/limits, as numbers or "infinity"; None when there is no such line."""
    for line in text.splitlines():
        fields = line.removeprefix(name).split()
        if line.startswith(name) and len(fields) >= 2:
            soft, hard = ("infinity" if field == "unlimited" else field for field in fields[:2])
            return soft, hard
    return None


def ceiling(node: Node, name: str) -> int | None:
    """The hard limit ``name`` that systemd itself cannot go beyond (in a container); None: it can."""
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
    """``what``: what is counted, such as bytes. ``declare``: how the most that is possible is written in site.toml."""
    return ConfigError(
        "node.json",
        f"settings.{setting}.limit",
        f"{limit} is out of reach: systemd here has no CAP_SYS_RESOURCE and a hard limit of {most} {what}",
        hint=f"this is a container: raise its own limit, or declare limit = {declare} for it",
    )


def persist(setting: str, line: str, before: str | None) -> tuple[AnyChange, ...]:
    """The drop-in, and what makes systemd read it."""
    path, wanted = drop_in(setting), content(setting, line)
    if before == wanted:
        return ()
    why = f"{path} does not say {line}"
    return (
        File(setting=setting, why=why, layer=Layer.PERSISTED, path=path, content=wanted, before=before),
        Unit(setting=setting, why=why, layer=Layer.PERSISTED, name=UNIT, daemon_reload=True),
    )


def restart(setting: str, why: str) -> Unit:
    """A restart of slurmd, which leaves running jobs alone (slurmstepd holds them) but is not done on a busy node."""
    return Unit(setting=setting, why=why, disruption=Disruption.IDLE, name=UNIT, restart=True)
