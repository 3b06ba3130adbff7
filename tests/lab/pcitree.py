"""PCI devices as the kernel shows them: sysfs directories and configuration space bytes.

Layouts: PCI Express Base Specification 6.0, sections 7.5.1 (headers), 7.5.3 (PCI Express capability), 7.7.11 (Access
Control Services) and 7.8.4 (Advanced Error Reporting). Capability offsets of the Intel root port, of the Broadcom
switch and of the endpoints are the ones that lspci prints on such machines. All other values are written by hand.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM = 0, 4, 5, 6
SPEEDS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe",
          6: "64.0 GT/s PCIe"}  # fmt: skip
# Lines of the AER counters (drivers/pci/pcie/aer.c); only those of GPUs and of the ports above them are written
AER = {
    "aer_dev_correctable": (
        "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR",
    ),
    "aer_dev_nonfatal": ("DLP", "FCP", "CmpltTO", "CmpltAbrt", "MalfTLP", "ECRC", "UnsupReq", "ACSViol", "TOTAL_ERR_NONFATAL"),
    "aer_dev_fatal": ("DLP", "SDES", "FCP", "CmpltTO", "CmpltAbrt", "RxOF", "MalfTLP", "ECRC", "TOTAL_ERR_FATAL"),
}  # fmt: skip
ACS_AT_POWER_ON = 0x001D  # what Linux sets where an IOMMU is on: SV, RR, CR, UF


@dataclass(frozen=True)
class Product:
    """One kind of PCI function; `acs_offset` 0 means that it has no ACS capability."""

    vendor: int
    device: int
    class_code: int
    port_type: int
    subsystem: tuple[int, int] = (0, 0)
    revision: int = 0
    driver: str = ""
    pcie_offset: int = 0x60
    aer_offset: int = 0x100
    acs_offset: int = 0
    acs_capabilities: int = 0x1F
    max_payload: int = 256
    max_read_request: int = 512
    config_bytes: int = 4096


@dataclass(frozen=True)
class Function:
    """One PCI function in the tree. `generation` and `width` are what the link can do."""

    address: str
    product: Product
    kind: str
    generation: int = 5
    width: int = 16
    current_generation: int = 0
    current_width: int = 0
    numa_node: int = 0
    acs_control: int = ACS_AT_POWER_ON
    children: tuple[Function, ...] = field(default=())

    def with_children(self, *children: Function) -> Function:
        """The same function with these devices below it."""
        return replace(self, children=children)

    def on_numa_node(self, node: int) -> Function:
        """The same function and all below it on NUMA node `node`."""
        return replace(self, numa_node=node, children=tuple(child.on_numa_node(node) for child in self.children))

    @property
    def bus(self) -> int:
        return int(self.address[5:7], 16)

    @property
    def link(self) -> tuple[int, int]:
        """Current generation and width."""
        return self.current_generation or self.generation, self.current_width or self.width


def walk(functions: tuple[Function, ...], path: str = "") -> Iterator[tuple[Function, str]]:
    """Every function with its directory below /sys/devices/pciDDDD:BB, parents first."""
    for function in functions:
        here = f"{path}/{function.address}" if path else function.address
        yield function, here
        yield from walk(function.children, here)


def last_bus(function: Function) -> int:
    """The highest bus number below a bridge."""
    return max((max(child.bus, last_bus(child)) for child in function.children), default=0)


def config_space(f: Function) -> bytes:
    """Configuration space of one function, as lspci and setpci read it."""
    p = f.product
    bridge = p.port_type != ENDPOINT
    c = bytearray(p.config_bytes)
    struct.pack_into("<HHHH", c, 0, p.vendor, p.device, 0x0547, 0x0010)  # memory, bus master; has capabilities
    c[0x08] = p.revision
    c[0x09:0x0C] = struct.pack("<I", p.class_code)[:3]
    c[0x0E] = 1 if bridge else 0
    if bridge:
        c[0x18], c[0x19], c[0x1A] = f.bus, min((d.bus for d in f.children), default=0), last_bus(f)
    else:
        struct.pack_into("<HH", c, 0x2C, *p.subsystem)
    c[0x34] = p.pcie_offset
    at = p.pcie_offset
    generation, width = f.link
    payload = {128: 0, 256: 1, 512: 2}[p.max_payload]
    read_request = {128: 0, 256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[p.max_read_request]
    slot = 0x100 if p.port_type == DOWNSTREAM else 0
    active = 0x2000 if p.port_type in (ROOT_PORT, DOWNSTREAM) and f.children else 0
    struct.pack_into("<BBH", c, at, 0x10, 0, 2 | p.port_type << 4 | slot)
    struct.pack_into("<I", c, at + 0x04, 0x8000 | payload)  # role based error reporting
    struct.pack_into("<H", c, at + 0x08, 0x001F | payload << 5 | read_request << 12)
    struct.pack_into("<I", c, at + 0x0C, f.generation | f.width << 4 | 0x00400000)
    struct.pack_into("<H", c, at + 0x12, generation | width << 4 | 0x1000 | active)
    if slot:
        struct.pack_into("<H", c, at + 0x1A, 0x0040 if f.children else 0)  # presence detected
    struct.pack_into("<I", c, at + 0x2C, (1 << f.generation + 1) - 2)
    struct.pack_into("<H", c, at + 0x30, f.generation)
    if p.config_bytes > 256:
        _extended_capabilities(c, f)
    return bytes(c)


def _extended_capabilities(c: bytearray, f: Function) -> None:
    p = f.product
    chain = [(p.aer_offset, 0x0001, 2)]
    if p.aer_offset != 0x100:
        chain.insert(0, (0x100, 0x0003, 1))  # Device Serial Number: the list must begin at 0x100
        struct.pack_into("<II", c, 0x104, 0x5F095618, 0x00805EDC)
    if p.acs_offset:
        chain.append((p.acs_offset, 0x000D, 1))
        struct.pack_into("<HH", c, p.acs_offset + 4, p.acs_capabilities, f.acs_control)
    struct.pack_into("<I", c, p.aer_offset + 0x0C, 0x00462030)  # severity: the specification's default
    for (offset, identity, version), following in zip(chain, [*(o for o, _, _ in chain[1:]), 0], strict=True):
        struct.pack_into("<I", c, offset, identity | version << 16 | following << 20)


def link_to(link: Path, target: Path) -> None:
    """A relative symbolic link, as all links in sysfs are."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def put(path: Path, text: object) -> None:
    """One attribute file: its text and a line break."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def write_function(sys: Path, directory: Path, f: Function, local_cpulist: str) -> None:
    """Write one function's directory, its link in sys/bus/pci/devices and its driver's."""
    p = f.product
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config").write_bytes(config_space(f))
    generation, width = f.link
    attributes = {
        "vendor": f"0x{p.vendor:04x}",
        "device": f"0x{p.device:04x}",
        "class": f"0x{p.class_code:06x}",
        "subsystem_vendor": f"0x{p.subsystem[0]:04x}",
        "subsystem_device": f"0x{p.subsystem[1]:04x}",
        "numa_node": f.numa_node,
        "local_cpulist": local_cpulist,
        "current_link_speed": SPEEDS[generation],
        "max_link_speed": SPEEDS[f.generation],
        "current_link_width": width,
        "max_link_width": f.width,
        "irq": 0,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
    }
    if f.kind == "gpu" or any(child.kind == "gpu" for child in f.children):
        attributes |= {name: "\n".join(f"{word} 0" for word in words) for name, words in AER.items()}
    for name, value in attributes.items():
        put(directory / name, value)
    link_to(sys / "bus/pci/devices" / f.address, directory)
    if p.driver:
        link_to(sys / "bus/pci/drivers" / p.driver / f.address, directory)
        link_to(directory / "driver", sys / "bus/pci/drivers" / p.driver)
