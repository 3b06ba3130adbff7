"""Sets the locked-memory limit of slurmd, which every job step inherits.

RDMA registration and GPUDirect pin memory. A systemd unit starts with a limit of 8 MiB, and the limits of PAM do not apply to
slurmd. Source: systemd.exec(5), ``LimitMEMLOCK=``. Slurm's own slurmd.service sets this limit for the same reason. fairlead
persists the limit in a drop-in of slurmd's unit. The effective limit is that of the running slurmd (/proc/PID/limits). A changed
drop-in takes effect when slurmd restarts. A restart does not disturb running jobs, because they belong to slurmstepd. fairlead
still restarts slurmd only on an idle node.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model import slurmd_limit
from fairlead.model.change import AnyChange, Disruption
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want
from fairlead.model.slurmd_limit import LIMITS

FILE = slurmd_limit.drop_in("memlock")
NAME = "Max locked memory"


class MemlockWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[str, Meta(pattern="^(infinity|[0-9]{1,18})$", description="LimitMEMLOCK of slurmd: infinity, or bytes.")] = (
        "infinity"
    )


class Observed(Struct, frozen=True):
    """Holds what was read. ``file`` is the text of fairlead's drop-in. ``running`` has the soft and the hard limit of the running
    slurmd, in bytes or "infinity". It is None if no slurmd runs. ``ceiling`` is systemd's own hard limit in bytes, which no unit
    can exceed (in a container), or None without such a limit."""

    file: str | None
    running: tuple[str, str] | None
    ceiling: int | None = None


def observe(node: Node) -> Observed | Missing:
    file, limits = node.text(FILE), node.text(LIMITS)
    if isinstance(file, Missing):
        return file
    if isinstance(limits, Missing):
        return limits
    running = None if limits is None else slurmd_limit.parse(limits, NAME)
    if limits is not None and running is None:
        return unreadable(f"{LIMITS}: no line '{NAME}'")
    return Observed(file, running, slurmd_limit.ceiling(node, NAME))


def plan(want: MemlockWant, observed: Observed) -> tuple[AnyChange, ...]:
    most = observed.ceiling
    if most is not None and (want.limit == "infinity" or int(want.limit) > most):
        raise slurmd_limit.out_of_reach("memlock", want.limit, most, "bytes", f'"{most}"')
    changes = slurmd_limit.persist("memlock", f"LimitMEMLOCK={want.limit}", observed.file)
    if observed.running is None or observed.running == (want.limit, want.limit):
        return changes
    why = f"slurmd runs with a locked-memory limit of {observed.running[0]}, wanted {want.limit}"
    return (*changes, slurmd_limit.restart("memlock", why))


setting = Setting(
    summary="Locked-memory limit of slurmd and so of every job",
    group="limits",
    want=MemlockWant,
    observe=observe,
    plan=plan,
    reads=(FILE, *slurmd_limit.READS),
    disruption=Disruption.IDLE,
)
