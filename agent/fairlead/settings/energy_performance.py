"""Sets the energy performance preference (EPP) of every CPU, the hint by which the processor itself chooses its clock.

With intel_pstate or amd_pstate in active mode, the processor chooses its clock itself, within the governor's limits and by this
hint. Source: kernel documentation, admin-guide/pm/intel_pstate.rst and amd-pstate.rst, ``energy_performance_preference`` and
``energy_performance_available_preferences``. With the governor ``performance`` the driver accepts no other hint than performance
(EBUSY). The value is lost at reboot. fairlead's boot unit applies it again. If no CPU has the attribute, fairlead warns and still
applies all other settings. If the hardware profile lists ``energy_performance`` in ``unsupported``, fairlead skips this setting
without a warning.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.model import cpufreq
from fairlead.model.change import KernelValue
from fairlead.model.cpufreq import FOLDER, ObservedCpufreq
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want

NAME, OFFERED = "energy_performance_preference", "energy_performance_available_preferences"


class EnergyPerformanceWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    preference: Annotated[str, Meta(pattern="^[a-z_]{1,32}$|^[0-9]{1,3}$", description="Hint for every online CPU.")] = (
        "performance"
    )


def observe(node: Node) -> ObservedCpufreq | Missing:
    found = cpufreq.observe(node, NAME, OFFERED)
    if isinstance(found, ObservedCpufreq) and found.cpus and found.without:  # all CPUs have one driver
        return unreadable(f"{FOLDER.format(found.without[0])}{NAME}: no such file, and other CPUs have it")
    return found


def plan(want: EnergyPerformanceWant, observed: ObservedCpufreq) -> tuple[KernelValue, ...]:
    if not observed.cpus:
        raise HardwareAbsent(
            "energy_performance",
            "energy_performance",
            "no CPU has energy_performance_preference: the pstate driver is not in active mode, or this is a virtual machine",
            hint="start the kernel with intel_pstate=active or amd_pstate=active",
        )
    wanted = want.preference
    return cpufreq.plan("energy_performance", "preference", wanted, observed, name=NAME, words="energy preference")


setting = Setting(
    summary="Energy performance preference (EPP) of every CPU",
    group="cpu",
    want=EnergyPerformanceWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=cpufreq.reads(NAME, OFFERED),
    volatile=True,
)
