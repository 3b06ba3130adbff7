"""Reads and changes one attribute of every CPU's cpufreq folder, for the settings cpu_governor and energy_performance.

The kernel's documentation (admin-guide/pm/cpufreq.rst) describes each attribute, and the file beside the attribute that lists the
values that the driver offers.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.errors import ConfigError
from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node

FOLDER = "/sys/devices/system/cpu/cpu{}/cpufreq/"


class ObservedCpufreq(Struct, frozen=True):
    """Holds (CPU, value, values on offer) of each online CPU that has the attribute. ``without`` lists the CPUs that do not
    have it."""

    cpus: tuple[tuple[int, str, tuple[str, ...]], ...]
    without: tuple[int, ...] = ()


def reads(*names: str) -> tuple[str, ...]:
    """Return the paths of the files ``names`` for all CPUs, as globs."""
    return tuple(FOLDER.format("*") + name for name in names)


def observe(node: Node, name: str, offers: str) -> ObservedCpufreq | Missing:
    """Return the attribute ``name`` of every online CPU, with the values that the file ``offers`` lists."""
    cpus: list[tuple[int, str, tuple[str, ...]]] = []
    without: list[int] = []
    for cpu in (c.id for c in node.cpus if c.online):
        now, offered = (node.texts.get(FOLDER.format(cpu) + file) for file in (name, offers))
        for value in (now, offered):
            if isinstance(value, Missing):
                return value
        if isinstance(now, str):
            cpus.append((cpu, now.strip(), tuple(offered.split()) if isinstance(offered, str) else ()))
        else:
            without.append(cpu)
    return ObservedCpufreq(tuple(cpus), tuple(without))


def plan(setting: str, key: str, wanted: str, observed: ObservedCpufreq, *, name: str, words: str) -> tuple[KernelValue, ...]:
    """Return the changes that set the attribute. ``key``: the key of the declaration. ``words``: what people call the
    attribute."""
    wrong = [(cpu, now, offered) for cpu, now, offered in observed.cpus if now != wanted]
    for cpu, _, offered in wrong:
        if offered and wanted not in offered and not wanted.isdecimal():
            raise ConfigError(
                "node.json",
                f"settings.{setting}.{key}",
                f"cpu{cpu} has no {key} {wanted}; it offers {' '.join(offered)}",
                hint="declare one of these",
            )
    seen = "/".join(sorted({now for _, now, _ in wrong}))
    # The text is the same for every CPU, so that drift on 112 CPUs becomes one finding.
    why = f"{words} is {seen} on {len(wrong)} of {len(observed.cpus)} CPUs, wanted {wanted}"
    return tuple(
        KernelValue(setting=setting, why=why, path=FOLDER.format(cpu) + name, value=wanted, before=now) for cpu, now, _ in wrong
    )
