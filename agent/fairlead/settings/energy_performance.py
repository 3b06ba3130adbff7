"""Energy performance preference (EPP) of every CPU: the hint by which the processor itself picks its clock.

With intel_pstate or amd_pstate in active mode the governor is only half the story: the hardware chooses between the limits
by this hint. Source: kernel documentation, admin-guide/pm/intel_pstate.rst and amd-pstate.rst,
``energy_performance_preference`` and ``energy_performance_available_preferences``; with the governor ``performance`` the
driver accepts no other hint than performance (EBUSY). Lost at reboot; the boot unit applies it again.
Where no CPU has the attribute, that is a warning and all other settings are made. A hardware profile that names
``energy_performance`` in ``unsupported`` makes the setting not applicable.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want

FOLDER = "/sys/devices/system/cpu/cpu{}/cpufreq/"
NAME, OFFERED = "energy_performance_preference", "energy_performance_available_preferences"


class EnergyPerformanceWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    preference: Annotated[str, Meta(pattern="^[a-z_]{1,32}$|^[0-9]{1,3}$", description="Hint for every online CPU.")] = (
        "performance"
    )


class Observed(Struct, frozen=True):
    """(CPU, hint, hints on offer) of each online CPU that has the attribute."""

    cpus: tuple[tuple[int, str, tuple[str, ...]], ...]


def observe(node: Node) -> Observed | Missing:
    cpus: list[tuple[int, str, tuple[str, ...]]] = []
    for cpu in (c.id for c in node.cpus if c.online):
        now = node.texts.get(f"{FOLDER.format(cpu)}{NAME}")
        offered = node.texts.get(f"{FOLDER.format(cpu)}{OFFERED}")
        for value in (now, offered):
            if isinstance(value, Missing):
                return value
        if isinstance(now, str):
            cpus.append((cpu, now.strip(), tuple(offered.split()) if isinstance(offered, str) else ()))
    online = [c.id for c in node.cpus if c.online]
    if cpus and len(cpus) < len(online):  # one driver serves all CPUs
        without = next(cpu for cpu in online if cpu not in {c for c, _, _ in cpus})
        return unreadable(f"{FOLDER.format(without)}{NAME}: no such file, and other CPUs have it")
    return Observed(tuple(cpus))


def plan(want: EnergyPerformanceWant, observed: Observed) -> tuple[KernelValue, ...]:
    if not observed.cpus:
        raise HardwareAbsent(
            "energy_performance",
            "energy_performance",
            "no CPU has energy_performance_preference: the pstate driver is not in active mode, or this is a virtual machine",
            hint="start the kernel with intel_pstate=active or amd_pstate=active",
        )
    wrong = [(cpu, now, offered) for cpu, now, offered in observed.cpus if now != want.preference]
    for cpu, _, offered in wrong:
        if offered and want.preference not in offered and not want.preference.isdecimal():
            raise ConfigError(
                "node.json",
                "settings.energy_performance.preference",
                f"cpu{cpu} has no preference {want.preference}; it offers {' '.join(offered)}",
                hint="declare one of these",
            )
    seen = "/".join(sorted({now for _, now, _ in wrong}))
    return tuple(
        KernelValue(
            setting="energy_performance",
            why=f"energy preference is {seen} on {len(wrong)} of {len(observed.cpus)} CPUs, wanted {want.preference}",
            path=f"{FOLDER.format(cpu)}{NAME}",
            value=want.preference,
            before=now,
        )
        for cpu, now, _ in wrong
    )


setting = Setting(
    summary="Energy performance preference (EPP) of every CPU",
    group="cpu",
    want=EnergyPerformanceWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(FOLDER.format("*") + NAME, FOLDER.format("*") + OFFERED),
    volatile=True,
)
