"""Where everything of the picture of a machine lies: packages and NUMA nodes in a row, the PCI tree below, leaves in one row.

Sizes are pixels. Only what a person looks for is drawn: host bridges, switches, GPUs, NICs, NVMe disks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.model.cpulist import format_cpulist
from fairlead.model.facts import Missing, PciDevice
from fairlead.topology.audit.link_audit import of_chipset
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.distances import locality, pci_tree
from fairlead.topology.distances.accelerators import pci_key

LEAF, GAP, PLACE_MIN = 92, 8, 156
TOP, PLACE_TOP, PLACE_HIGH = 44, 70, 76
ROOT_Y, SWITCH_Y, STEP = 176, 232, 62
NVME = 0x0108


@dataclass
class DeviceBox:
    """A box: ``kind`` root, switch, gpu, nic or nvme. ``address``: of a switch its upstream port, of a root its host bridge."""

    kind: str
    address: str
    lines: tuple[str, ...]
    below: list[DeviceBox] = field(default_factory=list)
    x: float = 0.0  # of its middle
    y: float = 0.0
    wide: float = LEAF

    def leaves(self) -> list[DeviceBox]:
        return [leaf for spot in self.below for leaf in spot.leaves()] if self.below else [self]


@dataclass
class NumaBox:
    """A NUMA node, or -1 for devices of which nobody knows the place."""

    numa: int
    package: int
    lines: tuple[str, ...]
    roots: list[DeviceBox] = field(default_factory=list)
    x: float = 0.0  # of its left side
    wide: float = PLACE_MIN


@dataclass
class SvgLayout:
    places: list[NumaBox]
    packages: list[tuple[int, float, float]]  # number, left, width
    apart: str  # NUMA nodes that are not drawn, in words
    leaf_y: float
    wide: float

    def spots(self) -> list[DeviceBox]:
        def walk(spot: DeviceBox) -> list[DeviceBox]:
            return [spot, *(s for child in spot.below for s in walk(child))]

        return [s for place in self.places for root in place.roots for s in walk(root)]


def layout(scene: MachineView) -> SvgLayout:
    """The layout of one machine."""
    places, apart = _places(scene)
    by_numa = {place.numa: place for place in places}
    for root in _roots(scene):
        homes = [scene.numa(leaf.address) for leaf in root.leaves()]
        home = max(set(homes), key=lambda n: (homes.count(n), -n))
        if home not in by_numa:
            by_numa[home] = NumaBox(home, -1, ("place not known", "to the kernel") if home < 0 else (f"NUMA {home}",))
            places.append(by_numa[home])
        by_numa[home].roots.append(root)
    places.sort(key=lambda p: (p.package < 0, p.package, p.numa))
    depth = max((_depth(root) for place in places for root in place.roots), default=0)
    leaf_y = SWITCH_Y + STEP * depth + 18
    left = 24.0
    packages: list[tuple[int, float, float]] = []
    last = None
    for place in places:
        if last is not None and place.package != last.package:
            left += 20
        last = place
        place.x = left
        inner = sum(_width(root) for root in place.roots) + GAP * max(0, len(place.roots) - 1)
        place.wide = max(PLACE_MIN, inner)
        at = left + (place.wide - inner) / 2
        for root in place.roots:
            _set(root, at, 0, leaf_y)
            at += _width(root) + GAP
        if packages and packages[-1][0] == place.package:
            number, start, _ = packages[-1]
            packages[-1] = (number, start, left + place.wide - start)
        else:
            packages.append((place.package, left, place.wide))
        left += place.wide + 12
    return SvgLayout(places, packages, apart, leaf_y, max(left + 12, 720))


def _places(scene: MachineView) -> tuple[list[NumaBox], str]:
    node = scene.node
    packages: dict[int, list[int]] = {}
    caches: dict[int, set[int]] = {}
    for cpu in node.cpus:
        if cpu.online:
            packages.setdefault(cpu.numa, []).append(cpu.package)
            caches.setdefault(cpu.numa, set()).add(cpu.l3)
    shown = locality.with_cpus(node)
    up = set(locality.online(node))
    places = []
    for numa in shown:
        of = packages.get(numa.id, [-1])
        cores = len({c.siblings for c in node.cpus if c.online and c.numa == numa.id})
        l3 = len(caches.get(numa.id, set()) - {-1})
        memory = "memory not known" if isinstance(numa.memory_bytes, Missing) else f"{numa.memory_bytes / 2**30:.0f} GiB"
        cpus = format_cpulist(tuple(set(numa.cpus) & up)) or "-"
        lines = (f"NUMA {numa.id}", f"CPUs {_short(cpus, 22)}", f"{cores} cores, {l3} L3" if l3 else f"{cores} cores", memory)
        places.append(NumaBox(numa.id, max(set(of), key=of.count), lines))
    others = sorted(n.id for n in node.numa if n not in shown)
    if not places:
        places.append(NumaBox(-1, -1, ("CPUs not described",)))
    return places, f"NUMA nodes without CPUs (memory only): {format_cpulist(tuple(others))}" if others else ""


def _roots(scene: MachineView) -> list[DeviceBox]:
    """The PCI trees that hold a leaf, by address; a device without a path hangs on a root of its own."""
    found: dict[str, DeviceBox] = {}
    for address, leaf in sorted(_leaves(scene).items(), key=lambda item: pci_key(item[0])):
        device = scene.devices.get(address)
        host = pci_tree.host_bridge(device) if device is not None else ""
        at = found.setdefault(host or f"?{address}", DeviceBox("root", host, (host or "no path",)))
        for port in _switches(scene, device):
            inner = next((s for s in at.below if s.address == port.address), None)
            if inner is None:
                inner = DeviceBox("switch", port.address, ("chipset" if of_chipset(port) else "PCIe switch", port.address))
                at.below.append(inner)
            at = inner
        at.below.append(leaf)
    return sorted(found.values(), key=lambda s: pci_key(s.leaves()[0].address))


def _switches(scene: MachineView, device: PciDevice | None) -> list[PciDevice]:
    """The switches above a device: those with several ports below, and chipsets. One with a single port is part of a card."""
    if device is None:
        return []
    return [port for port in scene.uplinks(device.address) if of_chipset(port) or scene.ports_below.get(port.address, 0) > 1]


def _leaves(scene: MachineView) -> dict[str, DeviceBox]:
    """GPUs, NICs (the functions of one card together) and NVMe disks by address."""
    found = {}
    for gpu in scene.gpus:
        name = " ".join(w for w in gpu.name.split() if w not in ("NVIDIA", "AMD", "Tesla", "GeForce", "Instinct"))
        found[gpu.pci] = DeviceBox("gpu", gpu.pci, (f"GPU{gpu.index}", _short(name, 16), gpu.pci))
    cards: dict[str, list[str]] = {}
    for nic in sorted(scene.nics, key=lambda n: pci_key(n.pci)):
        cards.setdefault(nic.pci.partition(".")[0], []).append(nic.pci)
    by_pci = {nic.pci: nic for nic in scene.nics}
    for functions in cards.values():
        first = by_pci[functions[0]]
        rate = "" if isinstance(first.rate_gbps, Missing) else f"{first.rate_gbps:g} Gb/s"
        more = f" +{len(functions) - 1}" if len(functions) > 1 else ""
        found[first.pci] = DeviceBox("nic", first.pci, (f"{first.name}{more}", f"{_layer(first.link_layer)}{rate}", first.pci))
    for device in scene.node.pci:
        if device.class_code >> 8 == NVME and not device.virtual_function and device.address not in found:
            found[device.address] = DeviceBox("nvme", device.address, ("NVMe", "", device.address))
    return found


def _layer(link_layer: str) -> str:
    return {"InfiniBand": "IB ", "Ethernet": "Eth "}.get(link_layer, "")


def _depth(spot: DeviceBox) -> int:
    return max((1 + _depth(s) if s.kind == "switch" else 0 for s in spot.below), default=0)


def _width(spot: DeviceBox) -> float:
    count = len(spot.leaves())
    return max(count * LEAF + (count - 1) * GAP, LEAF)


def _set(spot: DeviceBox, left: float, depth: int, leaf_y: float) -> None:
    spot.wide = LEAF if not spot.below else min(_width(spot), 2 * LEAF if spot.kind == "switch" else LEAF)
    spot.x = left + _width(spot) / 2
    spot.y = leaf_y if not spot.below else ROOT_Y if spot.kind == "root" else SWITCH_Y + STEP * (depth - 1)
    for child in spot.below:
        _set(child, left, depth + 1, leaf_y)
        left += _width(child) + GAP


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
