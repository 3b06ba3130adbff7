"""Trees of published machines that are no model of the lab's racks: their CPUs, NUMA nodes, PCI tree and, for NVIDIA, NVML.

Sources, read in November 2026. What a page does not say (bus numbers of bridges, link states) is written by hand.
- lumi-g: https://docs.lumi-supercomputer.eu/hardware/lumig/ (one EPYC 7A53, NPS4, 8 GCDs, a NIC at each module) and
  .../runjobs/scheduled-jobs/distribution-binding/ (which cores are nearest which GCD); the GCDs' addresses and the same
  mapping for Frontier and Crusher: https://docs.olcf.ornl.gov/systems/frontier_user_guide.html
- juwels-booster: https://apps.fz-juelich.de/jsc/hps/juwels/booster-overview.html (2 x EPYC 7402, NPS-4, SMT-2, a GPU and an
  HCA behind each half of a switch); NUMA domains of the GPUs: https://co-design.pop-coe.eu/experiments/gpu-affinity/juwels-booster.html
- alps-gh200: https://docs.cscs.ch/alps/hardware/ (4 GH200 a node, a Slingshot NIC each); the GPU memory's 32 NUMA nodes: NVIDIA
  Grace Hopper tuning guide, and `nvidia-smi topo -m` in the NREL benchmark documentation
- dgx-2: NVIDIA DGX-2 System User Guide (16 V100, 6 NVLinks each to NVSwitches, two levels of PCIe switches)
- desktop: a consumer board whose second long slot hangs on the chipset by 4 lanes, as many X570 boards' manuals show
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.lab.cpufacts import cpulist
from tests.lab.gpufacts import gpu_facts, machine_facts
from tests.lab.models import A100, GpuModel
from tests.lab.pcitree import DOWNSTREAM, ENDPOINT, ROOT_PORT, UPSTREAM, Function, Product, link_to, put, walk, write_function

_PORT = Product(0x1022, 0x1483, 0x060400, ROOT_PORT, driver="pcieport", acs_offset=0x2A0)
_CHIPSET_UP = Product(0x1022, 0x57AD, 0x060400, UPSTREAM, driver="pcieport")
_CHIPSET_DOWN = Product(0x1022, 0x57A3, 0x060400, DOWNSTREAM, driver="pcieport", acs_offset=0x2A0)
_INTEL = Product(0x8086, 0x2030, 0x060400, ROOT_PORT, driver="pcieport", acs_offset=0x110)
_ARM = Product(0x10DE, 0x22B1, 0x060400, ROOT_PORT, driver="pcieport", acs_offset=0x200)
_UP = Product(0x10B5, 0x9797, 0x060400, UPSTREAM, driver="pcieport")
_DOWN = Product(0x10B5, 0x9797, 0x060400, DOWNSTREAM, driver="pcieport", acs_offset=0xF24)
_MI250X = Product(0x1002, 0x7408, 0x038000, ENDPOINT, (0x1002, 0x0B0C), driver="amdgpu")
_CASSINI = Product(0x17DB, 0x0501, 0x020000, ENDPOINT, (0x17DB, 0x0601), driver="cxi_core")
_HDR = Product(0x15B3, 0x101B, 0x020700, ENDPOINT, (0x15B3, 0x0007), driver="mlx5_core")
_EDR = Product(0x15B3, 0x1017, 0x020700, ENDPOINT, (0x15B3, 0x0008), driver="mlx5_core")

GH200 = replace(A100, name="NVIDIA GH200 120GB", gres_type="gh200", product=replace(A100.product, device=0x2342),
                nvlinks=18, nvlink_version=4, pcie_generation=4)  # fmt: skip
V100 = replace(A100, name="Tesla V100-SXM3-32GB", gres_type="v100", product=replace(A100.product, device=0x1DB8),
               nvlinks=6, nvlink_version=2, pcie_generation=3)  # fmt: skip
RTX3090 = replace(A100, name="NVIDIA GeForce RTX 3090", gres_type="rtx3090",
                  product=replace(A100.product, device=0x2204, class_code=0x030000), nvlinks=0, pcie_generation=4)  # fmt: skip
JUWELS_A100 = replace(A100, name="NVIDIA A100-SXM4-40GB", product=replace(A100.product, device=0x20B0))


@dataclass(frozen=True)
class Site:
    """One machine. ``roots``: host bridge ("0000:c0"), its NUMA node, its ports. ``peers``: NVLinks from a GPU to another
    ("switch" counts for all). ``memory_nodes``: NUMA nodes of GPU memory, without CPUs, after those with."""

    sockets: int
    cores: int  # of a socket
    threads: int
    numa_per_socket: int
    cache: int  # cores that share an L3
    cpu_vendor: str
    roots: tuple[tuple[str, int, tuple[Function, ...]], ...]
    gpu: GpuModel | None = None
    peers: Callable[[int, int], int] | None = None  # links from GPU a to GPU b; None: all to the switch
    memory_nodes: int = 0
    memory_kib: int = 134217728
    slingshot: bool = False


def _bridge(address: str, product: Product, generation: int, *below: Function, width: int = 16) -> Function:
    return Function(address, product, "bridge", generation, width, children=below)


def _end(address: str, product: Product, kind: str, generation: int, width: int = 16, **now: int) -> Function:
    return Function(address, product, kind, generation, width, **now)


def _lumi_module(root: int, numa: int) -> tuple[str, int, tuple[Function, ...]]:
    """One MI250X: a GCD on a root port, the other behind a switch with the module's NIC."""
    at = f"0000:{root:02x}"
    gcd = _end(f"0000:{root + 1:02x}:00.0", _MI250X, "gpu", 4)
    other = _end(f"0000:{root + 6:02x}:00.0", _MI250X, "gpu", 4)
    nic = _end(f"0000:{root + 5:02x}:00.0", _CASSINI, "ethernet", 4)
    switch = _bridge(f"0000:{root + 3:02x}:00.0", _UP, 4, _bridge(f"0000:{root + 4:02x}:00.0", _DOWN, 4, nic),
                     _bridge(f"0000:{root + 4:02x}:01.0", _DOWN, 4, other))  # fmt: skip
    return at, numa, (_bridge(f"{at}:01.1", _PORT, 4, gcd), _bridge(f"{at}:03.1", _PORT, 4, switch))


