"""Clears bits of PCIe Access Control Services (ACS) on the bridges between GPUs and NICs.

ACS redirect bits send traffic between two devices up to the root complex and down again. GPUDirect and P2P then run at a fraction
of their speed, or not at all. Sources: PCI Express Base Specification, ACS Extended Capability (id 0x000D, control word at +6);
NCCL troubleshooting guide, "PCI Access Control Services (ACS)"; kernel documentation, driver-api/pci/p2pdma.rst.

Only harmful bits are cleared: P2P Request Redirect, Completion Redirect and Egress Control. Each bridge role has a mask of its
own. Source Validation alone does no harm. Only bridges on a path between two of the node's GPUs and NICs are changed.

fairlead refuses to clear the bits where they isolate devices, and gives the reason. They do so in a virtual machine, with devices
bound to vfio-pci, and with an IOMMU that translates addresses. The kernel built its IOMMU groups from these bits, so the groups
would be wrong without the bits. fairlead also refuses if kernel lockdown forbids writes to config space. A reset of a bridge or a
reboot sets the bits again. The agent detects the loss and applies the setting again. After a boot, fairlead's boot unit applies
it.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, PciBits
from fairlead.model.facts import Missing, Node, PciDevice, unreadable
from fairlead.model.pci_kind import LOCKDOWN, kind_of, locked_down
from fairlead.model.setting import Setting, Want

REDIRECT = 0x2C  # bit 2 P2P request redirect, 3 completion redirect, 5 egress control
NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
GROUPS = "/sys/kernel/iommu_groups/*/type"
INFINIBAND_CLASS = 0x0207  # PCI Code and ID Assignment: base class 02, sub-class 07

Mask = Annotated[int, Meta(ge=0, le=0x7F, description="ACSCtl bits to clear on bridges of this role. 0 clears none.")]


class PcieAcsWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    root_port: Mask = REDIRECT
    switch_upstream: Mask = REDIRECT
    switch_downstream: Mask = REDIRECT


class Bridge(Struct, frozen=True):
    address: str
    role: str
    offset: int
    control: int


class Observed(Struct, frozen=True):
    """Holds what was read. ``bridges`` has the bridges with an ACS capability on a path between two peers (GPUs and NICs).
    ``refusal`` is the reason why their bits must not be cleared, or "". ``hint`` says what to do instead."""

    bridges: tuple[Bridge, ...]
    refusal: str = ""
    hint: str = ""


def bits(word: int) -> str:
    """Return the names of the set bits, as lspci writes them."""
    return " ".join(f"{name}+" for i, name in enumerate(NAMES) if word >> i & 1) or "none"


def peers(node: Node) -> tuple[PciDevice, ...]:
    """Return the GPUs and RDMA NICs of the node. They are found by PCI class, so that this works before any driver has loaded."""
    nics = {nic.pci for nic in node.nics if nic.rdma}
    return tuple(d for d in node.pci if kind_of(d) == "gpu" or d.class_code >> 8 == INFINIBAND_CLASS or d.address in nics)


def on_peer_paths(node: Node) -> frozenset[str]:
    """Return the addresses of all bridges that a transfer between two peers passes. These are the bridges below the part of the
    tree that the paths of both peers share."""
    found: set[str] = set()
    for a, b in combinations({d.path[:-1] for d in peers(node)}, 2):
        common = 0
        while common < min(len(a), len(b)) and a[common] == b[common]:
            common += 1
        found.update(a[common:], b[common:])
    return frozenset(found)


def _refusal(node: Node) -> tuple[str, str]:
    if node.virtual is True:
        return "this is a virtual machine, where ACS belongs to the hypervisor", "declare settings.pcie_acs.managed = false here"
    vfio = sorted(d.address for d in node.pci if d.driver == "vfio-pci")
    if vfio:
        return (
            f"{len(vfio)} device(s) are bound to vfio-pci ({vfio[0]}), and ACS is what isolates them",
            "unbind them, or declare settings.pcie_acs.managed = false here",
        )
    kinds: dict[str, int] = {}
    for path, text in node.texts.items():
        if path.startswith("/sys/kernel/iommu_groups/") and isinstance(text, str) and text.strip() != "identity":
            kinds[text.strip()] = kinds.get(text.strip(), 0) + 1
    if kinds:
        seen = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        return (
            f"the IOMMU translates ({seen} groups), and its groups were built from these bits",
            "boot with iommu=pt (pass-through) or the IOMMU off, or use pci=disable_acs_redir= on the kernel command line",
        )
    if locked_down(node):
        return (
            "kernel lockdown (Secure Boot) forbids writes to PCI config space",
            "use pci=disable_acs_redir= on the kernel command line, or the firmware's ACS option",
        )
    return "", ""


def observe(node: Node) -> Observed | Missing:
    if isinstance(node.virtual, Missing):
        return node.virtual
    for path, text in node.texts.items():
        if path.startswith("/sys/kernel/iommu_groups/") and isinstance(text, Missing):
            return text
    wanted = on_peer_paths(node)
    bridges: list[Bridge] = []
    for device in node.pci:
        if device.address not in wanted or device.acs_capability is None:
            continue
        if isinstance(device.acs_capability, Missing):
            return unreadable(f"ACS capability of {device.address}: {device.acs_capability.detail}")
        if isinstance(device.acs_control, Missing):
            return unreadable(f"ACS control of {device.address}: {device.acs_control.detail}")
        if device.acs_control is None or device.acs_offset is None:
            return unreadable(f"ACS control of {device.address}: not read")
        bridges.append(Bridge(device.address, device.bridge_role, device.acs_offset, device.acs_control))
    return Observed(tuple(bridges), *_refusal(node))


def plan(want: PcieAcsWant, observed: Observed) -> tuple[PciBits, ...]:
    masks = {
        "root_port": want.root_port,
        "switch_upstream": want.switch_upstream,
        "switch_downstream": want.switch_downstream,
    }
    changes = tuple(
        PciBits(
            setting="pcie_acs",
            why=f"ACS of {b.role.replace('_', ' ')} {b.address} has {bits(b.control & masks.get(b.role, 0))}, wanted clear",
            disruption=Disruption.IDLE,
            address=b.address,
            offset=b.offset + 6,
            mask=b.control & masks.get(b.role, 0),
            value=0,
            before=b.control,
            what="ACSCtl",
        )
        for b in observed.bridges
        if b.control & masks.get(b.role, 0)
    )
    if changes and observed.refusal:
        raise ConfigError(
            "node.json",
            "settings.pcie_acs",
            f"refused for {len(changes)} bridge(s): {observed.refusal}",
            hint=observed.hint,
        )
    return changes


setting = Setting(
    summary="PCIe ACS redirect bits on bridges between GPUs and NICs",
    group="pcie",
    want=PcieAcsWant,
    observe=observe,
    plan=plan,
    reads=(GROUPS, LOCKDOWN),
    disruption=Disruption.IDLE,
    volatile=True,
    lost_by_reset=True,
)
