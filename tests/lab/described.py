"""Machine trees from short descriptions: tests/machines/described/NAME.toml has facts of a public machine, with their sources.

The tree tests the profile of the same name (up to the first point), so its facts come from other sources than the values of the
profile: a tree and a profile from one source would prove only each other. Facts that are not public (``invented`` names them) are
those of a machine of the lab.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fairlead import config
from fairlead.config import Document
from fairlead.config.site import profile_layer
from tests.lab import models
from tests.lab.gpufacts import NO_ERRORS_SEEN
from tests.lab.machines import read_nvml, write_nvml, write_tree
from tests.lab.models import GpuModel, Model, RootComplex
from tests.lab.pcitree import DOWNSTREAM, ENDPOINT, ROOT_PORT, UPSTREAM, Function, Product

LIKE = {"H100": models.H100, "A100": models.A100, "L40S": models.L40S}
_BRIDGE = Product(0x1000, 0xC030, 0x060400, UPSTREAM, driver="pcieport", pcie_offset=0x68, aer_offset=0x1F0)
_CX = Product(0x15B3, 0x1021, 0x020700, ENDPOINT, (0x15B3, 0x0041), driver="mlx5_core")
#: What a word of the PCI tree means: the product, the kind, and the generation of the link.
FUNCTIONS: dict[str, tuple[Product, str, int]] = {
    "intel": (replace(_BRIDGE, vendor=0x8086, device=0x352A, port_type=ROOT_PORT, acs_offset=0x220), "bridge", 5),
    "amd": (replace(_BRIDGE, vendor=0x1022, device=0x1483, port_type=ROOT_PORT, acs_offset=0x2A0), "bridge", 4),
    "grace": (replace(_BRIDGE, vendor=0x10DE, device=0x22B1, port_type=ROOT_PORT, acs_offset=0x2A0), "bridge", 5),
    "pex5-up": (_BRIDGE, "bridge", 5),
    "pex5-down": (replace(_BRIDGE, port_type=DOWNSTREAM, acs_offset=0x170, acs_capabilities=0x5F), "bridge", 5),
    "pex4-up": (replace(_BRIDGE, device=0xC010), "bridge", 4),
    "pex4-down": (replace(_BRIDGE, device=0xC010, port_type=DOWNSTREAM, acs_offset=0x170), "bridge", 4),
    "cx8-up": (replace(_BRIDGE, vendor=0x15B3, device=0x197C), "bridge", 6),
    "cx8-down": (replace(_BRIDGE, vendor=0x15B3, device=0x197C, port_type=DOWNSTREAM, acs_offset=0x170), "bridge", 6),
    "cx8-dma": (replace(_CX, device=0x2100, class_code=0x080100), "dma", 6),
    "cx8-ib": (replace(_CX, device=0x1023), "infiniband", 6),
    "cx7-ib": (_CX, "infiniband", 5),
    "cx7-eth": (replace(_CX, class_code=0x020000), "ethernet", 5),
    "cx6-ib": (replace(_CX, device=0x101B), "infiniband", 4),
    "nvswitch-bridge": (_CX, "infiniband", 5),  # a ConnectX-7 function by which the fabric manager reaches an NVSwitch
    "nvswitch": (Product(0x10DE, 0x22A3, 0x068000, ENDPOINT, driver="nvidia-nvswitch", config_bytes=256), "nvswitch", 2),
    "slingshot": (Product(0x17DB, 0x0501, 0x020000, ENDPOINT, (0x17DB, 0x0601), driver="cxi_ss1"), "lan", 4),
    "lan": (Product(0x8086, 0x1563, 0x020000, ENDPOINT, driver="ixgbe", config_bytes=256), "lan", 3),
    "nvme": (Product(0x144D, 0xA80A, 0x010802, ENDPOINT, driver="nvme", config_bytes=256), "nvme", 4),
}
_WORD = re.compile(r"(g)([1-6])|(x)([0-9]{1,2})|(node=)([0-9]{1,2})")


class Server(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes processors and memory. ``memory_mib``: of each NUMA node with CPUs. ``gpu_memory_mib``: by the number of a NUMA
    node without CPUs; ``nodes``: how many NUMA nodes there are in all."""

    source: tuple[str, ...]
    cpu: str
    cpu_name: str
    sockets: int
    cores_per_socket: int
    memory_mib: int
    vendor: str = "Lab"
    product: str = "GPU server"
    threads: int = 1
    numa_nodes: int = 0
    nodes: int = 0
    gpu_memory_mib: dict[str, int] = {}
    interleaved: bool = False
    controllers: int = 8
    daemons: tuple[str, ...] = ()
    iommu: str = "identity"
    infiniband_rate: str = ""
    ethernet_mbps: int = 200000


