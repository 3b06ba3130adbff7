"""Which PCI functions a setting means: GPUs, network adapters, NVMe drives. By PCI class, so before any driver has loaded."""

from __future__ import annotations

from fairlead.model.facts import Node, PciDevice

NVIDIA, AMD = 0x10DE, 0x1002
_KINDS = {0x0300: "gpu", 0x0302: "gpu", 0x0200: "nic", 0x0207: "nic", 0x0108: "nvme"}  # PCI Code and ID Assignment
LOCKDOWN = "/sys/kernel/security/lockdown"


def kind_of(device: PciDevice) -> str:
    """gpu, nic, nvme, or "" for all else; a display of no GPU maker (a BMC's) is none, nor is a virtual function."""
    kind = "" if device.virtual_function else _KINDS.get(device.class_code >> 8, "")
    return "" if kind == "gpu" and device.vendor not in (NVIDIA, AMD) else kind


def locked_down(node: Node) -> bool:
    """Kernel lockdown (Secure Boot) forbids writes to config space: kernel_lockdown(7)."""
    text = node.texts.get(LOCKDOWN)
    return isinstance(text, str) and "[none]" not in text and "[" in text
