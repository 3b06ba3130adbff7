"""Recorded and derived machine trees: no crash, no lost GPU, sound plans, least distance."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.model.facts import Node
from fairlead.topology.binding import binding_plan, published_files
from fairlead.topology.distances.accelerators import on_the_bus
from fairlead.topology.picture.machine_report import matrix, report
from tests.topology.build import gpu
from tests.topology.topology_nodes import marked, recorded_names
from tests.topology.topology_nodes import node as node_of

# hwloc's own recordings have no GPUs (but one) and many files: they take a while to unpack.
MARKED = [marked(n) for n in recorded_names() or ["none"]]


def load(name: str) -> Node:
    """NVML was not recorded: the GPUs are those that the bus shows."""
    node = node_of(name)
    return msgspec.structs.replace(node, gpus=tuple(gpu(i, d.address, nvlinks=0) for i, d in enumerate(on_the_bus(node))))


@pytest.mark.parametrize("name", MARKED)
def test_a_machine_of_the_world(name: str) -> None:
    node = load(name)
    assert not isinstance(node.gpus, type(None))
    shown = report(node)
    assert len(shown["gpus"]) == len(node.gpus)  # type: ignore[arg-type]
    assert all(g["cpus"] != "-" for g in shown["gpus"])
    assert matrix(node)
    machine = published_files.planner_machine(node)
    text = published_files.render_topology(node)
    read = binding_plan.parse_topology(text) if machine.online else machine
    assert len(read.gpus) == len(shown["gpus"])
    for tasks, lines in published_files.render_plans(node).items():
        masks = [int(line.split("\t")[2], 16) for line in lines.splitlines()]
        assert len(masks) == tasks
        assert all(masks)
        assert sum(m.bit_count() for m in masks) == sum(masks).bit_count()
        assert not sum(masks) & ~machine.online
        # Every way round: assigned against the GPUs, they come back to the least distance.
        gpus_of_task = binding_plan.assign_gpus(machine.gpus, tasks)
        best = sum(binding_plan.distance(machine, m, h) for m, h in zip(masks, gpus_of_task, strict=True))
        back = binding_plan.permute_cpu_sets(machine, masks[::-1], machine.gpus, machine.online)
        assert sum(binding_plan.distance(machine, m, h) for m, h in zip(back, gpus_of_task, strict=True)) == best


EXPECTED = {
    # GPUs of the four NUMA nodes with CPUs; 32 of GPU memory take no part.
    "s_gh200_quad_36numa": {4: ["0-71", "72-143", "144-215", "216-287"]},
    "d_nccl_azure_ncv4-topo": {4: ["0-23", "24-47", "48-71", "72-95"]},
}


@pytest.mark.trees
@pytest.mark.parametrize("name", EXPECTED)
def test_known_mappings(name: str) -> None:
    plans = published_files.render_plans(load(name))
    for tasks, cpus in EXPECTED[name].items():
        assert [line.split("\t")[1] for line in plans[tasks].splitlines()] == cpus


def test_minus_one_everywhere_makes_no_plan_and_says_so() -> None:
    node = load("s_synthetic_neg1_numa")
    assert published_files.render_plans(node) == {}
    shown = report(node)
    assert [f["check"] for f in shown["audit"]].count("topology.locality") == len(shown["gpus"]) == 4
    assert len({g["cpus"] for g in shown["gpus"]}) == 4