def _juwels_half(root: int, numa: int) -> tuple[str, int, tuple[Function, ...]]:
    """Half of a switch: one GPU and one HCA behind 16 lanes to the CPU."""
    at = f"0000:{root:02x}"
    gpu = _bridge(f"0000:{root + 2:02x}:00.0", _DOWN, 4, _end(f"0000:{root + 3:02x}:00.0", JUWELS_A100.product, "gpu", 4))
    hca = _bridge(f"0000:{root + 2:02x}:01.0", _DOWN, 4, _end(f"0000:{root + 4:02x}:00.0", _HDR, "infiniband", 4))
    return at, numa, (_bridge(f"{at}:01.1", _PORT, 4, _bridge(f"0000:{root + 1:02x}:00.0", _UP, 4, gpu, hca)),)


def _superchip(number: int) -> tuple[tuple[str, int, tuple[Function, ...]], ...]:
    """One GH200: the GPU in a PCI domain of its own, the NIC on another of the same Grace."""
    gpu, nic = f"00{number}9", f"00{number}6"
    card = _end(f"{gpu}:01:00.0", GH200.product, "gpu", 4)
    port = _end(f"{nic}:01:00.0", _CASSINI, "ethernet", 5)
    return ((f"{nic}:00", number, (_bridge(f"{nic}:00:00.0", _ARM, 5, port),)),
            (f"{gpu}:00", number, (_bridge(f"{gpu}:00:00.0", _ARM, 4, card),)))  # fmt: skip


