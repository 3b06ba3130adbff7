"""Positions of everything in the drawing of a machine: packages and NUMA nodes in a row, the PCI tree below, leaves in one row.

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

LEAF, GAP, NUMA_BOX_MIN = 92, 8, 156
TOP, NUMA_BOX_TOP, NUMA_BOX_HIGH = 44, 70, 76
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
        return [leaf for box in self.below for leaf in box.leaves()] if self.below else [self]


@dataclass
class NumaBox:
    """The box of a NUMA node; ``numa`` is -1 for devices of unknown locality."""

    numa: int
    package: int
    lines: tuple[str, ...]
    roots: list[DeviceBox] = field(default_factory=list)
    x: float = 0.0  # of its left side
    wide: float = NUMA_BOX_MIN


@dataclass
class SvgLayout:
    numa_boxes: list[NumaBox]
    packages: list[tuple[int, float, float]]  # number, left, width
    detached: str  # NUMA nodes that are not drawn, in words
    leaf_y: float
    wide: float

    def boxes(self) -> list[DeviceBox]:
        def walk(box: DeviceBox) -> list[DeviceBox]:
            return [box, *(s for child in box.below for s in walk(child))]

        return [s for numa_box in self.numa_boxes for root in numa_box.roots for s in walk(root)]


def layout(view: MachineView) -> SvgLayout:
    """Return the layout of one machine."""
    numa_boxes, detached = _numa_boxes(view)
    by_numa = {numa_box.numa: numa_box for numa_box in numa_boxes}
    for root in _roots(view):
        homes = [view.numa(leaf.address) for leaf in root.leaves()]
        home = max(set(homes), key=lambda n: (homes.count(n), -n))
        if home not in by_numa:
            by_numa[home] = NumaBox(home, -1, ("place not known", "to the kernel") if home < 0 else (f"NUMA {home}",))
            numa_boxes.append(by_numa[home])
        by_numa[home].roots.append(root)
    numa_boxes.sort(key=lambda p: (p.package < 0, p.package, p.numa))
    depth = max((_depth(root) for numa_box in numa_boxes for root in numa_box.roots), default=0)
    leaf_y = SWITCH_Y + STEP * depth + 18
    x = 24.0
    packages: list[tuple[int, float, float]] = []
    last = None
    for numa_box in numa_boxes:
        if last is not None and numa_box.package != last.package:
            x += 20
        last = numa_box
        numa_box.x = x
        inner = sum(_width(root) for root in numa_box.roots) + GAP * max(0, len(numa_box.roots) - 1)
        numa_box.wide = max(NUMA_BOX_MIN, inner)
        at = x + (numa_box.wide - inner) / 2
        for root in numa_box.roots:
            _position(root, at, 0, leaf_y)
            at += _width(root) + GAP
        if packages and packages[-1][0] == numa_box.package:
            number, start, _ = packages[-1]
            packages[-1] = (number, start, x + numa_box.wide - start)
        else:
            packages.append((numa_box.package, x, numa_box.wide))
        x += numa_box.wide + 12
    return SvgLayout(numa_boxes, packages, detached, leaf_y, max(x + 12, 720))


def _numa_boxes(view: MachineView) -> tuple[list[NumaBox], str]:
    node = view.node
    packages: dict[int, list[int]] = {}
    caches: dict[int, set[int]] = {}
    for cpu in node.cpus:
        if cpu.online:
            packages.setdefault(cpu.numa, []).append(cpu.package)
            caches.setdefault(cpu.numa, set()).add(cpu.l3)
    shown = locality.with_cpus(node)
    up = set(locality.online(node))
    numa_boxes = []
    for numa in shown:
        of = packages.get(numa.id, [-1])
        cores = len({c.siblings for c in node.cpus if c.online and c.numa == numa.id})
        l3 = len(caches.get(numa.id, set()) - {-1})
        memory = "memory not known" if isinstance(numa.memory_bytes, Missing) else f"{numa.memory_bytes / 2**30:.0f} GiB"
        cpus = format_cpulist(tuple(set(numa.cpus) & up)) or "-"
        lines = (f"NUMA {numa.id}", f"CPUs {_short(cpus, 22)}", f"{cores} cores, {l3} L3" if l3 else f"{cores} cores", memory)
        numa_boxes.append(NumaBox(numa.id, max(set(of), key=of.count), lines))
    others = sorted(n.id for n in node.numa if n not in shown)
    if not numa_boxes:
        numa_boxes.append(NumaBox(-1, -1, ("CPUs not described",)))
    return numa_boxes, f"NUMA nodes without CPUs (memory only): {format_cpulist(tuple(others))}" if others else ""


def _roots(view: MachineView) -> list[DeviceBox]:
    """Return the PCI trees that hold a leaf, by address; a device without a path is below a root of its own."""
    found: dict[str, DeviceBox] = {}
    for address, leaf in sorted(_leaves(view).items(), key=lambda item: pci_key(item[0])):
        device = view.devices.get(address)
        host = pci_tree.host_bridge(device) if device is not None else ""
        at = found.setdefault(host or f"?{address}", DeviceBox("root", host, (host or "no path",)))
        for port in _switches(view, device):
            inner = next((s for s in at.below if s.address == port.address), None)
            if inner is None:
                inner = DeviceBox("switch", port.address, ("chipset" if of_chipset(port) else "PCIe switch", port.address))
                at.below.append(inner)
            at = inner
        at.below.append(leaf)
    return sorted(found.values(), key=lambda s: pci_key(s.leaves()[0].address))


def _switches(view: MachineView, device: PciDevice | None) -> list[PciDevice]:
    """Return the switches above a device that have several ports below, and chipsets: one with one port is part of a card."""
    if device is None:
        return []
    return [port for port in view.uplinks(device.address) if of_chipset(port) or view.ports_below.get(port.address, 0) > 1]


def _leaves(view: MachineView) -> dict[str, DeviceBox]:
    """Return the boxes of GPUs, NICs (the functions of one card together) and NVMe disks by address."""
    found = {}
    for gpu in view.gpus:
        name = " ".join(w for w in gpu.name.split() if w not in ("NVIDIA", "AMD", "Tesla", "GeForce", "Instinct"))
        found[gpu.pci] = DeviceBox("gpu", gpu.pci, (f"GPU{gpu.index}", _short(name, 16), gpu.pci))
    cards: dict[str, list[str]] = {}
    for nic in sorted(view.nics, key=lambda n: pci_key(n.pci)):
        cards.setdefault(nic.pci.partition(".")[0], []).append(nic.pci)
    by_pci = {nic.pci: nic for nic in view.nics}
    for functions in cards.values():
        first = by_pci[functions[0]]
        rate = "" if isinstance(first.rate_gbps, Missing) else f"{first.rate_gbps:g} Gb/s"
        more = f" +{len(functions) - 1}" if len(functions) > 1 else ""
        found[first.pci] = DeviceBox("nic", first.pci, (f"{first.name}{more}", f"{_layer(first.link_layer)}{rate}", first.pci))
    for device in view.node.pci:
        if device.class_code >> 8 == NVME and not device.virtual_function and device.address not in found:
            found[device.address] = DeviceBox("nvme", device.address, ("NVMe", "", device.address))
    return found


def _layer(link_layer: str) -> str:
    return {"InfiniBand": "IB ", "Ethernet": "Eth "}.get(link_layer, "")


def _depth(box: DeviceBox) -> int:
    return max((1 + _depth(s) if s.kind == "switch" else 0 for s in box.below), default=0)


def _width(box: DeviceBox) -> float:
    count = len(box.leaves())
    return max(count * LEAF + (count - 1) * GAP, LEAF)


def _position(box: DeviceBox, x: float, depth: int, leaf_y: float) -> None:
    box.wide = LEAF if not box.below else min(_width(box), 2 * LEAF if box.kind == "switch" else LEAF)
    box.x = x + _width(box) / 2
    box.y = leaf_y if not box.below else ROOT_Y if box.kind == "root" else SWITCH_Y + STEP * (depth - 1)
    for child in box.below:
        _position(child, x, depth + 1, leaf_y)
        x += _width(child) + GAP


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
