"""Finds ACS bits that send peer-to-peer traffic up to the root, and NVLinks that are missing."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.facts import Missing
from fairlead.model.finding import Action, Finding
from fairlead.topology.audit.machine_view import MachineView, finding
from fairlead.topology.distances import link_speed, pci_tree
from fairlead.topology.distances.accelerators import Accelerator, pci_key

REDIRECT = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x20: "EgressCtrl"}  # PCIe base specification, ACS control register
SXM = ("SXM", "HBM3", "GH200", "GB200", "GB300", "HGX")  # names of boards whose GPUs NVLink always joins


def redirects(view: MachineView) -> Iterable[Finding]:
    """Find ACS bits that send peer-to-peer traffic up to the root, on ports between two endpoints of one switch."""
    ends = [view.devices[a] for a in view.ends if a in view.devices]
    on_path: dict[str, set[str]] = {}
    for i, a in enumerate(ends):
        for b in ends[i + 1 :]:
            for port in pci_tree.ports_between(a, b):
                on_path.setdefault(port, set()).update((a.address, b.address))
    for address in sorted(on_path, key=pci_key):
        bridge = view.devices.get(address)
        if bridge is None or not isinstance(bridge.acs_control, int):
            continue
        names = [name for bit, name in REDIRECT.items() if bridge.acs_control & bit]
        if not names:
            continue
        touched = sorted(on_path[address], key=pci_key)
        below = [a for a in touched if address in pci_tree.bridges(view.devices[a])]
        direct = max((link.now for a in below if (link := view.link(a)) is not None), default=0.0)
        uplink = min((view.to_host(a) for a in below), default=0.0)
        shared = uplink / len(touched)
        cost = (
            f", {direct - shared:.1f} of {direct:.1f} GB/s lost when its {len(touched)} devices do so at once" if direct else ""
        )
        yield finding(
            "acs_redirect",
            address,
            f"port {address}: ACS {'+'.join(names)} sends peer-to-peer traffic through the root complex{cost}; `fairlead apply` "
            "clears it (bare metal only)",
            f"ACSCtl 0x{bridge.acs_control:04x}, between {', '.join(touched)}",
            action=Action.PROVISION,
        )


def nvlinks(view: MachineView) -> Iterable[Finding]:
    """Find GPUs with fewer active NVLinks than others of their name here, or with none on a board whose GPUs NVLink joins."""
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for gpu in view.gpus:
        if not isinstance(gpu.nvlinks, Missing):
            counts.setdefault(gpu.name, {})[gpu.pci] = (_active(gpu), len(gpu.nvlinks))
    for name, cards in counts.items():
        rate = link_speed.nvlink_bandwidth(name)
        most = max(active for active, _ in cards.values())
        if not most and len(cards) > 1 and any(word in name for word in SXM):
            most = max(every for _, every in cards.values())
        for pci, (active, _) in cards.items():
            if active >= most:
                continue
            yield finding(
                "nvlink",
                pci,
                f"GPU {pci}: {active} of {most} NVLinks are active, {(most - active) * rate:.1f} of {most * rate:.1f} GB/s lost; "
                "look at the fabric manager and at the links' error counters, then reseat the GPU or its bridge",
                f"{name}: {rate:g} GB/s a link (NCCL's figure)",
                action=Action.CHECK_FABRIC,
            )


def _active(gpu: Accelerator) -> int:
    return 0 if isinstance(gpu.nvlinks, Missing) else sum(1 for link in gpu.nvlinks if link.active is True)
