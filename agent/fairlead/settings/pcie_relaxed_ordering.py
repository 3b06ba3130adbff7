"""Sets relaxed ordering of PCIe writes by GPUs, adapters and drives.

With relaxed ordering a root complex may let later writes overtake earlier ones. Processors with many internal paths (above all
AMD EPYC) need relaxed ordering for the full rate of a 200 or 400 Gb/s adapter. The bit that this setting sets only allows a
device to use relaxed ordering. An RDMA application must request it for each memory region. NCCL does so by default if the device
supports it (NCCL_IB_PCI_RELAXED_ORDERING). The NVIDIA driver requests it with NVreg_EnablePCIERelaxedOrderingMode. Sources: PCI
Express Base Specification, Device Control Register, Enable Relaxed Ordering (bit 4); include/uapi/linux/pci_regs.h,
PCI_EXP_DEVCTL_RELAX_EN; NCCL user guide, NCCL_IB_PCI_RELAXED_ORDERING.

fairlead refuses to set the bit below root ports that corrupt or stall such writes. The kernel itself clears the bit of devices
below these root ports (drivers/pci/quirks.c, quirk_relaxedordering_disable: Intel Haswell and Broadwell, AMD A1100). fairlead
also refuses if kernel lockdown forbids writes to config space. A reset of the device restores the old value. The agent detects
the loss and applies the setting again. After a boot, fairlead's boot unit applies it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, PciBits
from fairlead.model.facts import Missing, Node
from fairlead.model.pci_kind import LOCKDOWN, Controlled, controlled, locked_down
from fairlead.model.setting import Setting, Want

ENABLE = 0x10
INTEL, AMD = 0x8086, 0x1022
_BROADWELL, _HASWELL, _A1100 = range(0x6F01, 0x6F0F), range(0x2F01, 0x2F0F), range(0x1A00, 0x1A03)


class PcieRelaxedOrderingWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    gpu: Annotated[bool | None, Meta(description="Relaxed ordering of every GPU. If unset, not changed.")] = True
    nic: Annotated[
        bool | None, Meta(description="Relaxed ordering of every Ethernet and InfiniBand adapter. If unset, not changed.")
    ] = True
    nvme: Annotated[bool | None, Meta(description="Relaxed ordering of every NVMe drive. If unset, not changed.")] = None


class Observed(Struct, frozen=True):
    """Holds what was read. ``cannot`` has the addresses of root ports below which no device may use relaxed ordering. ``locked``
    says whether kernel lockdown forbids writes to config space."""

    devices: tuple[Controlled, ...]
    cannot: frozenset[str] = frozenset()
    locked: bool = False


def observe(node: Node) -> Observed | Missing:
    found = controlled(node)
    if isinstance(found, Missing):
        return found
    return Observed(found, frozenset(d.address for d in node.pci if _cannot(d.vendor, d.device)), locked_down(node))


def _cannot(vendor: int, device: int) -> bool:
    return (vendor == INTEL and (device in _BROADWELL or device in _HASWELL)) or (vendor == AMD and device in _A1100)


def plan(want: PcieRelaxedOrderingWant, observed: Observed) -> tuple[PciBits, ...]:
    wanted = {"gpu": want.gpu, "nic": want.nic, "nvme": want.nvme}
    changes = []
    for device in observed.devices:
        on = wanted[device.kind]
        if on is None or on == bool(device.control & ENABLE):
            continue
        above = next((port for port in device.path if port in observed.cannot), "")
        if on and above:
            words = f"refused for {device.address}: the root port {above} cannot have it, and the kernel clears the bit"
            raise ConfigError("node.json", f"settings.pcie_relaxed_ordering.{device.kind}", words, hint="declare it false here")
        why = f"relaxed ordering of {device.kind} {device.address} is {_word(not on)}, wanted {_word(on)}"
        value = ENABLE if on else 0
        changes.append(device.change("pcie_relaxed_ordering", "RelaxedOrdering", mask=ENABLE, value=value, why=why))
    if changes and observed.locked:
        words = f"refused for {len(changes)} device(s): kernel lockdown (Secure Boot) forbids writes to PCI config space"
        raise ConfigError("node.json", "settings.pcie_relaxed_ordering", words, hint="set it in the firmware (mlxconfig)")
    return tuple(changes)


def _word(on: bool) -> str:
    return "on" if on else "off"


setting = Setting(
    summary="Relaxed ordering of PCIe writes",
    want=PcieRelaxedOrderingWant,
    observe=observe,
    plan=plan,
    reads=(LOCKDOWN,),
    disruption=Disruption.IDLE,
    volatile=True,
    lost_by_reset=True,
    group="pcie",
)