def _dgx2_root(root: int, numa: int) -> tuple[str, int, tuple[Function, ...]]:
    """A quarter of a DGX-2: a switch over two switches, each with two GPUs and a NIC."""
    at = f"0000:{root:02x}"

    def leaf(first: int) -> Function:
        ports = [_bridge(f"0000:{first + 1:02x}:{slot:02x}.0", _DOWN, 3, below) for slot, below in enumerate((
            _end(f"0000:{first + 2:02x}:00.0", V100.product, "gpu", 3),
            _end(f"0000:{first + 4:02x}:00.0", V100.product, "gpu", 3),
            _end(f"0000:{first + 6:02x}:00.0", _EDR, "infiniband", 3)))]  # fmt: skip
        return _bridge(f"0000:{first:02x}:00.0", _UP, 3, *ports)

    downs = [_bridge(f"0000:{root + 2:02x}:{slot:02x}.0", _DOWN, 3, leaf(root + 3 + 10 * slot)) for slot in (0, 1)]
    return at, numa, (_bridge(f"{at}:00.0", _INTEL, 3, _bridge(f"0000:{root + 1:02x}:00.0", _UP, 3, *downs)),)


_DESKTOP_ROOT = (
    "0000:00", 0, (
        _bridge("0000:00:01.1", _PORT, 4, _end("0000:09:00.0", RTX3090.product, "gpu", 4)),
        _bridge("0000:00:01.2", _PORT, 4, _bridge("0000:02:00.0", _CHIPSET_UP, 4,
            _bridge("0000:03:02.0", _CHIPSET_DOWN, 4, _end("0000:05:00.0", RTX3090.product, "gpu", 4, 16, current_width=4),
                    width=4),
            width=4), width=4),
    ),
)  # fmt: skip

SITES = {
    "lumi-g": Site(1, 64, 2, 4, 8, "AuthenticAMD",
                   (_lumi_module(0xC0, 3), _lumi_module(0xC8, 1), _lumi_module(0xD0, 0), _lumi_module(0xD8, 2)), slingshot=True),
    "juwels-booster": Site(2, 24, 2, 4, 3, "AuthenticAMD",
                           (_juwels_half(0x00, 3), _juwels_half(0x41, 1), _juwels_half(0x81, 7), _juwels_half(0xC1, 5)),
                           JUWELS_A100, lambda a, b: 4),
    "alps-gh200": Site(4, 72, 1, 1, 72, "ARM", tuple(root for n in range(4) for root in _superchip(n)), GH200, lambda a, b: 6,
                       memory_nodes=32, slingshot=True),
    "dgx-2": Site(2, 24, 2, 1, 24, "GenuineIntel",
                  (_dgx2_root(0x17, 0), _dgx2_root(0x3A, 0), _dgx2_root(0x85, 1), _dgx2_root(0xAE, 1)), V100),
    "desktop": Site(1, 12, 2, 1, 6, "AuthenticAMD", (_DESKTOP_ROOT,), RTX3090, lambda a, b: 0),
}  # fmt: skip


def write_site(tree: Path, name: str) -> Path:
    """Write the tree of one of SITES into ``tree`` and return it. ACS is off, as on a tuned machine."""
    site = SITES[name]
    homes = _write_cpus(tree, site)
    endpoints = []
    for bridge, numa, ports in site.roots:
        for port in ports:
            for function, below in walk((port.on_numa_node(numa),)):
                path = tree / "sys/devices" / f"pci{bridge}" / below
                write_function(tree / "sys", path, replace(function, acs_control=0), cpulist(homes[numa]))
                endpoints.append((function, path))
    endpoints.sort(key=lambda entry: entry[0].address)
    for number, (_, path) in enumerate(e for e in endpoints if e[0].kind in ("infiniband", "ethernet")):
        _write_nic(tree / "sys", site, number, path)
    (tree / "dev").mkdir(exist_ok=True)
    put(tree / "dev/kmsg", "6,0,0,-;Linux version 6.1.0")
    put(tree / "proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {site.cpu_vendor}\nflags\t\t: fpu")
    cards = [f for f, _ in endpoints if f.kind == "gpu"]
    if site.gpu is not None:
        facts = [_gpu(site, n, cards, cpulist(homes[f.numa_node])) for n, f in enumerate(cards)]
        put(tree / "nvml.json", json.dumps(machine_facts(facts), indent=1))
    put(tree / "README.md", f"# {name}: written by tests/lab/sites.py from public documentation; nothing was recorded.")
    return tree


