"""The layout audit: each of its findings on a machine that has it, and silence on the healthy ones."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Gpu, Missing, Node, NvLink, Why
from fairlead.model.finding import Finding, Level
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.distances import link_speed
from fairlead.topology.picture.machine_report import audit_lines
from tests.topology.build import hgx, link
from tests.topology.topology_nodes import node as node_of

HEALTHY = ["hgx-h100", "hgx-a100", "l40s-pcie", "lumi-g", "juwels-booster", "alps-gh200", "dgx-2"]


def change(node: Node, address: str, **new: object) -> Node:
    return replace(node, pci=tuple(replace(d, **new) if d.address == address else d for d in node.pci))


def gpu_of(node: Node, index: int, **new: object) -> Node:
    assert not isinstance(node.gpus, Missing)
    return replace(node, gpus=tuple(replace(g, **new) if g.index == index else g for g in node.gpus))


def busy(node: Node, percent: int) -> Node:
    slow = change(node, "0000:13:00.0", link=replace(link(), gen_current=3, gen_max=5))
    return gpu_of(slow, 0, utilization_percent=percent)


def moved(node: Node, gpus: list[int], to: int) -> Node:
    """GPUs taken off their switches and put behind GPU ``to``'s, on ports of their own."""
    target = next(d for d in node.pci if d.address == f"0000:{0x13 + 8 * to:02x}:00.0")
    pci = []
    for d in node.pci:
        index = next((i for i in gpus if d.address == f"0000:{0x13 + 8 * i:02x}:00.0"), None)
        if index is None:
            pci.append(d)
            continue
        port = f"0000:{0x12 + 8 * to:02x}:{2 + index:02x}.0"
        above = next(x for x in node.pci if x.address == target.path[-2])
        pci.append(replace(above, address=port, path=(*target.path[:-2], port)))
        pci.append(replace(d, numa=target.numa, path=(*target.path[:-2], port, d.address)))
    return replace(node, pci=tuple(pci))


def without_nvlink(node: Node) -> Node:
    assert not isinstance(node.gpus, Missing)
    return replace(node, gpus=tuple(replace(g, nvlinks=(), name="NVIDIA L40S") for g in node.gpus))


def links_down(gpu: Gpu, count: int) -> tuple[NvLink, ...]:
    assert not isinstance(gpu.nvlinks, Missing)
    return tuple(replace(x, active=i >= count) for i, x in enumerate(gpu.nvlinks))


def fallen(node: Node, index: int, count: int) -> Node:
    assert not isinstance(node.gpus, Missing)
    return gpu_of(node, index, nvlinks=links_down(node.gpus[index], count))


def all_fallen(node: Node) -> Node:
    assert not isinstance(node.gpus, Missing)
    return replace(node, gpus=tuple(replace(g, nvlinks=links_down(g, 99)) for g in node.gpus))


def pch(node: Node) -> Node:
    """GPU 0 behind 00:1c.4 of an Intel chipset, four lanes of generation 3."""
    port = next(d for d in node.pci if d.address == "0000:10:01.0")
    root = replace(port, address="0000:00:1c.4", vendor=0x8086, path=("pci0000:00", "0000:00:1c.4"), link=link(3, 4, 4))
    node = replace(node, pci=(*node.pci, root))
    return change(node, "0000:13:00.0", path=("pci0000:00", "0000:00:1c.4", "0000:13:00.0"), link=link(3, 4, 16))


def memoryless(node: Node) -> Node:
    return replace(node, numa=(replace(node.numa[0], memory_bytes=0), *node.numa[1:]))


