"""Lists the GPUs of a node for topology and binding: GPUs that the driver knows, and GPUs that only the PCI bus shows.

A GPU that the driver has lost, or whose driver does not answer, is still in the PCI tree. fairlead reads AMD's GPUs only from the
PCI tree, and uses no AMD library.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from fairlead.model.facts import Gpu, Missing, Node, NvLink, PciDevice, PcieLink, unreadable
from fairlead.model.pci_kind import is_console

NVIDIA, AMD, AMD_CPU = 0x10DE, 0x1002, 0x1022
VGA, THREE_D, DISPLAY, ACCELERATOR = 0x0300, 0x0302, 0x0380, 0x1200  # PCI class codes (PCI Code and ID Assignment)
# GPUs that NVLink-C2C joins to their CPU, by name and by device id (https://pci-ids.ucw.cz): GH200, GB200, GB300, GB10.
C2C = frozenset({0x2342, 0x2348, 0x2941})
C2C_NAMES = ("GH200", "GB200", "GB300", "GB10")
NAMES = {
    (AMD, 0x7408): "AMD MI250X",
    (AMD, 0x740C): "AMD MI250X",
    (AMD, 0x740F): "AMD MI210",
    (AMD, 0x74A0): "AMD MI300A",
    (AMD, 0x74A1): "AMD MI300X",
    (AMD, 0x74A5): "AMD MI325X",
    (AMD, 0x75A0): "AMD MI350X",
    (AMD, 0x75A3): "AMD MI355X",
}


class Linked(Protocol):
    """Names the attributes of a GPU that the rules for path classes need."""

    @property
    def pci(self) -> str: ...
    @property
    def nvlinks(self) -> tuple[NvLink, ...] | Missing: ...


class Accelerator(Struct, frozen=True, kw_only=True):
    """Describes one GPU on the PCI bus. named: the driver knows it. c2c: NVLink-C2C joins it to its CPU."""

    pci: str
    index: int  # the driver's index; GPUs that the driver does not know have higher numbers
    vendor: str  # "NVIDIA" | "AMD"
    name: str
    named: bool
    uuid: str | Missing
    minor: int | Missing
    nvlinks: tuple[NvLink, ...] | Missing
    pcie: PcieLink | Missing
    c2c: bool = False
    passed_through: bool = False  # it is bound to vfio-pci and belongs to a guest


_UNASKED = unreadable("the driver does not name this GPU")


def pci_key(address: str) -> tuple[int, int, int, int]:
    """Return a sort key of a PCI address. Domains may be wider than 16 bits. An address of another form sorts last."""
    head, _, function = address.partition(".")
    parts = head.split(":")
    try:
        return (int(parts[0], 16), int(parts[1], 16), int(parts[2], 16), int(function, 16))
    except (IndexError, ValueError):
        return (1 << 32, 0, 0, 0)


def on_the_bus(node: Node) -> tuple[PciDevice, ...]:
    """Return the GPUs that the PCI bus shows, by vendor and class, in PCI order.

    Virtual functions, a server's console graphics, and the graphics part of an AMD processor are left out. The graphics part
    shares its PCI device with functions of the processor (vendor 1022).
    """
    processor = {d.address.partition(".")[0] for d in node.pci if d.vendor == AMD_CPU}
    found = []
    for d in node.pci:
        kind = d.class_code >> 8
        if d.virtual_function or d.vendor not in (NVIDIA, AMD) or is_console(d):
            continue
        if kind in (VGA, THREE_D) or (d.vendor == AMD and kind in (DISPLAY, ACCELERATOR)):
            if d.vendor == AMD and kind in (VGA, DISPLAY) and d.address.partition(".")[0] in processor:
                continue
            found.append(d)
    return tuple(sorted(found, key=lambda d: pci_key(d.address)))


def accelerators(node: Node) -> tuple[Accelerator, ...]:
    """Return every GPU in PCI order, which is CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    GPUs that the driver knows have the driver's index. The other GPUs on the bus have the numbers after the driver's last index.
    """
    named = () if isinstance(node.gpus, Missing) else node.gpus
    by_address = {d.address: d for d in node.pci}
    found = [_of_driver(gpu, by_address.get(gpu.pci)) for gpu in named]
    known = {gpu.pci for gpu in named}
    following = max((gpu.index for gpu in named), default=-1) + 1
    for device in on_the_bus(node):
        if device.address not in known:
            found.append(_of_bus(device, following, _xgmi(node, device.address)))
            following += 1
    return tuple(sorted(found, key=lambda g: pci_key(g.pci)))


def for_jobs(node: Node) -> tuple[Accelerator, ...]:
    """Return the GPUs that Slurm can assign to jobs as GRES: those that the driver knows, or AMD's if the bus shows no NVIDIA
    GPU."""
    every = accelerators(node)
    if any(g.vendor == "NVIDIA" for g in every):
        return tuple(g for g in every if g.named)
    return tuple(g for g in every if not g.passed_through)


def _of_driver(gpu: Gpu, device: PciDevice | None) -> Accelerator:
    return Accelerator(
        pci=gpu.pci,
        index=gpu.index,
        vendor="AMD" if device is not None and device.vendor == AMD else "NVIDIA",
        name="NVIDIA GPU" if isinstance(gpu.name, Missing) else gpu.name,
        named=True,
        uuid=gpu.uuid,
        minor=gpu.minor,
        nvlinks=gpu.nvlinks,
        pcie=gpu.pcie,
        c2c=(device is not None and device.vendor == NVIDIA and device.device in C2C)
        or (isinstance(gpu.name, str) and any(name in gpu.name.split() for name in C2C_NAMES)),
    )


def _of_bus(device: PciDevice, index: int, wires: tuple[NvLink, ...]) -> Accelerator:
    vendor = "NVIDIA" if device.vendor == NVIDIA else "AMD"
    return Accelerator(
        pci=device.address,
        index=index,
        vendor=vendor,
        name=NAMES.get((device.vendor, device.device), f"{vendor} GPU"),
        named=False,
        uuid=_UNASKED,
        minor=_UNASKED,
        nvlinks=wires or _UNASKED,
        pcie=_UNASKED,
        c2c=device.vendor == NVIDIA and device.device in C2C,
        passed_through=device.driver == "vfio-pci",
    )


def _xgmi(node: Node, address: str) -> tuple[NvLink, ...]:
    """Return AMD's XGMI links as NVLinks, because RCCL treats both in the same way (src/graph/paths.cc, PATH_NVL)."""
    peers = [(link.b if link.a == address else link.a, link.count) for link in node.gpu_links if address in (link.a, link.b)]
    wires = [peer for peer, count in peers for _ in range(count)]
    return tuple(NvLink(link=i, active=True, remote=peer) for i, peer in enumerate(wires))