class Card(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes the GPU. ``like``: the GPU of the lab whose values stand for those that are not given."""

    source: tuple[str, ...]
    like: str
    device: int
    facts: dict[str, Any]
    subsystem: int = 0


class Links(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes the NVLinks of each GPU. ``active``: the numbers of the active links of those that NVML lists. ``mesh``: how many
    lead to each other GPU; ``pairs``: bridged GPUs, by index. Without either of them, all lead to switches."""

    source: tuple[str, ...]
    listed: int
    active: tuple[int, ...] | None = None
    mesh: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    version: int = 4


class Pci(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the PCI tree, one function in a line, two spaces below its bridge: address, word of ``FUNCTIONS`` (or gpu),
    generation, width, and for a root port its NUMA node."""

    source: tuple[str, ...]
    tree: str


class Description(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    summary: str
    invented: str
    server: Server
    gpu: Card
    nvlink: Links
    pci: Pci

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(s for block in (self.server, self.gpu, self.nvlink, self.pci) for s in block.source)


def read_description(file: Path) -> Description:
    """Raises msgspec.ValidationError (a ValueError) for a file of another form."""
    return msgspec.toml.decode(file.read_bytes(), type=Description)


def _function(line: str, gpu: GpuModel) -> tuple[int, Function]:
    """Return the depth of a line of the PCI tree, and its function."""
    address, word, *more = line.split()
    named = {"gpu": (gpu.product, "gpu", gpu.pcie_generation), **FUNCTIONS}
    if word not in named:
        raise ValueError(f"{line.strip()}: no such word: {word}")
    product, kind, generation = named[word]
    values = {"g": generation, "x": 2 if kind == "nvswitch" else 16, "node=": 0}
    for text in more:
        match = _WORD.fullmatch(text)
        if match is None:
            raise ValueError(f"{line.strip()}: {text}")
        letters = [group for group in match.groups() if group]
        values[letters[0]] = int(letters[1])
    depth = (len(line) - len(line.lstrip())) // 2
    return depth, Function(address, product, kind, values["g"], values["x"], numa_node=values["node="])


def _nested(rows: list[tuple[int, Function]]) -> Iterator[Function]:
    """Yield the functions of the outermost depth, each with those below it as its children."""
    while rows:
        depth, function = rows.pop(0)
        below = []
        while rows and rows[0][0] > depth:
            below.append(rows.pop(0))
        yield replace(function, children=tuple(_nested(below)))


def _roots(description: Description, gpu: GpuModel) -> tuple[RootComplex, ...]:
    rows = [_function(line, gpu) for line in description.pci.tree.splitlines() if line.strip()]
    roots = {}
    for port in _nested(rows):
        domain, bus = (int(part, 16) for part in port.address.split(":")[:2])
        ports = roots.setdefault((domain, bus, port.numa_node), [])
        ports.append(port.on_numa_node(port.numa_node))
    return tuple(RootComplex(bus, numa, tuple(ports), domain) for (domain, bus, numa), ports in roots.items())


def model_of(name: str, description: Description) -> Model:
    """Return the machine as a model of the lab."""
    server, card = description.server, description.gpu
    like = LIKE[card.like]
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in card.facts.items()}
    product = replace(like.product, device=card.device, subsystem=(0x10DE, card.subsystem))
    memory = {key: int(value) << 20 for key, value in given.items() if key.endswith("_mib")}
    plain = {key: value for key, value in given.items() if not key.endswith("_mib")}
    plain |= {key.replace("_mib", "_bytes"): value for key, value in memory.items()}
    gpu = replace(like, gres_type=name, product=product, nvlinks=description.nvlink.listed,
                  nvlink_version=description.nvlink.version, **plain)  # fmt: skip
    numa_nodes = server.numa_nodes or server.sockets
    without = range(numa_nodes, max(server.nodes, numa_nodes))
    return Model(
        name=name, vendor=server.vendor, product=server.product, cpu_vendor=server.cpu, cpu_name=server.cpu_name,
        sockets=server.sockets, cores_per_socket=server.cores_per_socket, threads=server.threads, numa_nodes=numa_nodes,
        memory_kib=server.memory_mib * 1024, governors="performance powersave", gpu=gpu,
        infiniband_rate=server.infiniband_rate, ethernet_speed=server.ethernet_mbps, roots=_roots(description, gpu),
        nic="MT4129", nic_firmware="28.41.1000", nic_board="MT_0000000838", note=description.summary,
        controllers=server.controllers, daemons=server.daemons, interleaved=server.interleaved, iommu=server.iommu,
        gpu_memory_kib=tuple(server.gpu_memory_mib.get(str(n), 0) * 1024 for n in without),
    )  # fmt: skip


def document_of(profile: str, gpus: int) -> Document:
    """Return the document of a class of this profile. Where the profile fits servers with any number of GPUs, the class declares
    ``gpus``, as `fairlead init` proposes it."""
    found = config.load_profile(profile)
    fixed = found.match is not None and found.match.gpu_count
    layers = [(f"profile {profile}", profile_layer(found))]
    layers += [] if fixed else [("class", {"checks": {"gpu_count": {"expected": gpus}}})]
    return config.resolve_layers("n1", layers, profile=profile)[0]


def write_described(tree: Path, file: Path) -> Path:
    """Write the tree of one description, as fairlead leaves the machine, into ``tree`` and return it."""
    description = read_description(file)
    write_tree(tree, model_of(file.stem, description), _readme(file.stem, description), tuned=True)
    nvml = read_nvml(tree)
    for number, gpu in enumerate(nvml["gpus"]):
        gpu["nvlink"] = list(_nvlinks(description.nvlink, nvml["gpus"], number))
    write_nvml(tree, nvml)
    return tree


def _nvlinks(links: Links, gpus: list[dict[str, Any]], number: int) -> Iterator[dict[str, Any]]:
    """Yield the NVLinks of a GPU as NVML lists them."""
    active = tuple(range(links.listed)) if links.active is None else links.active
    peers = {a: b for pair in links.pairs for a, b in (pair, pair[::-1])}
    others = [gpu["pci"] for n, gpu in enumerate(gpus) if n != number]
    rates = NO_ERRORS_SEEN if links.version >= 5 else {}
    for at, link in enumerate(gpus[number]["nvlink"]):
        link |= rates
        if at not in active or (links.pairs and number not in peers):
            yield link | {"active": 0, "remote": ""}
        elif links.pairs:
            yield link | {"remote": gpus[peers[number]]["pci"]}
        else:
            yield link | {"remote": others[active.index(at) // links.mesh] if links.mesh else "switch"}


def _readme(name: str, description: Description) -> str:
    return (
        f"# {name}: a healthy, idle machine, as fairlead leaves it\n\n{description.summary}.\n\n"
        f"Written by tests/lab/described.py from tests/machines/described/{name}.toml. Facts from:\n\n"
        + "".join(f"- {source}\n" for source in sorted(description.sources))
        + f"\nInvented: {description.invented}\n"
    )