def _gpu(site: Site, number: int, cards: list[Function], cpus: str) -> dict[str, Any]:
    card = cards[number]
    model: Any = SimpleNamespace(gpu=site.gpu)
    facts = gpu_facts(model, number, card.address, node="n1", seed=0, cpus=cpus, numa=card.numa_node, persistence=1)
    facts["pcie"]["width_current"] = card.link[1]
    if site.peers is not None:
        one = {"active": 1, "version": 3, "crc_errors": 0, "replay_errors": 0, "recovery_errors": 0}
        facts["nvlink"] = [one | {"remote": other.address} for n, other in enumerate(cards) if n != number
                           for _ in range(site.peers(number, n))]  # fmt: skip
    return facts


def _write_cpus(tree: Path, site: Site) -> dict[int, list[int]]:
    """CPUs and NUMA nodes; returns the CPUs by NUMA node. Thread t of core c is CPU t * cores + c, as Linux counts on x86."""
    total = site.sockets * site.cores
    nodes = site.sockets * site.numa_per_socket
    system = tree / "sys/devices/system"
    homes: dict[int, list[int]] = {n: [] for n in range(nodes)}
    for core in range(total):
        threads = [core + t * total for t in range(site.threads)]
        numa = core * nodes // total
        homes[numa] += threads
        first = core // site.cache * site.cache
        shared = [c + t * total for c in range(first, min(first + site.cache, total)) for t in range(site.threads)]
        for cpu in threads:
            here = system / f"cpu/cpu{cpu}"
            put(here / "topology/core_id", core % site.cores)
            put(here / "topology/physical_package_id", core // site.cores)
            put(here / "topology/thread_siblings_list", cpulist(threads))
            put(here / "topology/core_cpus_list", cpulist(threads))
            put(here / "cache/index3/level", 3)
            put(here / "cache/index3/shared_cpu_list", cpulist(shared))
    put(system / "cpu/online", cpulist(range(total * site.threads)))
    count = nodes + site.memory_nodes
    for node in range(count):
        here = system / f"node/node{node}"
        put(here / "cpulist", cpulist(homes.get(node, [])))
        put(here / "distance", " ".join(_slit(site, nodes, node, other) for other in range(count)))
        put(here / "meminfo", f"Node {node} MemTotal:       {site.memory_kib if node < nodes else 0} kB")
    put(system / "node/online", cpulist(range(count)))
    put(system / "node/has_cpu", cpulist(range(nodes)))
    return homes


def _slit(site: Site, nodes: int, a: int, b: int) -> str:
    """ACPI SLIT: 10 here, 12 within a socket, 32 or 40 to another; 80 to GPU memory, as Grace Hopper reports it."""
    if a == b:
        return "10"
    if max(a, b) >= nodes:
        return "80"
    return "12" if a // site.numa_per_socket == b // site.numa_per_socket else "32"


def _write_nic(sys: Path, site: Site, number: int, path: Path) -> None:
    name = f"hsn{number}" if site.slingshot else f"ib{number}"
    net = path / "net" / name
    values = {"operstate": "up", "mtu": "9000", "type": "1" if site.slingshot else "32", "speed": "200000"}
    for attribute, text in values.items():
        put(net / attribute, text)
    link_to(net / "device", path)
    link_to(sys / "class/net" / name, net)
    if site.slingshot:
        return
    hca = path / "infiniband" / f"mlx5_{number}"
    for attribute, text in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "200 Gb/sec (4X HDR)",
                            "link_layer": "InfiniBand"}.items():  # fmt: skip
        put(hca / "ports/1" / attribute, text)
    link_to(hca / "device", path)
    link_to(sys / "class/infiniband" / hca.name, hca)
