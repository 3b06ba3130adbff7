"""Open-files limit of slurmd, which every job step inherits.

A step with many ranks, data loaders and NCCL connections runs out of 1,024 descriptors; what a job inherits is slurmd's own
limit, which pam limits do not reach. The soft limit stays low by default for programs that close every descriptor they
could have (or use select(2)); a program raises it itself up to the hard one. Source: systemd.exec(5), ``LimitNOFILE=``, and
systemd's NEWS for version 240 (soft 1024, hard 524288). Persisted in a drop-in of slurmd's unit; effective is the limit of
the running slurmd (/proc/PID/limits); it takes effect with a restart of slurmd, which leaves jobs alone.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Unit
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want
from fairlead.settings.memlock import LIMITS, UNIT

FILE = f"/etc/systemd/system/{UNIT}.d/50-fairlead-nofile.conf"
NR_OPEN = "/proc/sys/fs/nr_open"

Count = Annotated[int, Meta(ge=1024, le=2**31 - 1)]


class NofileWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    soft: Annotated[Count, Meta(description="Open files that a step has at its start.")] = 131072
    hard: Annotated[Count, Meta(description="Open files up to which a step may raise that itself.")] = 1048576


class Observed(Struct, frozen=True):
    """``file``: our drop-in. ``running``: soft and hard limit of the running slurmd; None: none runs. ``most``: the kernel's
    own ceiling (fs.nr_open), above which a hard limit is refused."""

    file: str | None
    running: tuple[int, int] | None
    most: int


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
    return Observed(None if file is None else str(file), running, int(most))


def content(want: NofileWant) -> str:
    head = "# Written by fairlead (setting nofile); changes made here are put back.\n"
    return f"{head}[Service]\nLimitNOFILE={want.soft}:{want.hard}\n"


def plan(want: NofileWant, observed: Observed) -> tuple[AnyChange, ...]:
    for key, value in (("soft", want.soft), ("hard", want.hard)):
        if value > (observed.most if key == "hard" else want.hard):
            limit = f"fs.nr_open ({observed.most})" if key == "hard" else f"the hard limit ({want.hard})"
            raise ConfigError("node.json", f"settings.nofile.{key}", f"{value} is above {limit}", hint="declare a lower one")
    changes: list[AnyChange] = []
    why = f"{FILE} does not say LimitNOFILE={want.soft}:{want.hard}"
    if observed.file != content(want):
        changes += [
            File(setting="nofile", why=why, layer=Layer.PERSISTED, path=FILE, content=content(want), before=observed.file),
            Unit(setting="nofile", why=why, layer=Layer.PERSISTED, name=UNIT, daemon_reload=True),
        ]
    if observed.running is not None and observed.running != (want.soft, want.hard):
        soft, hard = observed.running
        changes.append(
            Unit(
                setting="nofile",
                why=f"slurmd runs with an open-files limit of {soft}:{hard}, wanted {want.soft}:{want.hard}",
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
    reads=(FILE, LIMITS, NR_OPEN),
    disruption=Disruption.IDLE,
)