CPUINFO = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
CASES: list[tuple[str, Callable[[], Node], str, str, Level, str]] = [
    # what, machine, check, device, level, words of the summary
    ("narrow", lambda: change(hgx(), "0000:13:00.0", link=link(width=8)), "link_width", "0000:13:00.0", Level.WARN,
     "x8 instead of x16, 31.5 of 63.0 GB/s lost; reseat"),
    ("narrow NIC", lambda: change(hgx(), "0000:14:00.0", link=link(width=4)), "link_width", "0000:14:00.0", Level.WARN,
     "NIC mlx5_0 0000:14:00.0: PCIe link is x4 instead of x16, 47.3 of 63.0 GB/s lost"),
    ("narrow uplink", lambda: change(hgx(), "0000:11:00.0", link=link(width=8)), "link_width", "0000:11:00.0", Level.WARN,
     "uplink of switch 0000:11:00.0: PCIe link is x8"),
    ("slow under load", lambda: busy(hgx(), 95), "link_speed", "0000:13:00.0", Level.WARN,
     "generation 3 instead of 5 under load, 47.2 of 63.0 GB/s lost"),
    ("slow NIC", lambda: change(hgx(), "0000:14:00.0", link=replace(link(), gen_current=4, gen_max=5)), "link_speed",
     "0000:14:00.0", Level.WARN, "generation 4 instead of 5, 31.5 of 63.0 GB/s lost"),
    ("slot", lambda: change(change(hgx(), "0000:13:00.0", link=link(width=8)), "0000:12:00.0", link=link(5, 8, 8)), "slot",
     "0000:13:00.0", Level.OK, "its slot has x8, the card could use x16, 31.5 of 63.0 GB/s lost; move it"),
    ("Intel chipset", lambda: pch(hgx()), "chipset", "0000:13:00.0", Level.WARN,
     "is behind the chipset (port 0000:00:1c.4), not on the CPU: 11.8 of 15.8 GB/s lost; move it"),
    ("AMD chipset", lambda: node_of("desktop"), "chipset", "0000:05:00.0", Level.WARN,
     "is behind the chipset (port 0000:02:00.0), not on the CPU: 23.6 of 31.5 GB/s lost"),
    ("one crowded switch", lambda: moved(without_nvlink(hgx()), [1, 2], 0), "uplink", "0000:11:00.0", Level.WARN,
     "3 GPUs behind switch 0000:11:00.0 share 63.0 GB/s to the CPU: 126.0 of 189.0 GB/s lost, 21.0 each when all copy; move"),
    ("all switches shared alike", lambda: node_of("l40s-pcie"), "uplink", "0000:17:00.0", Level.OK,
     "94.5 of 126.0 GB/s lost, 7.9 each when all copy; all GPUs of this board do"),
    ("NICs on one socket", lambda: replace(hgx(), nics=hgx().nics[:4], texts={"/proc/cpuinfo": CPUINFO}), "nics_one_socket",
     "", Level.WARN, "all 4 NICs are on socket 0; 4 GPUs on another reach the network across sockets, 178.0 of 200.0 GB/s lost"),
    ("GPU without a NIC on its node", lambda: replace(hgx(numa_per_socket=2), nics=(*hgx().nics[:6],)), "nic_distance",
     "0000:43:00.0", Level.WARN, "has no NIC on its NUMA node"),
    ("NIC on another root", lambda: moved_nic(), "nic_root", "0000:4b:00.0", Level.WARN,
     "are on different root ports: no GPUDirect RDMA, 50.0 of 50.0 GB/s go through host memory; NIC mlx5_7 is beside no GPU"),
    ("ACS", lambda: change(hgx(), "0000:12:00.0", acs_control=0x1D), "acs_redirect", "0000:12:00.0", Level.WARN,
     "ACS ReqRedir+CmpltRedir sends peer-to-peer traffic through the root complex, 31.5 of 63.0 GB/s lost"),
    ("five NVLinks down", lambda: fallen(hgx(), 3, 5), "nvlink", "0000:2b:00.0", Level.WARN,
     "13 of 18 NVLinks are active, 103.0 of 370.8 GB/s lost; look at the fabric manager"),
    ("no NVLink at all", lambda: all_fallen(hgx()), "nvlink", "0000:13:00.0", Level.WARN,
     "0 of 18 NVLinks are active, 370.8 of 370.8 GB/s lost"),
    ("uneven NPS", lambda: hgx(numa_per_socket=2, numa=[0, 0, 0, 1, 2, 2, 2, 3]), "numa_split", "", Level.WARN,
     "socket 0: NUMA node 0 serves 3 GPUs (189.0 GB/s), node 1 only 1 (63.0 GB/s): 126.0 GB/s more on one node's memory"),
    ("memory-less node", lambda: memoryless(hgx()), "numa_memory", "0000:13:00.0", Level.WARN,
     "is on NUMA node 0, which has no memory: all of its 63.0 GB/s to the host cross"),
    ("no place", lambda: replace(hgx(gpus=4, numa=[-1] * 4), texts={"/proc/cpuinfo": CPUINFO}), "locality", "0000:13:00.0",
     Level.WARN, "the kernel does not say on which NUMA node it is: tasks keep the CPUs that Slurm gave them, 41.0 of 63.0 GB/s"),
]  # fmt: skip


