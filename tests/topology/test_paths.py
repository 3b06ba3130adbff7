"""Path classes on trees whose answer NCCL's and nvidia-smi's rules give, and the layout audit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Node, NvLink, PciDevice, Why, unreadable
from fairlead.model.finding import Level
from fairlead.model.pci_kind import kind_of
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.distances import path_classes
from fairlead.topology.distances.accelerators import accelerators
from fairlead.topology.picture.machine_report import matrix, report
from tests.lab.pcitree import put
from tests.lab.sites import write_site
from tests.topology.build import gpu, hgx, link

replace = msgspec.structs.replace


def tree(*devices: tuple[str, int, str]) -> Node:
    """Devices as (address, numa, path of the bridges above it separated by blanks, host bridge first)."""
    pci = [
        PciDevice(address=a, vendor=1, device=1, class_code=0x030200, path=(*above.split(), a), numa=numa, link=link())
        for a, numa, above in devices
    ]
    return replace(hgx(gpus=0), pci=tuple(pci))


RP, UP = "0000:10:01.0", "0000:11:00.0"
D1, D2, UP2, D3 = "0000:12:00.0", "0000:12:01.0", "0000:13:00.0", "0000:14:00.0"
A, B = "0000:20:00.0", "0000:30:00.0"
SWITCH = f"pci0000:10 {RP} {UP}"


@pytest.mark.parametrize(
    ("a", "b", "nccl", "smi"),
    [
        # Two ports of one switch.
        ((A, 0, f"{SWITCH} {D1}"), (B, 0, f"{SWITCH} {D2}"), "PIX", "PIX"),
        # One of them behind a second switch.
        ((A, 0, f"{SWITCH} {D1}"), (B, 0, f"{SWITCH} {D2} {UP2} {D3}"), "PXB", "PXB"),
        # Two root ports of one host bridge.
        ((A, 0, f"pci0000:10 {RP}"), (B, 0, "pci0000:10 0000:10:02.0"), "PHB", "PHB"),
        # Two host bridges of one NUMA node: NCCL has no host bridges.
        ((A, 0, f"pci0000:10 {RP}"), (B, 0, "pci0000:40 0000:40:01.0"), "PHB", "NODE"),
        ((A, 0, f"pci0000:10 {RP}"), (B, 1, "pci0000:80 0000:80:01.0"), "SYS", "SYS"),
        # Nobody knows where they are: one CPU node to NCCL, SYS to nvidia-smi.
        ((A, -1, f"pci0000:10 {RP}"), (B, -1, "pci0000:80 0000:80:01.0"), "PHB", "SYS"),
        # Domains wider than 16 bits, functions of one card.
        (("10000:01:00.0", 0, "pci10000:00 10000:00:02.0"), ("10000:01:00.1", 0, "pci10000:00 10000:00:02.0"), "PHB", "PIX"),
    ],
)
def test_classes(a: tuple[str, int, str], b: tuple[str, int, str], nccl: str, smi: str) -> None:
    node = tree(a, b)
    assert path_classes.nccl(node, a[0], b[0]) == path_classes.nccl(node, b[0], a[0]) == nccl
    assert path_classes.smi(node, a[0], b[0]) == path_classes.smi(node, b[0], a[0]) == smi
    assert (path_classes.nccl(node, a[0], a[0]), path_classes.smi(node, a[0], a[0])) == ("LOC", "X")


def test_the_numa_node_is_that_of_the_switch_above() -> None:
    """NCCL asks the last PCI node on the way up: a switch whose node differs from its GPU's decides."""
    node = tree((A, 0, f"{SWITCH} {D1}"), (B, 0, "pci0000:80 0000:80:01.0"), (UP, 1, f"pci0000:10 {RP}"))
    assert path_classes.nccl(node, A, B) == "SYS"


def test_a_device_that_nobody_described() -> None:
    assert path_classes.nccl(tree(), A, B) == "DIS"
    assert path_classes.smi(tree(), A, B) == "SYS"


def test_nvlink() -> None:
    node = hgx(gpus=4)
    assert not isinstance(node.gpus, Missing)
    a, b, c, _ = node.gpus
    assert (path_classes.nccl_gpus(node, a, b, node.gpus), path_classes.smi_gpus(node, a, b)) == ("NVL", "NV18")
    fallen = replace(b, nvlinks=tuple(NvLink(link=i, active=False, remote="switch") for i in range(18)))
    assert (path_classes.nccl_gpus(node, a, fallen, node.gpus), path_classes.smi_gpus(node, a, fallen)) == ("PHB", "NODE")
    unread = replace(b, nvlinks=Missing(Why.UNREADABLE, "no answer"))
    assert path_classes.smi_gpus(node, a, unread) == "NODE"

    def wired(card: object, *peers: str) -> tuple[NvLink, ...]:
        return tuple(NvLink(link=i, active=True, remote=p) for i, p in enumerate(peers))

    a2, b2, c2 = (
        replace(a, nvlinks=wired(a, b.pci, b.pci)),
        replace(b, nvlinks=wired(b, a.pci, a.pci, c.pci)),
        replace(c, nvlinks=wired(c, b.pci)),
    )
    assert path_classes.smi_gpus(node, a2, b2) == "NV2"
    assert path_classes.nccl_gpus(node, a2, c2, (a2, b2, c2)) == "NVB"


