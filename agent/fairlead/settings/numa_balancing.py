"""Sets automatic NUMA balancing: the kernel unmaps pages to see which CPUs touch them, then moves them between NUMA nodes.

If a process is bound to its GPU's socket, the page faults cost time and no useful page moves. Pinned DMA buffers cannot move at
all. Source: kernel documentation, admin-guide/sysctl/kernel.rst, ``numa_balancing`` (0 off, 1 on, 2 memory tiering). fairlead
persists the value in its own sysctl.d file, and reads the effective value from /proc/sys. A file that sorts later and sets
another value would win at the next boot (sysctl.d(5)). fairlead reports such a file and does not overwrite it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, KernelValue, Layer
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want
from fairlead.model.sysctl_files import GLOBS, later_writers, unreadable_file

VALUE = "/proc/sys/kernel/numa_balancing"
KEY = "kernel.numa_balancing"
FILE = "/etc/sysctl.d/90-fairlead-numa-balancing.conf"


class NumaBalancingWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    value: Annotated[int, Meta(ge=0, le=2, description="Value of kernel.numa_balancing: 0 off, 1 on, 2 memory tiering.")] = 0


class Observed(Struct, frozen=True):
    """Holds what was read. ``effective`` is the running kernel's value. ``file`` is the text of fairlead's file. ``later`` is the
    last file that is read after fairlead's and sets the key, with its value, or None."""

    effective: int
    file: str | None
    later: tuple[str, str] | None


def observe(node: Node) -> Observed | Missing:
    text = node.text(VALUE)
    if text is None:
        return unreadable(f"{VALUE}: no such file (kernel without CONFIG_NUMA_BALANCING)")
    if isinstance(text, Missing):
        return text
    if not text.strip().isdecimal():
        return unreadable(f"{VALUE}: not a number: {text.strip()[:20]!r}")
    file = node.text(FILE)
    if isinstance(file, Missing):
        return file
    return unreadable_file(node.texts) or Observed(int(text), file, later_writers(node.texts, FILE, (KEY,)).get(KEY))


def content(value: int) -> str:
    return f"# Written by fairlead (setting numa_balancing); changes made here are put back.\n{KEY} = {value}\n"


def plan(want: NumaBalancingWant, observed: Observed) -> tuple[AnyChange, ...]:
    if observed.later and observed.later[1] != str(want.value):
        raise ConfigError(
            observed.later[0],
            KEY,
            f"sets {observed.later[1]} and is read after {FILE}; wanted {want.value}",
            hint="remove that line, or declare its value in settings.numa_balancing",
        )
    changes: list[AnyChange] = []
    if observed.file != content(want.value):
        changes.append(
            File(
                setting="numa_balancing",
                why=f"{FILE} does not say {KEY} = {want.value}",
                layer=Layer.PERSISTED,
                path=FILE,
                content=content(want.value),
                before=observed.file,
            )
        )
    if observed.effective != want.value:
        changes.append(
            KernelValue(
                setting="numa_balancing",
                why=f"{KEY} is {observed.effective}, wanted {want.value}",
                path=VALUE,
                value=str(want.value),
                before=str(observed.effective),
            )
        )
    return tuple(changes)


setting = Setting(
    summary="Automatic NUMA balancing of the kernel",
    group="kernel",
    want=NumaBalancingWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(VALUE, FILE, *GLOBS),
    as_wanted=lambda want: {VALUE: f"{want.value}\n"},
)
