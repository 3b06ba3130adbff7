"""Path classes against what NCCL and nvidia-smi say of real machines: topology files and `topo -m` matrices in ../shared/data."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Node, NvLink, PciDevice
from fairlead.topology.distances import nearest_nics, path_classes
from fairlead.topology.distances.accelerators import accelerators
from fairlead.topology.distances.path_classes import NCCL_ORDER, PathClasses
from fairlead.topology.picture.machine_report import matrix
from tests.topology.build import gpu, hgx, link
from tests.topology.topology_nodes import node as node_of

DATA = Path(__file__).resolve().parents[3] / "shared/data"
# Not: a graph file; several hosts folded into one file under the same addresses.
OTHERS = ("azure_ncv4-graph.xml", "rccl_topo_4p4h.xml")
XML = sorted(p.name for p in (DATA / "nccl_xml").glob("*.xml") if p.name not in OTHERS) or ["no topology files"]
MATRICES = sorted(p.name for p in (DATA / "topo_m").glob("*.txt")) or ["no matrices"]
WITH_TREE = {
    "aws_p4d-24xl-topo.xml": "d_nccl_aws_p4d-24xl-topo",
    "aws_p4de-24xl-topo.xml": "d_nccl_aws_p4de-24xl-topo",
    "azure_ncv4-topo.xml": "d_nccl_azure_ncv4-topo",
    "azure_ndv5-topo.xml": "d_nccl_azure_ndv5-topo",
    "oci_topo-flattened-b4.xml": "d_nccl_oci_topo-flattened-b4",
    "rccl_topo_8p_940.xml": "d_rccl_8p_940",
}


def file(folder: str, name: str) -> Path:
    path = DATA / folder / name
    if not path.exists():
        pytest.skip(f"{path}: no sample data here")
    return path


# --- NCCL's own search over its graph, written down once more ---------------------------------------------------------


@dataclass(eq=False)
class Vertex:
    """A node of NCCL's graph. ``kind``: cpu, pci, gpu or net."""

    kind: str
    name: str
    edges: list[tuple[Vertex, str]] = field(default_factory=list)


@dataclass
class Graph:
    vertices: dict[str, Vertex]
    parents: dict[str, list[str]]  # PCI nodes above each end, nearest first
    numa: dict[str, int]


def graph_of(path: Path) -> Graph:
    """The graph as src/graph/topo.cc builds it of a topology file (several hosts in one file are kept apart by their CPUs)."""
    text = path.read_text()
    root = ET.fromstring(text[text.index("<system") :])
    graph = Graph({}, {}, {})
    cpus = []
    for cpu in root.iter("cpu"):
        here = Vertex("cpu", f"cpu{cpu.get('host_hash', '')}/{cpu.get('numaid')}")
        if here.name in graph.vertices:
            here = graph.vertices[here.name]
        else:
            graph.vertices[here.name] = here
            cpus.append(here)
        for below in cpu.findall("pci"):
            add(graph, below, here, [], int(cpu.get("numaid", "-1")))
    for a, b in combinations(cpus, 2):
        join(a, b, "SYS")
    for below in root.iter("pci"):
        for peer in (*below.iter("nvlink"), *below.iter("xgmi")):
            own, other = below.get("busid", ""), peer.get("target", "")
            if below.find("gpu") is not None and other in graph.vertices and own in graph.vertices:
                graph.vertices[own].edges.append((graph.vertices[other], "NVL"))
    return graph


def add(graph: Graph, element: ET.Element, parent: Vertex, above: list[str], numa: int) -> None:
    address = element.get("busid", "")
    kind = element.get("class", "")[2:6]
    is_gpu = element.find("gpu") is not None or kind in ("0300", "0302", "0380", "1200")
    is_net = element.find("nic") is not None or kind in ("0207", "0200")
    if address in graph.vertices and not (is_gpu or is_net):
        here = graph.vertices[address]  # the same switch once more
    else:
        here = graph.vertices.setdefault(address, Vertex("gpu" if is_gpu else "net" if is_net else "pci", address))
        join(here, parent, "PCI")
    if is_gpu or is_net:
        graph.parents[address], graph.numa[address] = above, numa
        return
    for below in element.findall("pci"):
        add(graph, below, here, [address, *above], numa)