def test_report_has_the_published_shape() -> None:
    shown = report(hgx())
    assert {"numa", "gpus", "nics", "paths", "audit"} <= shown.keys()
    assert shown["numa"][1] == {"id": 1, "cpus": "56-111", "memory_bytes": 1 << 40}
    assert shown["gpus"][4] == {"index": 4, "pci": "0000:33:00.0", "numa": 1, "cpus": "56-111", "nics": ["mlx5_4"]}
    assert shown["nics"][0] == {
        "name": "mlx5_0",
        "pci": "0000:14:00.0",
        "numa": 0,
        "link_layer": "InfiniBand",
        "rate_gbps": 400.0,
        "state": "ACTIVE",
    }
    assert {"a": "0000:13:00.0", "b": "0000:14:00.0", "nccl": "PIX", "smi": "PIX"} in shown["paths"]
    assert len(shown["paths"]) == 16 * 15 // 2
    assert shown["audit"] == []
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown


def test_matrix_reads_like_nvidia_smis() -> None:
    lines = matrix(hgx(gpus=2)).splitlines()
    assert lines[0].split() == ["GPU0", "GPU1", "mlx5_0", "mlx5_1", "CPU", "Affinity", "NUMA", "Affinity"]
    assert lines[1].split() == ["GPU0", "X", "NV18", "PIX", "SYS", "0-55", "0"]


def change(node: Node, address: str, **new: object) -> Node:
    return replace(node, pci=tuple(replace(d, **new) if d.address == address else d for d in node.pci))


def test_audit_of_a_narrow_link() -> None:
    found = audit(change(hgx(), "0000:13:00.0", link=link(width=8)))
    assert [(f.check, f.device) for f in found] == [("topology.link_width", "0000:13:00.0")]
    assert found[0].summary.startswith("GPU 0000:13:00.0: PCIe link is x8 instead of x16, 31.5 of 63.0 GB/s lost; reseat")


def test_a_slot_of_eight_lanes_is_no_fault() -> None:
    node = change(hgx(), "0000:13:00.0", link=link(width=8))
    (note,) = audit(change(node, "0000:12:00.0", link=link(width=8, width_max=8)))
    assert (note.check, note.level) == ("topology.slot", Level.OK)
    assert "its slot has x8, the card could use x16, 31.5 of 63.0 GB/s lost" in note.summary


def test_a_link_that_cannot_be_read_is_not_judged_here() -> None:
    assert audit(change(hgx(), "0000:14:00.0", link=Missing(Why.UNREADABLE, "no file"))) == ()


@pytest.mark.parametrize(("bits", "names"), [(0x1D, "ReqRedir+CmpltRedir"), (0x20, "EgressCtrl"), (0x01, ""), (0x11, "")])
def test_audit_of_acs_on_the_path(bits: int, names: str) -> None:
    found = audit(change(hgx(), "0000:12:00.0", acs_control=bits))
    assert [f.device for f in found] == (["0000:12:00.0"] if names else [])
    assert all(f"ACS {names} " in f.summary for f in found)
    # The root port is on no path between two endpoints of one switch.
    assert audit(change(hgx(), "0000:10:01.0", acs_control=bits)) == ()


def test_nics_all_on_one_socket() -> None:
    node = hgx()
    (found,) = audit(replace(node, nics=node.nics[:4]))
    assert (found.check, found.device, found.level) == ("topology.nics_one_socket", "", Level.WARN)
    assert found.summary.startswith("all 4 NICs are on socket 0; 4 GPUs on another reach the network across sockets")
    assert "200.0 GB/s" in found.summary
    assert audit(replace(node, nics=())) == ()


def test_unknown_locality_is_split_evenly_and_said() -> None:
    node = hgx(gpus=4, numa=[-1, -1, -1, -1])
    shown = report(node)
    assert [(g["numa"], g["cpus"]) for g in shown["gpus"]] == [(-1, "0-27"), (-1, "28-55"), (-1, "56-83"), (-1, "84-111")]
    assert [f["check"] for f in shown["audit"]].count("topology.locality") == 4


