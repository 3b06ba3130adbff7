"""Open-files limit of slurmd, which every job step inherits.

A step with many ranks, data loaders and NCCL connections runs out of descriptors; what a job inherits is slurmd's own limit,
which pam limits do not reach. slurmd raises its soft limit to the hard one when it starts (rlimits_use_max_nofile() in
src/slurmd/slurmd/slurmd.c; seen on 22.05), so there is one number; the soft limit of a step is the submitting shell's unless
PropagateResourceLimitsExcept names NOFILE (slurm.conf(5)). Source: systemd.exec(5), ``LimitNOFILE=``; Slurm's own unit has
131072. Persisted in a drop-in of slurmd's unit; effective is the limit of the running slurmd (/proc/PID/limits); it takes
effect with a restart of slurmd, which leaves jobs alone.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want
from fairlead.settings.memlock import LIMITS, SYSTEMD_LIMITS, SYSTEMD_STATUS, UNIT, ceiling

FILE = f"/etc/systemd/system/{UNIT}.d/50-fairlead-nofile.conf"
NR_OPEN = "/proc/sys/fs/nr_open"


class NofileWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="LimitNOFILE of slurmd: open files that a step may raise its own limit to.")
    ] = 131072


class Observed(Struct, frozen=True):
    """``file``: our drop-in. ``running``: hard limit of the running slurmd; None: none runs. ``most``: the kernel's own ceiling
    (fs.nr_open), above which a limit is refused. ``ceiling``: as for memlock, where systemd itself has less."""

    file: str | None
    running: int | None
    most: int
    ceiling: int | None = None


def parse_limits(text: str) -> tuple[int, int] | None:
    """Soft and hard "Max open files" of /proc/PID/limits (proc_pid_limits(5)); None when there is no such line."""
    for line in text.splitlines():
        fields = line.removeprefix("Max open files").split()
        if line.startswith("Max open files") and len(fields) >= 2 and all(f.isdecimal() for f in fields[:2]):
            return int(fields[0]), int(fields[1])
    return None


def observe(node: Node) -> Observed | Missing:
    file, limits, most = node.text(FILE), node.text(LIMITS), node.text(NR_OPEN)
    for value in (file, limits, most):
        if isinstance(value, Missing):
            return value
    if not isinstance(most, str) or not most.strip().isdecimal():
        return unreadable(f"{NR_OPEN}: not a number")
    running = parse_limits(limits) if isinstance(limits, str) else None
    if isinstance(limits, str) and running is None:
        return unreadable(f"{LIMITS}: no line 'Max open files'")
    hard = None if running is None else running[1]
    return Observed(None if file is None else str(file), hard, int(most), ceiling(node, parse_limits))


def content(want: NofileWant) -> str:
    head = "# Written by fairlead (setting nofile); changes made here are put back.\n"
    return f"{head}[Service]\nLimitNOFILE={want.limit}\n"


def plan(want: NofileWant, observed: Observed) -> tuple[AnyChange, ...]:
    if want.limit > observed.most:
        words = f"{want.limit} is above fs.nr_open ({observed.most})"
        raise ConfigError("node.json", "settings.nofile.limit", words, hint="declare a lower one")
    if observed.ceiling is not None and want.limit > observed.ceiling:
        words = f"{want.limit} is out of reach: systemd here has no CAP_SYS_RESOURCE and a hard limit of {observed.ceiling} files"
        hint = f"this is a container: raise its own limit, or declare limit = {observed.ceiling} for it"
        raise ConfigError("node.json", "settings.nofile.limit", words, hint=hint)
    changes: list[AnyChange] = []
    why = f"{FILE} does not say LimitNOFILE={want.limit}"
    if observed.file != content(want):
        changes += [
            File(setting="nofile", why=why, layer=Layer.PERSISTED, path=FILE, content=content(want), before=observed.file),
            Unit(setting="nofile", why=why, layer=Layer.PERSISTED, name=UNIT, daemon_reload=True),
        ]
    if observed.running is not None and observed.running != want.limit:
        changes.append(
            Unit(
                setting="nofile",
                why=f"slurmd runs with an open-files limit of {observed.running}, wanted {want.limit}",
                disruption=Disruption.IDLE,
                name=UNIT,
                restart=True,
            )
        )
    return tuple(changes)


setting = Setting(
    summary="Open-files limit of slurmd and so of every job",
    group="limits",
    want=NofileWant,
    observe=observe,
    plan=plan,
    reads=(FILE, LIMITS, NR_OPEN, SYSTEMD_LIMITS, SYSTEMD_STATUS),
    as_wanted=lambda want: {NR_OPEN: f"{want.limit}\n"},
    disruption=Disruption.IDLE,
)