def join(a: Vertex, b: Vertex, kind: str) -> None:
    a.edges.append((b, kind))
    b.edges.append((a, kind))


def search(base: Vertex) -> dict[Vertex, str]:
    """ncclTopoSetPaths of src/graph/paths.cc at 5067397, without bandwidths: the class from ``base`` to every vertex."""
    best: dict[Vertex, tuple[int, int]] = {base: (NCCL_ORDER.index("LOC"), 0)}
    todo = [base]
    while todo:
        following: list[Vertex] = []
        for at in todo:
            kind, count = best[at]
            for to, edge in at.edges:
                if at is not base and at.kind == "gpu" and not (edge == "NVL" and to.kind == "gpu" and count <= 1):
                    continue  # through a GPU only by one more NVLink
                if at is not base and at.kind == "net":
                    continue
                new = {"PCI": "PIX", "SYS": "SYS", "NVL": "NVL"}[edge]
                if at.kind == "pci" and to.kind == "pci":
                    new = "PXB"
                if edge == "PCI" and "cpu" in (at.kind, to.kind):
                    new = "PHB"
                if at.kind == "gpu" and NCCL_ORDER[kind] == "NVL" and new == "NVL" and count == 1:
                    new = "NVB"
                rank = (max(kind, NCCL_ORDER.index(new)), count + 1)
                if to not in best or rank[0] < best[to][0]:
                    best[to] = rank
                    if to not in following:
                        following.append(to)
        todo = following
    return {vertex: NCCL_ORDER[kind] for vertex, (kind, _) in best.items()}


def pairs_of(graph: Graph) -> Iterator[tuple[str, str, str]]:
    ends = [v for v in graph.vertices.values() if v.kind in ("gpu", "net")]
    for i, a in enumerate(ends):
        found = search(a)
        for b in ends[i + 1 :]:
            yield a.name, b.name, found.get(b, "DIS")


def as_node(graph: Graph) -> Node:
    """The machine that such a file describes, as sysfs would show it: NCCL leaves out the port right above each device."""
    devices: dict[str, PciDevice] = {}
    cards = []
    fake = iter(f"fffe:{n >> 8:02x}:{n & 255:02x}.0" for n in range(1 << 15))
    ports: dict[tuple[str, ...], str] = {}

    def put(address: str, above: tuple[str, ...], numa: int, code: int) -> tuple[str, ...]:
        port = ports.setdefault((*above, address), next(fake))
        path = (*above, port, address)
        devices[address] = PciDevice(address=address, vendor=0x10DE, device=1, class_code=code, path=path, numa=numa, link=link())
        return path

    for address, above in graph.parents.items():
        numa = graph.numa[address]
        path: tuple[str, ...] = (f"pci{numa:04x}:00",)
        for switch in reversed(above):
            path = put(switch, path, numa, 0x060400)
        is_gpu = graph.vertices[address].kind == "gpu"
        put(address, path, numa, 0x030200 if is_gpu else 0x020700)
        if is_gpu:
            remotes = [to.name for to, kind in graph.vertices[address].edges if kind == "NVL"]
            wires = tuple(NvLink(link=i, active=True, remote=r) for i, r in enumerate(remotes))
            cards.append(replace(gpu(len(cards), address), nvlinks=wires))
    return replace(hgx(gpus=0), pci=tuple(devices.values()), gpus=tuple(cards))


def agreement(node: Node, graph: Graph) -> tuple[int, list[str]]:
    classes = PathClasses(node)
    same, differ = 0, []
    known = {d.address for d in node.pci}
    for a, b, wanted in pairs_of(graph):
        if not {a, b} <= known:
            continue
        got = classes.nccl(a, b)
        if got == wanted:
            same += 1
        else:
            differ.append(f"{a} {b}: NCCL {wanted}, ours {got}")
    return same, differ


