"""Computes the positions in the drawing of a machine. It has packages, in them NUMA nodes, in them PCI trees as indented lists.

Sizes are pixels. A drawing is at most ``WIDE`` wide, because a README shows this width without scaling. A box that does not fit
beside another box is put below it. Only these devices are drawn: host bridges, switches, GPUs, NICs and NVMe disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairlead.model.cpulist import format_cpulist
from fairlead.model.facts import Missing, PciDevice
from fairlead.topology.audit.link_audit import of_chipset
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.distances import locality, pci_tree
from fairlead.topology.distances.accelerators import pci_key

WIDE = 830
MARGIN, GAP, INDENT, ROW_GAP = 16, 10, 14, 6
LEAF, NUMA_MIN = 154.0, 184.0
FRAME, FRAME_TOP, TITLE_HIGH = 8, 26, 44  # the margins around the NUMA nodes of a package, and the height of the picture's title
NUMA_PAD, LINE_HIGH = 8, 16
HIGH = {"gpu": 50.0, "nic": 50.0, "nvme": 36.0, "switch": 36.0, "root": 22.0}
NVME = 0x0108


@dataclass
class Box:
    """Holds a rectangle by its upper left corner."""

    x: float = 0.0
    y: float = 0.0
    wide: float = 0.0
    high: float = 0.0


@dataclass
class DeviceBox(Box):
    """Holds the box of a device. kind: root, switch, gpu, nic or nvme. address: the device's PCI address. For a switch it is the
    upstream port, for a root the host bridge."""

    kind: str = ""
    address: str = ""
    lines: tuple[str, ...] = ()
    below: list[DeviceBox] = field(default_factory=list)

    def leaves(self) -> list[DeviceBox]:
        return [leaf for box in self.below for leaf in box.leaves()] if self.below else [self]

    def tree(self) -> list[DeviceBox]:
        """Return this box and all boxes below it."""
        return [self, *(inner for child in self.below for inner in child.tree())]


@dataclass
class NumaBox(Box):
    """Holds the box of a NUMA node around its PCI trees. ``numa`` is -1 for devices of unknown locality."""

    numa: int = -1
    package: int = -1
    lines: tuple[str, ...] = ()
    roots: list[DeviceBox] = field(default_factory=list)


@dataclass
class PackageBox(Box):
    """Holds the frame around the NUMA nodes of a package. ``number`` is -1 if the package is not known."""

    number: int = -1
    numa_boxes: list[NumaBox] = field(default_factory=list)


@dataclass
class SvgLayout:
    """Holds the positions of all boxes. ``bottom``: the y below the last box."""

    packages: list[PackageBox]
    detached: str  # a text about the NUMA nodes that are not drawn
    bottom: float
    wide: float

    @property
    def numa_boxes(self) -> list[NumaBox]:
        return [numa_box for package in self.packages for numa_box in package.numa_boxes]

    def boxes(self) -> list[DeviceBox]:
        """Return the boxes of all devices."""
        return [box for numa_box in self.numa_boxes for root in numa_box.roots for box in root.tree()]


def layout(view: MachineView) -> SvgLayout:
    """Return the layout of one machine."""
    numa_boxes, detached = _numa_boxes(view)
    by_numa = {numa_box.numa: numa_box for numa_box in numa_boxes}
    for root in _roots(view):
        homes = [view.numa(leaf.address) for leaf in root.leaves()]
        home = max(set(homes), key=lambda n: (homes.count(n), -n))
        if home not in by_numa:
            lines = ("place not known", "to the kernel") if home < 0 else (f"NUMA {home}",)
            by_numa[home] = NumaBox(numa=home, lines=lines)
            numa_boxes.append(by_numa[home])
        by_numa[home].roots.append(root)
    within = WIDE - 2 * MARGIN
    packages: list[PackageBox] = []
    for numa_box in sorted(numa_boxes, key=lambda box: (box.package < 0, box.package, box.numa)):
        if not packages or packages[-1].number != numa_box.package:
            packages.append(PackageBox(number=numa_box.package))
        packages[-1].numa_boxes.append(numa_box)
        _arrange_numa(numa_box, within - 2 * FRAME)
    for package in packages:
        inner = _columns(package.numa_boxes, within - 2 * FRAME)
        package.wide, package.high = inner.wide + 2 * FRAME, inner.high + FRAME_TOP + FRAME
    whole = _columns(packages, within)
    for package in packages:
        _move_package(package, MARGIN, TITLE_HIGH)
    return SvgLayout(packages, detached, TITLE_HIGH + whole.high, WIDE)


def _arrange_numa(numa_box: NumaBox, within: float) -> None:
    """Set the size of a NUMA node's box, and the positions of its PCI trees in it."""
    head = NUMA_PAD + LINE_HIGH * len(numa_box.lines) + ROW_GAP
    trees = [_arrange_tree(root, 0, 0) for root in numa_box.roots]
    inner = _columns(trees, within - 2 * NUMA_PAD)
    for root, tree in zip(numa_box.roots, trees, strict=True):
        _move(root.tree(), tree.x + NUMA_PAD, tree.y + head)
    numa_box.wide = max(NUMA_MIN, inner.wide + 2 * NUMA_PAD)
    numa_box.high = head + inner.high + (NUMA_PAD if trees else 0)