@pytest.mark.parametrize("what", ["gpus", "nics", "both"])
def test_no_nic_is_to_be_moved_where_nobody_knows_the_places(what: str) -> None:
    unknown = Missing(Why.UNREADABLE, "numa_node is -1")
    node = hgx()
    if what != "nics":
        node = hgx(numa=[-1] * 8)
    if what != "gpus":
        nics = {n.pci for n in node.nics}
        node = replace(node, pci=tuple(replace(d, numa=unknown, path=(d.address,)) if d.address in nics else d for d in node.pci))
    assert [f.summary for f in audit(node) if "move" in f.summary] == []


def test_local_cpus_stand_in_for_a_missing_node() -> None:
    """POWER9 and some firmware: CPUs without a node. A list of all CPUs says nothing."""
    node = hgx(gpus=2, numa=[-1, -1])
    unknown = Missing(Why.UNREADABLE, "numa_node is -1")
    for address, local in (("0000:13:00.0", range(56, 112)), ("0000:1b:00.0", range(112))):
        node = change(node, address, numa=unknown, local_cpus=tuple(local))
    shown = report(node)["gpus"]
    assert [(g["numa"], g["cpus"]) for g in shown] == [(1, "56-111"), (-1, "56-111")]
    notes = [(f.level, f.summary) for f in audit(node) if f.check == "topology.locality"]
    assert [level for level, _ in notes] == [Level.OK, Level.WARN]
    assert "local CPUs without a NUMA node" in notes[0][1]
    assert "does not say" in notes[1][1]


def test_one_numa_node_leaves_no_doubt() -> None:
    shown = report(hgx(sockets=1, cores=8, gpus=2, numa=[-1, -1]))
    assert [(g["numa"], g["cpus"]) for g in shown["gpus"]] == [(0, "0-7"), (0, "0-7")]
    assert shown["audit"] == []


def test_a_gpu_outside_the_tree_keeps_its_row() -> None:
    node = replace(hgx(gpus=1), gpus=(gpu(0, "0000:ff:00.0"),), nics=())
    # And the GPU that the bus shows and the driver does not know has one too.
    assert [(g["index"], g["pci"], g["numa"]) for g in report(node)["gpus"]] == [(1, "0000:13:00.0", 0), (0, "0000:ff:00.0", -1)]
    assert "GPU0" in matrix(node)


ES1000, W7900 = 0x515E, 0x7448


@pytest.mark.parametrize(
    ("device", "driver", "gpus"),
    [(ES1000, "", 0), (ES1000, "radeon", 0), (W7900, "amdgpu", 1), (W7900, "", 1), (0x6898, "radeon", 0)],
)
def test_a_servers_console_is_no_gpu(device: int, driver: str, gpus: int) -> None:
    machine = hgx(gpus=0)
    chip = PciDevice(address=A, vendor=0x1002, device=device, class_code=0x030000, path=(A,), numa=0, link=link(), driver=driver)
    facts = replace(machine, pci=(*machine.pci, chip), gpus=unreadable("no NVIDIA driver"))
    assert len(accelerators(facts)) == gpus
    assert [kind_of(chip)] == ["gpu" if gpus else ""]


def test_amds_links(tmp_path: Path) -> None:
    """What the kernel's compute driver says of two GPUs with four links between them, one with a link to a third."""
    tree = write_site(tmp_path / "lumi", "lumi-g")
    nodes = tree / "sys/class/kfd/kfd/topology/nodes"
    put(nodes / "0/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0")
    for number, bus in ((4, 0xC1), (5, 0xC6), (6, 0xC9)):
        put(nodes / f"{number}/properties", f"simd_count 440\nlocation_id {bus << 8}\ndomain 0")
    for own, number, other, kind, bandwidth in (
        (4, 0, 0, 11, 36000), (4, 1, 5, 11, 200000), (5, 0, 4, 11, 200000), (4, 2, 6, 11, 50000), (6, 0, 5, 2, 32000),
    ):  # fmt: skip
        text = f"type {kind}\nnode_from {own}\nnode_to {other}\nweight 15\nmax_bandwidth {bandwidth}"
        put(nodes / f"{own}/io_links/{number}/properties", text)
    classes = path_classes.PathClasses(gather(Root(str(tree)), None))
    assert classes.smi("0000:c1:00.0", "0000:c6:00.0") == "XGMI4"
    assert classes.nccl("0000:c1:00.0", "0000:c6:00.0") == "NVL"
    assert classes.smi("0000:c1:00.0", "0000:c9:00.0") == "XGMI1"
    assert classes.nccl("0000:c6:00.0", "0000:c9:00.0") == "NVB"
    assert classes.smi("0000:c6:00.0", "0000:c9:00.0") == "SYS"
    assert classes.smi("0000:d1:00.0", "0000:d6:00.0") == "PHB"
