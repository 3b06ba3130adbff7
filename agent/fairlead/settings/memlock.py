"""Locked-memory limit of slurmd, which every job step inherits.

RDMA registration and GPUDirect pin memory; a unit of systemd starts with a limit of 8 MiB, and pam limits do not reach
slurmd. Source: systemd.exec(5), ``LimitMEMLOCK=``; Slurm's own slurmd.service sets it for the same reason.
Persisted in a drop-in of slurmd's unit; effective is the limit of the running slurmd (/proc/PID/limits). A changed drop-in
takes effect with a restart of slurmd, which leaves running jobs alone (slurmstepd holds them) but is not done on a busy node.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

UNIT = "slurmd.service"
FILE = f"/etc/systemd/system/{UNIT}.d/50-fairlead-memlock.conf"
# "@slurmd" stands for the process id of slurmd: the reader of the machine finds it (a machine tree has it by this name).
LIMITS = "/proc/@slurmd/limits"


class MemlockWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[str, Meta(pattern="^(infinity|[0-9]{1,18})$", description="LimitMEMLOCK of slurmd: infinity, or bytes.")] = (
        "infinity"
    )


class Observed(Struct, frozen=True):
    """``file``: our drop-in. ``running``: soft and hard limit of the running slurmd, in bytes or "infinity"; None: none runs."""

    file: str | None
    running: tuple[str, str] | None


def parse_limits(text: str) -> tuple[str, str] | None:
    """Soft and hard "Max locked memory" of /proc/PID/limits (proc_pid_limits(5)); None when there is no such line."""
    for line in text.splitlines():
        if line.startswith("Max locked memory"):
            fields = line.removeprefix("Max locked memory").split()
            if len(fields) >= 2:
                soft, hard = ("infinity" if f == "unlimited" else f for f in fields[:2])
                return soft, hard
    return None


def observe(node: Node) -> Observed | Missing:
    file = node.text(FILE)
    if isinstance(file, Missing):
        return file
    limits = node.text(LIMITS)
    if isinstance(limits, Missing):
        return limits
    if limits is None:
        return Observed(file, None)
    running = parse_limits(limits)
    return unreadable(f"{LIMITS}: no line 'Max locked memory'") if running is None else Observed(file, running)


def content(limit: str) -> str:
    return f"# Written by fairlead (setting memlock); changes made here are put back.\n[Service]\nLimitMEMLOCK={limit}\n"


def plan(want: MemlockWant, observed: Observed) -> tuple[AnyChange, ...]:
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
    want=MemlockWant,
    observe=observe,
    plan=plan,
    reads=(FILE, LIMITS),
    disruption=Disruption.IDLE,
)