def _columns(boxes: Sequence[Box], within: float) -> Box:
    """Put boxes into as many columns as fit beside each other, each box below the shortest column. Return the space they take."""
    widest = max((box.wide for box in boxes), default=0.0)
    count = max(1, min(len(boxes), int((within + GAP) / (widest + GAP))))
    columns: list[list[Box]] = [[] for _ in range(count)]
    high = [0.0] * count
    for box in boxes:
        at = high.index(min(high))
        box.y = high[at]
        high[at] += box.high + GAP
        columns[at].append(box)
    x = 0.0
    for column in columns:
        for box in column:
            box.x = x
        x += max((box.wide for box in column), default=0.0) + GAP
    return Box(0.0, 0.0, max(0.0, x - GAP), max(0.0, max(high) - GAP))


def _arrange_tree(box: DeviceBox, x: float, y: float) -> Box:
    """Put a box at ``x``, ``y`` and the boxes below it in an indented list. Return the space that they take."""
    box.x, box.y, box.wide, box.high = x, y, LEAF, HIGH[box.kind]
    wide, at = box.wide, y + box.high
    for child in box.below:
        inner = _arrange_tree(child, x + INDENT, at + ROW_GAP)
        wide, at = max(wide, INDENT + inner.wide), at + ROW_GAP + inner.high
    return Box(x, y, wide, at - y)


def _move_package(package: PackageBox, x: float, y: float) -> None:
    """Move a package and all boxes in it. Before this call, the positions of these boxes are relative to the package's frame."""
    _move([package], x, y)
    for numa_box in package.numa_boxes:
        _move([numa_box], package.x + FRAME, package.y + FRAME_TOP)
        for root in numa_box.roots:
            _move(root.tree(), numa_box.x, numa_box.y)


def _move(boxes: Iterable[Box], x: float, y: float) -> None:
    for box in boxes:
        box.x, box.y = box.x + x, box.y + y


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
        lines = (f"NUMA {numa.id}", f"CPUs {_short(cpus, 22)}", _cores(cores) + (f", {l3} L3" if l3 else ""), memory)
        numa_boxes.append(NumaBox(numa=numa.id, package=max(set(of), key=of.count), lines=lines))
    others = sorted(n.id for n in node.numa if n not in shown)
    if not numa_boxes:
        numa_boxes.append(NumaBox(lines=("CPUs not described",)))
    what = "GPU memory" if any(gpu.c2c for gpu in view.gpus) else "memory only"
    return numa_boxes, f"NUMA nodes without CPUs ({what}): {format_cpulist(tuple(others))}" if others else ""


def _roots(view: MachineView) -> list[DeviceBox]:
    """Return the PCI trees that have a GPU, NIC or NVMe disk, in the order of addresses. A device without a path is below a root
    of its own."""
    found: dict[str, DeviceBox] = {}
    for address, leaf in sorted(_leaves(view).items(), key=lambda item: pci_key(item[0])):
        device = view.devices.get(address)
        host = pci_tree.host_bridge(device) if device is not None else ""
        at = found.setdefault(host or f"?{address}", DeviceBox(kind="root", address=host, lines=(host or "no path",)))
        for port in _switches(view, device):
            inner = next((s for s in at.below if s.address == port.address), None)
            if inner is None:
                name = "chipset" if of_chipset(port) else "PCIe switch"
                inner = DeviceBox(kind="switch", address=port.address, lines=(name, port.address))
                at.below.append(inner)
            at = inner
        at.below.append(leaf)
    return sorted(found.values(), key=lambda s: pci_key(s.leaves()[0].address))


def _switches(view: MachineView, device: PciDevice | None) -> list[PciDevice]:
    """Return the chipsets and the switches with several downstream ports above a device. A switch with one downstream port is
    part of a card."""
    if device is None:
        return []
    return [port for port in view.uplinks(device.address) if of_chipset(port) or view.ports_below.get(port.address, 0) > 1]


def _leaves(view: MachineView) -> dict[str, DeviceBox]:
    """Return the boxes of GPUs, NICs (the functions of one card together) and NVMe disks by address."""
    found = {}
    for gpu in view.gpus:
        name = " ".join(w for w in gpu.name.split() if w not in ("NVIDIA", "AMD", "Tesla", "GeForce", "Instinct"))
        found[gpu.pci] = DeviceBox(kind="gpu", address=gpu.pci, lines=(f"GPU{gpu.index}", name, gpu.pci))
    cards: dict[str, list[str]] = {}
    for nic in sorted(view.nics, key=lambda n: pci_key(n.pci)):
        cards.setdefault(nic.pci.partition(".")[0], []).append(nic.pci)
    by_pci = {nic.pci: nic for nic in view.nics}
    for functions in cards.values():
        first = by_pci[functions[0]]
        rate = "" if isinstance(first.rate_gbps, Missing) else f"{first.rate_gbps:g} Gb/s"
        more = f" +{len(functions) - 1}" if len(functions) > 1 else ""
        lines = (f"{first.name}{more}", f"{_layer(first.link_layer)}{rate}", first.pci)
        found[first.pci] = DeviceBox(kind="nic", address=first.pci, lines=lines)
    for device in view.node.pci:
        if device.class_code >> 8 == NVME and not device.virtual_function and device.address not in found:
            found[device.address] = DeviceBox(kind="nvme", address=device.address, lines=("NVMe", device.address))
    return found


def _layer(link_layer: str) -> str:
    return {"InfiniBand": "IB ", "Ethernet": "Eth "}.get(link_layer, "")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"
