"""Sets the CPU frequency governor of every online CPU.

The governor decides how fast a core leaves a low frequency. GPU jobs with many short kernels wait for one core that launches
them. Source: kernel documentation, admin-guide/pm/cpufreq.rst, ``scaling_governor`` and ``scaling_available_governors``
(intel_pstate and amd_pstate in active mode offer only performance and powersave). The value is lost at reboot. fairlead's boot
unit applies it again. If no CPU has cpufreq, fairlead warns and still applies all other settings. If the hardware profile lists
``cpufreq`` in ``unsupported``, fairlead skips this setting without a warning.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.model import cpufreq
from fairlead.model.change import KernelValue
from fairlead.model.cpufreq import ObservedCpufreq
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want

NAME, OFFERED = "scaling_governor", "scaling_available_governors"


class CpuGovernorWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    governor: Annotated[str, Meta(pattern="^[a-z_]{1,32}$", description="Governor of every online CPU.")] = "performance"


def observe(node: Node) -> ObservedCpufreq | Missing:
    found = cpufreq.observe(node, NAME, OFFERED)
    if isinstance(found, ObservedCpufreq) and found.cpus and found.without:
        return unreadable(f"cpu{found.without[0]} has no cpufreq, though {len(found.cpus)} others have")
    return found


def plan(want: CpuGovernorWant, observed: ObservedCpufreq) -> tuple[KernelValue, ...]:
    if not observed.cpus:
        raise HardwareAbsent(
            "cpu_governor",
            "cpufreq",
            "no CPU has cpufreq: this is a virtual machine, or the firmware keeps frequency control to itself",
            hint="give frequency control to the operating system in the firmware set-up",
        )
    return cpufreq.plan("cpu_governor", "governor", want.governor, observed, name=NAME, words="governor")


setting = Setting(
    summary="CPU frequency governor",
    group="cpu",
    want=CpuGovernorWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=cpufreq.reads(NAME, OFFERED),
    volatile=True,
)
