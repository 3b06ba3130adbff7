"""Sets the largest read request that GPUs, adapters and drives send over PCIe.

An adapter that reads 512 bytes of host memory at a time needs eight times as many requests as an adapter that reads 4096 bytes.
With 512 bytes, 400 Gb/s adapters do not reach their rate. Firmware and drivers do not change the value that the kernel's policy
has set. Sources: PCI Express Base Specification, Device Control Register, Max_Read_Request_Size (bits 14:12);
include/uapi/linux/pci_regs.h, PCI_EXP_DEVCTL_READRQ; NVIDIA, "Understanding PCIe configuration for maximum performance"
(enterprise-support article 1117).

fairlead refuses this setting under ``pci=pcie_bus_perf``. With this parameter the kernel deliberately limits read requests to
each device's payload size (admin-guide/kernel-parameters.txt). fairlead also refuses the setting if kernel lockdown forbids
writes to config space. A reset of the device restores the old value. The agent detects the loss and applies the setting again.
After a boot, fairlead's boot unit applies it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, PciBits
from fairlead.model.facts import Missing, Node
from fairlead.model.pci_kind import LOCKDOWN, Controlled, controlled, locked_down
from fairlead.model.setting import Setting, Want

MASK = 0x7000
CMDLINE = "/proc/cmdline"

Bytes = Literal[128, 256, 512, 1024, 2048, 4096]


class PcieMaxReadRequestWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    gpu_bytes: Annotated[Bytes | None, Meta(description="Largest read request of every GPU. If unset, not changed.")] = None
    nic_bytes: Annotated[
        Bytes | None, Meta(description="Largest read request of every Ethernet and InfiniBand adapter. If unset, not changed.")
    ] = 4096
    nvme_bytes: Annotated[Bytes | None, Meta(description="Largest read request of every NVMe drive. If unset, not changed.")] = (
        None
    )


class Observed(Struct, frozen=True):
    """Holds what was read. ``refusal`` is the reason why the values must not be changed, or "". ``hint`` says what to do
    instead."""

    devices: tuple[Controlled, ...]
    refusal: str = ""
    hint: str = ""


def observe(node: Node) -> Observed | Missing:
    found = controlled(node)
    if isinstance(found, Missing):
        return found
    cmdline = node.text(CMDLINE)
    if isinstance(cmdline, Missing):
        return cmdline
    if any("pcie_bus_perf" in w for w in (cmdline or "").split() if w.startswith("pci=")):
        return Observed(found, "the kernel runs with pci=pcie_bus_perf, which ties read requests to payloads",
                        "take pci=pcie_bus_perf off the kernel command line")  # fmt: skip
    if locked_down(node):
        return Observed(found, "kernel lockdown (Secure Boot) forbids writes to PCI config space",
                        "set it in the firmware or the adapter's own tool (mlxconfig)")  # fmt: skip
    return Observed(found)


def size(control: int) -> int:
    """Return the largest read request, in bytes, that a Device Control word sets."""
    return 128 << (control & MASK) // 0x1000


def plan(want: PcieMaxReadRequestWant, observed: Observed) -> tuple[PciBits, ...]:
    wanted = {"gpu": want.gpu_bytes, "nic": want.nic_bytes, "nvme": want.nvme_bytes}
    changes = []
    for device in observed.devices:
        number = wanted[device.kind]
        if number is None or size(device.control) == number:
            continue
        why = f"largest read request of {device.kind} {device.address} is {size(device.control)} bytes, wanted {number}"
        value = (number.bit_length() - 8) * 0x1000
        changes.append(device.change("pcie_max_read_request", "MaxReadReq", mask=MASK, value=value, why=why))
    if changes and observed.refusal:
        raise ConfigError("node.json", "settings.pcie_max_read_request",
                          f"refused for {len(changes)} device(s): {observed.refusal}", hint=observed.hint)  # fmt: skip
    return tuple(changes)


setting = Setting(
    summary="Largest PCIe read request of GPUs, adapters and drives",
    want=PcieMaxReadRequestWant,
    observe=observe,
    plan=plan,
    reads=(CMDLINE, LOCKDOWN),
    disruption=Disruption.IDLE,
    volatile=True,
    lost_by_reset=True,
    group="pcie",
)
