"""Sets the open-files limit of slurmd, which every job step inherits.

A step with many ranks, data loaders and NCCL connections runs out of descriptors. A job inherits slurmd's own limit. The limits
of PAM do not apply to slurmd. When slurmd starts, it raises its soft limit to its hard limit (rlimits_use_max_nofile() in
src/slurmd/slurmd/slurmd.c; seen on 22.05), so only one number has to be set. The soft limit of a step is that of the submitting
shell unless PropagateResourceLimitsExcept names NOFILE (slurm.conf(5)). Source: systemd.exec(5), ``LimitNOFILE=``. Slurm's own
unit has 131072. fairlead persists the limit in a drop-in of slurmd's unit. The effective limit is that of the running slurmd
(/proc/PID/limits). A change takes effect when slurmd restarts, which does not disturb jobs.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import slurmd_limit
from fairlead.model.change import AnyChange, Disruption
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want
from fairlead.model.slurmd_limit import LIMITS

FILE = slurmd_limit.drop_in("nofile")
NAME = "Max open files"
NR_OPEN = "/proc/sys/fs/nr_open"


class NofileWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[
        int,
        Meta(ge=1024, le=2**31 - 1, description="LimitNOFILE of slurmd, to which a step may raise its own limit of open files."),
    ] = 131072


class Observed(Struct, frozen=True):
    """Holds what was read. ``file`` is the text of fairlead's drop-in. ``running`` is the hard limit of the running slurmd, or
    None if no slurmd runs. ``most`` is fs.nr_open, the highest limit that the kernel accepts. ``ceiling`` is systemd's own hard
    limit, which no unit can exceed (in a container), or None without such a limit."""

    file: str | None
    running: int | None
    most: int
    ceiling: int | None = None


def observe(node: Node) -> Observed | Missing:
    file, limits, most = node.text(FILE), node.text(LIMITS), node.text(NR_OPEN)
    for value in (file, limits, most):
        if isinstance(value, Missing):
            return value
    if not isinstance(most, str) or not most.strip().isdecimal():
        return unreadable(f"{NR_OPEN}: not a number")
    running = slurmd_limit.parse(limits, NAME) if isinstance(limits, str) else None
    if isinstance(limits, str) and (running is None or not all(limit.isdecimal() for limit in running)):
        return unreadable(f"{LIMITS}: no line '{NAME}'")
    hard = None if running is None else int(running[1])
    return Observed(None if file is None else str(file), hard, int(most), slurmd_limit.ceiling(node, NAME))


def plan(want: NofileWant, observed: Observed) -> tuple[AnyChange, ...]:
    if want.limit > observed.most:
        words = f"{want.limit} is above fs.nr_open ({observed.most})"
        raise ConfigError("node.json", "settings.nofile.limit", words, hint="declare a lower one")
    if observed.ceiling is not None and want.limit > observed.ceiling:
        raise slurmd_limit.out_of_reach("nofile", str(want.limit), observed.ceiling, "files", str(observed.ceiling))
    changes = slurmd_limit.persist("nofile", f"LimitNOFILE={want.limit}", observed.file)
    if observed.running is None or observed.running == want.limit:
        return changes
    why = f"slurmd runs with an open-files limit of {observed.running}, wanted {want.limit}"
    return (*changes, slurmd_limit.restart("nofile", why))


setting = Setting(
    summary="Open-files limit of slurmd and so of every job",
    group="limits",
    want=NofileWant,
    observe=observe,
    plan=plan,
    reads=(FILE, NR_OPEN, *slurmd_limit.READS),
    as_wanted=lambda want: {NR_OPEN: f"{want.limit}\n"},
    disruption=Disruption.IDLE,
)