@pytest.mark.parametrize("name", XML)
def test_every_topology_file(name: str) -> None:
    """All pairs of GPUs and NICs of every file, by NCCL's search on the file's graph and by ours on the tree it stands for."""
    path = file("nccl_xml", name)
    graph = graph_of(path)
    same, differ = agreement(as_node(graph), graph)
    assert differ == []
    assert same == len(list(pairs_of(graph)))


@pytest.mark.trees
@pytest.mark.parametrize("name", WITH_TREE)
def test_topology_files_that_come_with_a_tree(name: str) -> None:
    graph = graph_of(file("nccl_xml", name))
    node = node_of(WITH_TREE[name])
    if name.startswith("rccl"):  # xGMI is in the file only: a tree of sysfs files does not show it
        for vertex in graph.vertices.values():
            vertex.edges = [e for e in vertex.edges if e[1] != "NVL"]
    same, differ = agreement(node, graph)
    assert differ == []
    assert same > 0


def test_broadcoms_two_levels_are_one_switch() -> None:
    """PEX switches in base mode: what looks like two switches is PIX to NCCL, and PXB to nvidia-smi."""

    def pex(address: str, subsystem: int, *above: str) -> PciDevice:
        return PciDevice(
            address=address, vendor=0x1000, device=0xC030, class_code=0x060400, path=(*above, address), numa=0, link=link(),
            subsystem=0x10000000 | subsystem,
        )  # fmt: skip

    top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0")
    ends = [
        PciDevice(address=a, vendor=0x10DE, device=1, class_code=0x030200, path=(*above, a), numa=0, link=link())
        for a, above in (
            ("0000:20:00.0", (*top, "0000:14:00.0")),
            ("0000:30:00.0", (*top[:3], "0000:12:01.0")),
        )
    ]
    for lower, wanted in ((0x1000, "PIX"), (0x0000, "PXB")):
        switches = [pex("0000:11:00.0", 0, *top[:2]), pex("0000:13:00.0", lower, *top[:4])]
        node = replace(hgx(gpus=0), pci=(*ends, *switches))
        assert path_classes.nccl(node, ends[0].address, ends[1].address) == wanted
        assert path_classes.smi(node, ends[0].address, ends[1].address) == "PXB"


# --- nvidia-smi topo -m -----------------------------------------------------------------------------------------------


