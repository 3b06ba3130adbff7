"""The mappings that sites publish come out by themselves on trees of their machines (tests/lab/sites.py says the sources)."""

from __future__ import annotations

import pytest

from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.node_binding import plan_binding
from fairlead.topology.distances.accelerators import accelerators
from tests.topology.topology_nodes import node as node_of


def masks(text: str) -> list[int]:
    return [int(m, 16) for m in text.split(",")]


def bound(name: str, tasks: int, **more: object) -> list[int]:
    return [binding_plan.parse_cpu_set(t.cpus) for t in plan_binding(node_of(name), tasks, **more).tasks]  # type: ignore[arg-type]


def test_lumi_g() -> None:
    """https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/lumig-job/: the first core of each L3 is the system's."""
    published = masks(
        "fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000",
    )
    reserved = sum(1 << core for core in range(0, 64, 8))
    allowed = (1 << 64) - 1 & ~reserved
    assert bound("lumi-g", 8, allowed=allowed) == published
    # MPI only: map_cpu:49,57,17,25,1,9,33,41 are the first cores of these CPU sets.
    first = [(m & -m).bit_length() - 1 for m in bound("lumi-g", 8, allowed=allowed)]
    assert first == [49, 57, 17, 25, 1, 9, 33, 41]


def test_frontier_and_crusher() -> None:
    """https://docs.olcf.ornl.gov/systems/frontier_user_guide.html: cores 0-7 belong to GCD 4, 8-15 to 5, 16-23 to 2, 24-31
    to 3, 32-39 to 6, 40-47 to 7, 48-55 to 0, 56-63 to 1; one task a GCD, with both hardware threads or one."""
    published = ["48-55", "56-63", "16-23", "24-31", "0-7", "8-15", "32-39", "40-47"]
    assert [t.cpus for t in plan_binding(node_of("lumi-g"), 8, threads_per_core=1).tasks] == published
    both = [f"{c},{int(c.split('-')[0]) + 64}-{int(c.split('-')[1]) + 64}" for c in published]
    assert [t.cpus for t in plan_binding(node_of("lumi-g"), 8).tasks] == both
    assert [t.nics for t in plan_binding(node_of("lumi-g"), 8).tasks] == [(f"hsn{i // 2}",) for i in range(8)]
    # Four tasks with a whole MI250X each: its NUMA node.
    assert [t.numa for t in plan_binding(node_of("lumi-g"), 4).tasks] == [(3,), (1,), (0,), (2,)]


def test_juwels_booster() -> None:
    """https://co-design.pop-coe.eu/experiments/gpu-affinity/juwels-booster.html: GPU 0 to 3 on NUMA domains 3, 1, 7, 5. The
    published list for srun has the last two exchanged (map_ldom:3,1,5,7)."""
    near = [3, 1, 7, 5]
    node = node_of("juwels-booster")
    cpus = {n.id: sum(1 << c for c in n.cpus) for n in node.numa}
    # With the domains that have GPUs allocated, each task gets exactly its GPU's.
    assert bound("juwels-booster", 4, allowed=sum(cpus[n] for n in near)) == [cpus[n] for n in near]
    # On the whole node every task has all of its GPU's domain, and as much again of the same socket.
    made = plan_binding(node, 4)
    for task, numa in zip(made.tasks, near, strict=True):
        mine = binding_plan.parse_cpu_set(task.cpus)
        assert mine & cpus[numa] == cpus[numa]
        assert (mine.bit_count(), task.memory) == (24, f"preferred:{numa}")
        assert {n // 4 for n in task.numa} == {numa // 4}
    assert [t.nics for t in made.tasks] == [(f"mlx5_{i}",) for i in range(4)]


@pytest.mark.parametrize("name", ["alps-gh200", pytest.param("s_gh200_quad_36numa", marks=pytest.mark.trees)])
def test_alps(name: str) -> None:
    """https://docs.cscs.ch/running/slurm/: one rank for each of four superchips: its 72 cores, its memory, its NIC. The 32
    NUMA nodes of GPU memory, which the site's wrapper has to hide from hwloc, take no part."""
    made = plan_binding(node_of(name), 4)
    assert [t.cpus for t in made.tasks] == ["0-71", "72-143", "144-215", "216-287"]
    assert [t.numa for t in made.tasks] == [(0,), (1,), (2,), (3,)]
    assert [t.memory for t in made.tasks] == [f"preferred:{n}" for n in range(4)]
    assert made.distance == 0
    assert [len(t.nics) for t in made.tasks] == [1, 1, 1, 1]
    # Several ranks a GPU (MPS): all of one GPU's ranks on its superchip.
    for task in plan_binding(node_of(name), 8).tasks:
        assert task.numa == (task.rank % 4,)


def test_marenostrum_5() -> None:
    """https://co-design.pop-coe.eu/experiments/gpu-affinity/mare-nostrum-5.html: GPUs 0 and 1 on NUMA node 0, 2 and 3 on 1,
    map_cpu:0,20,40,60 on two sockets of 40 cores: the first cores of even CPU sets."""
    from tests.topology.build import hgx

    made = plan_binding(hgx(sockets=2, cores=40, gpus=4), 4)
    assert [t.cpus.split("-")[0] for t in made.tasks] == ["0", "20", "40", "60"]


def test_the_amd_gpus_are_those_that_the_pages_count() -> None:
    gpus = accelerators(node_of("lumi-g"))
    assert [g.pci[5:7] for g in gpus] == ["c1", "c6", "c9", "ce", "d1", "d6", "d9", "de"]
    assert {(g.vendor, g.name) for g in gpus} == {("AMD", "AMD MI250X")}
