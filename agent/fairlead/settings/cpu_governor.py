"""CPU frequency governor of every online CPU.

The governor decides how fast a core leaves low frequency; launch-bound GPU jobs wait for one core. Source: kernel
documentation, admin-guide/pm/cpufreq.rst, ``scaling_governor`` and ``scaling_available_governors`` (intel_pstate and
amd_pstate in active mode offer only performance and powersave). Lost at reboot; the boot unit applies it again.
Where no CPU has cpufreq, that is a warning and all other settings are made. A hardware profile that names
``cpufreq`` in ``unsupported`` makes the setting not applicable.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want

FOLDER = "/sys/devices/system/cpu/cpu{}/cpufreq/"


class CpuGovernorWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    governor: Annotated[str, Meta(pattern="^[a-z_]{1,32}$", description="Governor of every online CPU.")] = "performance"


class Observed(Struct, frozen=True):
    """(CPU, governor, governors on offer) of each online CPU that has cpufreq; ``without`` lists those that have none."""

    cpus: tuple[tuple[int, str, tuple[str, ...]], ...]
    without: tuple[int, ...]


def observe(node: Node) -> Observed | Missing:
    cpus: list[tuple[int, str, tuple[str, ...]]] = []
    without: list[int] = []
    for cpu in (c.id for c in node.cpus if c.online):
        governor = node.texts.get(f"{FOLDER.format(cpu)}scaling_governor")
        if governor is None:
            without.append(cpu)
            continue
        if isinstance(governor, Missing):
            return governor
        offered = node.texts.get(f"{FOLDER.format(cpu)}scaling_available_governors")
        if isinstance(offered, Missing):
            return offered
        cpus.append((cpu, governor.strip(), tuple((offered or "").split())))
    if cpus and without:
        return unreadable(f"cpu{without[0]} has no cpufreq, though {len(cpus)} others have")
    return Observed(tuple(cpus), tuple(without))


def plan(want: CpuGovernorWant, observed: Observed) -> tuple[KernelValue, ...]:
    if not observed.cpus:
        raise HardwareAbsent(
            "cpu_governor",
            "cpufreq",
            "no CPU has cpufreq: this is a virtual machine, or the firmware keeps frequency control to itself",
            hint="give frequency control to the operating system in the firmware set-up",
        )
    wrong = [(cpu, now, offered) for cpu, now, offered in observed.cpus if now != want.governor]
    for cpu, _, offered in wrong:
        if offered and want.governor not in offered:
            raise ConfigError(
                "node.json",
                "settings.cpu_governor.governor",
                f"cpu{cpu} has no governor {want.governor}; it offers {' '.join(offered)}",
                hint="declare one of these",
            )
    seen = "/".join(sorted({now for _, now, _ in wrong}))
    return tuple(
        KernelValue(
            setting="cpu_governor",
            # The same words for every CPU, so that 112 of them read as one finding.
            why=f"governor is {seen} on {len(wrong)} of {len(observed.cpus)} CPUs, wanted {want.governor}",
            path=f"{FOLDER.format(cpu)}scaling_governor",
            value=want.governor,
            before=now,
        )
        for cpu, now, _ in wrong
    )


setting = Setting(
    summary="CPU frequency governor",
    group="cpu",
    want=CpuGovernorWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(FOLDER.format("*") + "scaling_governor", FOLDER.format("*") + "scaling_available_governors"),
    volatile=True,
)
