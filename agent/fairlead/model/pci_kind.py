"""Finds the PCI functions that a setting applies to: GPUs, network adapters, NVMe drives. The PCI class decides, so no driver has
to be loaded.

This file also reads the Device Control words of these functions. Several settings each change some bits of that word (PCI Express
Base Specification, Device Control Register; include/uapi/linux/pci_regs.h, PCI_EXP_DEVCTL).
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.change import Disruption, PciBits
from fairlead.model.facts import Missing, Node, PciDevice

NVIDIA, AMD = 0x10DE, 0x1002
_KINDS = {0x0300: "gpu", 0x0302: "gpu", 0x0200: "nic", 0x0207: "nic", 0x0108: "nvme"}  # PCI Code and ID Assignment
#: ATI chips that are a server's console and no accelerator: ES1000 and Rage XL (https://pci-ids.ucw.cz, vendor 1002).
_CONSOLES = frozenset({0x515E, 0x5969, 0x4752, 0x4758})
LOCKDOWN = "/sys/kernel/security/lockdown"
DEVICE_CONTROL = 0x08  # offset of the Device Control word in the PCI Express capability


class Controlled(Struct, frozen=True):
    """Holds a GPU, adapter or drive (``kind``) with its Device Control word ``control`` at ``offset`` of its config space.
    ``path``: the addresses of the bridges above the device, and then the device's own address."""

    address: str
    kind: str
    path: tuple[str, ...]
    offset: int
    control: int

    def change(self, setting: str, what: str, *, mask: int, value: int, why: str) -> PciBits:
        """Return the change that sets the bits ``mask`` of the word to ``value``. The change needs an idle node."""
        return PciBits(setting=setting, why=why, disruption=Disruption.IDLE, address=self.address, offset=self.offset, mask=mask,
                       value=value, before=self.control, what=what)  # fmt: skip


def is_console(device: PciDevice) -> bool:
    """Return whether an AMD display chip only drives a server's console. ROCm needs the driver amdgpu, but such a chip has the
    driver radeon."""
    return device.vendor == AMD and (device.device in _CONSOLES or device.driver == "radeon")


def kind_of(device: PciDevice) -> str:
    """Return gpu, nic or nvme, or "" for everything else. A display chip of a vendor other than NVIDIA and AMD, such as that of a
    BMC, is no GPU. A virtual function is of no kind."""
    kind = "" if device.virtual_function else _KINDS.get(device.class_code >> 8, "")
    return "" if kind == "gpu" and (device.vendor not in (NVIDIA, AMD) or is_console(device)) else kind


def locked_down(node: Node) -> bool:
    """Return whether kernel lockdown (Secure Boot) forbids writes to config space: kernel_lockdown(7)."""
    text = node.texts.get(LOCKDOWN)
    return isinstance(text, str) and "[none]" not in text and "[" in text


def controlled(node: Node) -> tuple[Controlled, ...] | Missing:
    """Return all GPUs, adapters and drives with PCI Express. Return Missing if the Device Control word of one of them cannot be
    read."""
    found = []
    for device in node.pci:
        kind = kind_of(device)
        if not kind or device.express_offset is None:
            continue
        if isinstance(device.device_control, Missing):
            return device.device_control
        if device.device_control is not None:
            offset = device.express_offset + DEVICE_CONTROL
            found.append(Controlled(device.address, kind, device.path, offset, device.device_control))
    return tuple(found)