def moved_nic() -> Node:
    """The last NIC in a slot of its own: on the same NUMA node, on another host bridge."""
    node = hgx()
    nic = f"0000:{0x14 + 8 * 7:02x}:00.0"
    port = "0000:f0:01.0"
    above = next(d for d in node.pci if d.bridge_role == "root_port")
    root = replace(above, address=port, path=("pci0000:f0", port), numa=1)
    node = change(node, nic, path=("pci0000:f0", port, nic))
    return replace(node, pci=(*node.pci, root))


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_what_it_finds(case: tuple[str, Callable[[], Node], str, str, Level, str]) -> None:
    _, machine, check, device, level, words = case
    hits = [f for f in audit(machine()) if f.check == f"topology.{check}" and f.device == device]
    assert {f.level for f in hits} == {level}
    assert words in hits[0].summary
    assert re.search(r"\d+\.\d GB/s", hits[0].summary), "every finding names GB/s"


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_to_put_right_on_a_healthy_machine(name: str) -> None:
    found = audit(node_of(name))
    assert [f.summary for f in found if f.level != Level.OK] == []
    # A board with four GPUs to an uplink is so by design: it is said, and no more than that.
    assert {f.check for f in found} == ({"topology.uplink"} if name == "l40s-pcie" else set())


def test_an_idle_gpu_at_low_speed_is_healthy() -> None:
    assert audit(busy(hgx(), 0)) == ()


def test_a_gpu_off_the_bus_has_no_width() -> None:
    """All ones read as 63 lanes: not a width, and no reason to call the slot wide."""
    gone = change(hgx(), "0000:13:00.0", link=link(width=63))
    seen = link_speed.link_state(
        next(d for d in gone.pci if d.address == "0000:13:00.0"), {}, Missing(Why.UNREADABLE, "not asked")
    )
    assert seen is not None
    assert (seen.width, seen.width_able) == (0, 16)
    assert audit(gone) == ()


@pytest.mark.trees
def test_switches_of_a_card_are_not_the_chipset() -> None:
    """AMD's GPUs carry switches whose vendor id is that of AMD's chipsets."""
    assert not [f for f in audit(node_of("d_rccl_8p_940")) if f.check == "topology.chipset"]


def test_a_geforce_without_its_bridge_is_healthy() -> None:
    node = all_fallen(hgx(gpus=2))
    assert not isinstance(node.gpus, Missing)
    named = replace(node, gpus=tuple(replace(g, name="NVIDIA GeForce RTX 3090") for g in node.gpus))
    assert not [f for f in audit(named) if f.check == "topology.nvlink"]


def test_the_text_names_each_thing_once() -> None:
    found = audit(all_fallen(hgx()))
    assert len(found) == 8
    (line,) = audit_lines(found)
    assert "(and 7 more: " in line
    assert audit_lines(audit(node_of("l40s-pcie")))[0].startswith("note: 4 GPUs")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (CPUINFO, 22.0),
        ("vendor_id\t: GenuineIntel\nmodel\t\t: 85\n", 10.0),
        ("vendor_id\t: GenuineIntel\nmodel\t\t: 207\n", 40.0),
        ("vendor_id\t: AuthenticAMD\nmodel\t\t: 1\n", 16.0),
        ("CPU implementer\t: 0x41\n", 6.0),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", 32.0),
        ("", 0.0),
    ],
)
def test_between_sockets_by_ncclss_figures(text: str, rate: float) -> None:
    assert link_speed.bandwidth_between_sockets(replace(hgx(), texts={"/proc/cpuinfo": text})) == rate


def test_nothing_here_drains_a_node() -> None:
    every: list[Finding] = [f for _, machine, *_ in CASES for f in audit(machine())]
    assert {f.level for f in every} <= {Level.OK, Level.WARN}
