"""Locked-memory limit of slurmd, which every job step inherits.

RDMA registration and GPUDirect pin memory; a unit of systemd starts with a limit of 8 MiB, and pam limits do not reach
slurmd. Source: systemd.exec(5), ``LimitMEMLOCK=``; Slurm's own slurmd.service sets it for the same reason.
Persisted in a drop-in of slurmd's unit; effective is the limit of the running slurmd (/proc/PID/limits). A changed drop-in
takes effect with a restart of slurmd, which leaves running jobs alone (slurmstepd holds them) but is not done on a busy node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

UNIT = "slurmd.service"
FILE = f"/etc/systemd/system/{UNIT}.d/50-fairlead-memlock.conf"
# "@slurmd" stands for the process id of slurmd: the reader of the machine finds it (a machine tree has it by this name).
LIMITS = "/proc/@slurmd/limits"
SYSTEMD_LIMITS = "/proc/1/limits"
SYSTEMD_STATUS = "/proc/1/status"
CAP_SYS_RESOURCE = 24  # capabilities(7): without it nobody can raise a hard limit, systemd neither


class MemlockWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[str, Meta(pattern="^(infinity|[0-9]{1,18})$", description="LimitMEMLOCK of slurmd: infinity, or bytes.")] = (
        "infinity"
    )


class Observed(Struct, frozen=True):
    """``file``: our drop-in. ``running``: soft and hard limit of the running slurmd, in bytes or "infinity"; None: none runs.
    ``ceiling``: bytes that systemd itself cannot go beyond (in a container); None: it can.
    """

    file: str | None
    running: tuple[str, str] | None
    ceiling: str | None = None


def parse_limits(text: str) -> tuple[str, str] | None:
    """Soft and hard "Max locked memory" of /proc/PID/limits (proc_pid_limits(5)); None when there is no such line."""
    for line in text.splitlines():
        if line.startswith("Max locked memory"):
            fields = line.removeprefix("Max locked memory").split()
            if len(fields) >= 2:
                soft, hard = ("infinity" if f == "unlimited" else f for f in fields[:2])
                return soft, hard
    return None


def ceiling(node: Node, parse: Callable[[str], tuple[Any, Any] | None]) -> Any:
    """The hard limit that systemd itself cannot go beyond (in a container), as ``parse`` reads it; None: it can."""
    status, limits = node.texts.get(SYSTEMD_STATUS), node.texts.get(SYSTEMD_LIMITS)
    if not isinstance(status, str) or not isinstance(limits, str):
        return None
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:") and len(line.split()) == 2]
    try:
        may_raise = not effective or int(effective[0], 16) >> CAP_SYS_RESOURCE & 1
    except ValueError:
        return None
    own = parse(limits)
    return None if may_raise or own is None or own[1] == "infinity" else own[1]


def observe(node: Node) -> Observed | Missing:
    file = node.text(FILE)
    if isinstance(file, Missing):
        return file
    limits = node.text(LIMITS)
    if isinstance(limits, Missing):
        return limits
    if limits is None:
        return Observed(file, None, ceiling(node, parse_limits))
    running, most = parse_limits(limits), ceiling(node, parse_limits)
    return unreadable(f"{LIMITS}: no line 'Max locked memory'") if running is None else Observed(file, running, most)


def content(limit: str) -> str:
    return f"# Written by fairlead (setting memlock); changes made here are put back.\n[Service]\nLimitMEMLOCK={limit}\n"


def plan(want: MemlockWant, observed: Observed) -> tuple[AnyChange, ...]:
    if observed.ceiling is not None and (want.limit == "infinity" or int(want.limit) > int(observed.ceiling)):
        raise ConfigError(
            "node.json",
            "settings.memlock.limit",
            f"{want.limit} is out of reach: systemd here has no CAP_SYS_RESOURCE and a hard limit of {observed.ceiling} bytes",
            hint=f'this is a container: raise its own limit, or declare limit = "{observed.ceiling}" for it',
        )
    changes: list[AnyChange] = []
    why = f"{FILE} does not say LimitMEMLOCK={want.limit}"
    if observed.file != content(want.limit):
        changes += [
            File(
                setting="memlock",
                why=why,
                layer=Layer.PERSISTED,
                path=FILE,
                content=content(want.limit),
                before=observed.file,
            ),
            Unit(setting="memlock", why=why, layer=Layer.PERSISTED, name=UNIT, daemon_reload=True),
        ]
    if observed.running is not None and observed.running != (want.limit, want.limit):
        changes.append(
            Unit(
                setting="memlock",
                why=f"slurmd runs with a locked-memory limit of {observed.running[0]}, wanted {want.limit}",
                disruption=Disruption.IDLE,
                name=UNIT,
                restart=True,
            )
        )
    return tuple(changes)


setting = Setting(
    summary="Locked-memory limit of slurmd and so of every job",
    group="limits",
    want=MemlockWant,
    observe=observe,
    plan=plan,
    reads=(FILE, LIMITS, SYSTEMD_LIMITS, SYSTEMD_STATUS),
    disruption=Disruption.IDLE,
)