def matrix_of(path: Path) -> tuple[list[str], dict[tuple[str, str], str], dict[str, str]]:
    """Device names, cells, and the NUMA affinity of each GPU (by its CPU list) of a matrix; rows may be missing."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    names = re.findall(r"GPU\d+|NIC\d+|mlx5_\w+", lines[0].split("CPU Affinity")[0])
    cells, folders = {}, {}
    for line in lines[1:]:
        words = re.split(r"\t+|\s{2,}|(?<=\d) (?=\S)|\s+", line.strip())
        words = [w for w in words if w]
        if words[0] not in names:
            continue
        for other, cell in zip(names, words[1:], strict=False):
            cells[words[0], other] = cell
        rest = words[1 + len(names) :]
        if words[0].startswith("GPU"):
            folders[words[0]] = rest[0] if rest else ""
    return names, cells, folders


def tree_for(names: list[str], cells: dict[tuple[str, str], str], folders: dict[str, str]) -> tuple[Node, dict[str, str]]:
    """The smallest machine that fits a matrix: devices PIX to each other share a switch, PXB a switch of switches, PHB a
    host bridge; NODE and the CPU list give the NUMA node. Also each device's address."""
    numa_of = {text: i for i, text in enumerate(dict.fromkeys(folders.values()))}
    links = re.compile(r"NV(\d+)")

    def cell(a: str, b: str) -> str:
        return cells.get((a, b)) or cells.get((b, a)) or "SYS"

    def groups(classes: set[str], members: list[str]) -> list[list[str]]:
        left, found = list(members), []
        while left:
            group = [left.pop(0)]
            for a in group:
                near = [b for b in left if cell(a, b) in classes]
                group += near
                left = [b for b in left if b not in near]
            found.append(group)
        return found

    numa: dict[str, int] = {g: numa_of[p] for g, p in folders.items()}
    for name in names:
        if name not in numa:
            near = [g for g in folders if cell(name, g) in ("PIX", "PXB", "PHB", "NODE")]
            numa[name] = numa[near[0]] if near else 99
    pci, cards, address = [], [], {}
    for h, host in enumerate(groups({"PIX", "PXB", "PHB"}, names)):
        for r, root in enumerate(groups({"PIX", "PXB"}, host)):
            for s, switch in enumerate(groups({"PIX"}, root)):
                for d, name in enumerate(switch):
                    top = (f"pci{h:04x}:00", f"{h:04x}:00:{r:02x}.0", f"{h:04x}:{r + 1:02x}:00.0")
                    mid = (f"{h:04x}:{r + 0x20:02x}:{s:02x}.0", f"{h:04x}:{0x40 + 16 * r + s:02x}:00.0")
                    own = (f"{h:04x}:{0x80 + 16 * r + s:02x}:{d:02x}.0",)
                    here = f"{h:04x}:{0xC0 + 16 * r + s:02x}:{d:02x}.1"
                    address[name] = here
                    code = 0x030200 if name.startswith("GPU") else 0x020700
                    pci.append(
                        PciDevice(address=here, vendor=0x10DE, device=1, class_code=code, path=(*top, *mid, *own, here),
                                  numa=numa[name], link=link())
                    )  # fmt: skip
    for i, name in enumerate(n for n in names if n.startswith("GPU")):
        wires = []
        for other in (n for n in names if n.startswith("GPU") and n != name):
            match = links.match(cell(name, other))
            wires += [NvLink(link=0, active=True, remote=address[other])] * (int(match[1]) if match else 0)
        cards.append(replace(gpu(i, address[name]), nvlinks=tuple(wires)))
    return replace(hgx(gpus=0), pci=tuple(pci), gpus=tuple(cards)), address


# Between host bridges of one NUMA node nvidia-smi was seen to say NODE and SYS; inside a job's cgroup it says NODE for all.
EXCEPTIONS = {
    "nano4_slurm_cgroup_h200.txt": ("NODE", "SYS"),
    "deepep128_h800_no_nvlink_shown.txt": ("SYS", "NODE"),
}


@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_can_be_a_machine(name: str) -> None:
    """A machine made to fit each published matrix gives that matrix again, cell by cell; differences are listed above."""
    names, cells, folders = matrix_of(file("topo_m", name))
    node, address = tree_for(names, cells, folders)
    classes = PathClasses(node)
    differ = []
    for (a, b), wanted in cells.items():
        got = classes.smi(address[a], address[b])
        if got != wanted and EXCEPTIONS.get(name) != (wanted, got):
            differ.append(f"{a} {b}: nvidia-smi {wanted}, ours {got}")
    assert differ == []
    assert len(cells) >= 4


@pytest.mark.trees
def test_the_matrix_of_gh200() -> None:
    """The one sample that has a tree: GPU cells by NVLink, CPU affinity and NUMA node (of those with CPUs) the same."""
    names, cells, folders = matrix_of(file("topo_m", "nrel_gh200_quad.txt"))
    node = node_of("s_gh200_quad_36numa")
    cards = accelerators(node)
    wired = tuple(
        replace(
            gpu(i, g.pci), nvlinks=tuple(NvLink(link=0, active=True, remote=o.pci) for o in cards if o != g for _ in range(6))
        )
        for i, g in enumerate(cards)
    )
    shown = matrix(replace(node, gpus=wired)).splitlines()
    head = shown[0].split()
    for i, row in enumerate(names):
        words = shown[1 + i].split()
        ours = dict(zip(head, words[1:], strict=False))
        assert [ours[n] for n in names] == [cells[row, n] for n in names]
        assert words[-2] == folders[row]
        assert words[-1] == str(i)
    assert len(nearest_nics.candidates(node)) == 4
