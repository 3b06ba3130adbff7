"""Sets Active State Power Management (ASPM) of PCIe links, which decides whether idle links sleep.

A link that sleeps takes microseconds to wake. This increases the latency of adapters, and some adapters lose their link. With the
kernel's policy ``performance`` no link sleeps. If the firmware controls ASPM, the kernel cannot change it. fairlead then reports
the GPUs and adapters whose links may still sleep. Sources: kernel documentation, admin-guide/kernel-parameters.txt, pcie_aspm;
drivers/pci/pcie/aspm.c (module parameter ``policy``); PCI Express Base Specification, Link Control Register, ASPM Control (bits
1:0). The policy is lost at reboot. fairlead's boot unit applies it again. If the kernel has no ASPM policy, fairlead warns and
still applies all other settings. If the hardware profile lists ``pcie_aspm`` in ``unsupported``, fairlead skips this setting
without a warning.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node
from fairlead.model.pci_kind import kind_of
from fairlead.model.setting import HardwareAbsent, Setting, Want

POLICY = "/sys/module/pcie_aspm/parameters/policy"
ASPM = 0x3
Policy = Literal["default", "performance", "powersave", "powersupersave"]


class PcieAspmWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    policy: Annotated[Policy, Meta(description="The kernel's ASPM policy. performance: links never sleep.")] = "performance"


class Observed(Struct, frozen=True):
    """Holds what was read. ``policy`` is the chosen policy, or None for a kernel without ASPM. ``offered`` has all policies that
    the kernel offers, or only the chosen policy if the file of a machine tree has no others. ``asleep`` has the devices whose
    link may sleep."""

    policy: str | None
    offered: tuple[str, ...]
    asleep: tuple[str, ...]


def observe(node: Node) -> Observed | Missing:
    text = node.text(POLICY)
    if isinstance(text, Missing):
        return text
    links = [d for d in node.pci if kind_of(d) and d.link_control is not None]
    broken = next((d.link_control for d in links if isinstance(d.link_control, Missing)), None)
    if isinstance(broken, Missing):
        return broken
    asleep = tuple(d.address for d in links if isinstance(d.link_control, int) and d.link_control & ASPM)
    words = (text or "").split()
    chosen = next((w.strip("[]") for w in words if w.startswith("[")), words[0] if len(words) == 1 else None)
    return Observed(chosen, tuple(w.strip("[]") for w in words), asleep)


def plan(want: PcieAspmWant, observed: Observed) -> tuple[KernelValue, ...]:
    awake = want.policy == "performance"
    if observed.policy is None:
        if awake and not observed.asleep:
            return ()
        raise HardwareAbsent(
            "pcie_aspm",
            "pcie_aspm",
            "this kernel has no ASPM policy: it was built without CONFIG_PCIEASPM",
            hint="switch ASPM off in the firmware set-up",
        )
    if want.policy not in observed.offered and len(observed.offered) > 1:
        words = f"this kernel has no policy {want.policy}; it offers {', '.join(observed.offered)}"
        raise ConfigError("node.json", "settings.pcie_aspm.policy", words, hint="declare one of them")
    if observed.policy == want.policy:
        if awake and observed.asleep:
            words = f"the policy is performance, and the links of {', '.join(observed.asleep)} may sleep: the firmware owns ASPM"
            raise ConfigError("node.json", "settings.pcie_aspm", words, hint="switch ASPM off in the firmware")
        return ()
    why = f"PCIe links follow the policy {observed.policy}, wanted {want.policy}"
    return (KernelValue(setting="pcie_aspm", why=why, path=POLICY, value=want.policy, before=observed.policy),)


setting = Setting(
    summary="Power management of PCIe links (ASPM)",
    want=PcieAspmWant,
    observe=observe,
    plan=plan,
    reads=(POLICY,),
    volatile=True,
    group="pcie",
)
