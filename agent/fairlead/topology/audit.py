"""The layout audit: what in a machine's wiring costs bandwidth, with how much, and what to do.

Bandwidths are usable GB/s a lane and direction after encoding (PCIe base specification; generation 6 in FLIT mode).
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.facts import Missing, Node, PciDevice, PcieLink
from fairlead.model.finding import Action, Finding, Level, Service
from fairlead.topology import devices, locality, nics, paths, tree

GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}
GENERATION = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
REDIRECT = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x20: "EgressCtrl"}  # PCIe base specification, ACS control register


def audit(node: Node) -> tuple[Finding, ...]:
    """Everything the layout audit finds, GPUs and their NICs first. Levels are WARN: nothing here drains a node."""
    return (*_places(node), *_widths(node), *_far_nics(node), *_redirects(node))


def _finding(check: str, device: str, summary: str, *evidence: str, action: Action = Action.CHECK_HARDWARE) -> Finding:
    return Finding(
        check=f"topology.{check}",
        level=Level.WARN,
        device=device,
        summary=summary,
        evidence=evidence,
        action=action,
        service=Service.KEEP,
    )


def _places(node: Node) -> Iterable[Finding]:
    for gpu in devices.accelerators(node):
        note = locality.of_pci(node, gpu.pci).note
        if note:
            yield _finding("locality", gpu.pci, f"GPU {gpu.pci}: {note}: tasks keep the CPUs that Slurm gave them", note)


def _endpoints(node: Node) -> dict[str, str]:
    """PCI address -> what it is, for GPUs and RDMA devices."""
    named = {gpu.pci: "GPU" for gpu in devices.accelerators(node)}
    for nic in nics.candidates(node):
        named.setdefault(nic.pci, f"NIC {nic.name}")
    return named


def _speed(device: PciDevice, link: PcieLink) -> int:
    """The link's generation as far as it can go; 0 unknown."""
    if not isinstance(link.gen_max, Missing):
        return link.gen_max
    return GENERATION.get(device.link_speed.split(" ", maxsplit=1)[0], 0)


def _widths(node: Node) -> Iterable[Finding]:
    """A link trained below the width that it and the port above it can do. Speed is not judged here: an idle GPU's is low."""
    by_address = tree.by_address(node)
    links = {gpu.pci: gpu.pcie for gpu in devices.accelerators(node)}
    for address, what in _endpoints(node).items():
        device = by_address.get(address)
        if device is None:
            continue
        link = device.link if not isinstance(device.link, Missing) else links.get(address, device.link)
        if isinstance(link, Missing) or isinstance(link.width_current, Missing) or isinstance(link.width_max, Missing):
            continue
        able = link.width_max
        port = by_address.get(tree.bridges(device)[-1]) if tree.bridges(device) else None
        if port is not None and isinstance(port.link, PcieLink) and isinstance(port.link.width_max, int) and port.link.width_max:
            able = min(able, port.link.width_max)
        if not 0 < link.width_current < able:
            continue
        lane = GB_PER_LANE.get(_speed(device, link), 0.0)
        lost = f", {lane * (able - link.width_current):.1f} of {lane * able:.1f} GB/s lost" if lane else ""
        yield _finding(
            "link_width",
            address,
            f"{what} {address}: PCIe link is x{link.width_current} instead of x{able}{lost}",
            f"current_link_width {link.width_current}, max_link_width {link.width_max}",
        )


def _far_nics(node: Node) -> Iterable[Finding]:
    """A GPU without a NIC on its side, while the node has RDMA devices."""
    every = nics.candidates(node)
    if not every:
        return
    for gpu in devices.accelerators(node):
        if not nics.nearest(node, gpu.pci)[0]:
            yield _finding(
                "nic_distance",
                gpu.pci,
                f"GPU {gpu.pci} has no NIC on its NUMA node: its network traffic crosses the sockets",
                *(f"{n.name} {n.pci}: {paths.nccl(node, gpu.pci, n.pci)}" for n in every),
            )


def _redirects(node: Node) -> Iterable[Finding]:
    """ACS bits that send peer-to-peer traffic up to the root, on a port between two endpoints of one switch."""
    by_address = tree.by_address(node)
    ends = [by_address[a] for a in _endpoints(node) if a in by_address]
    on_path: dict[str, set[str]] = {}
    for i, a in enumerate(ends):
        for b in ends[i + 1 :]:
            for port in tree.ports_between(a, b):
                on_path.setdefault(port, set()).update((a.address, b.address))
    for address in sorted(on_path, key=devices.pci_key):
        bridge = by_address.get(address)
        if bridge is None or not isinstance(bridge.acs_control, int):
            continue
        names = [name for bit, name in REDIRECT.items() if bridge.acs_control & bit]
        if names:
            yield _finding(
                "acs_redirect",
                address,
                f"port {address}: ACS {'+'.join(names)} sends peer-to-peer traffic through the root complex",
                f"ACSCtl 0x{bridge.acs_control:04x}, between {', '.join(sorted(on_path[address], key=devices.pci_key))}",
                action=Action.PROVISION,
            )
