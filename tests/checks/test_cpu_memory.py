"""As much memory, as many CPUs and hardware threads as declared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.facts import NumaNode, unreadable
from fairlead.model.finding import Level
from tests.checks.hosts import host_node, judged

NA = unreadable("Input/output error")


@pytest.mark.parametrize(
    ("params", "changes", "level"),
    [
        ({"memory_bytes_min": 1 << 40}, {}, None),
        ({"memory_bytes_min": 3 << 40}, {}, Level.DRAIN),
        ({"memory_bytes_min": 1 << 40}, {"memory_bytes": NA}, Level.UNKNOWN),
        ({"cpus_expected": 112}, {}, None),
        ({"cpus_expected": 112}, {"cpus_online": 111}, Level.DRAIN),
        ({"cpus_expected": 112}, {"cpus_online": 224}, Level.WARN),
        ({"cpus_expected": 112}, {"cpus_online": NA}, Level.UNKNOWN),
        ({"smt": False}, {}, None),
        ({"smt": True}, {}, Level.DRAIN),
        ({"smt": False}, {"smt": "notsupported"}, None),
        ({"smt": False}, {"smt": NA}, Level.UNKNOWN),
        ({}, {"memory_bytes": NA, "cpus_online": NA, "smt": NA}, None),  # nothing declared
    ],
)
def test_sizes(params: dict[str, Any], changes: dict[str, Any], level: Level | None) -> None:
    assert [f.level for f in judged("cpu_memory", host_node(**changes), **params)] == ([level] if level is not None else [])


LPDDR, HBM = 480 << 30, 184 << 30


def grace(*sizes: Any, gpu: Any = HBM) -> tuple[NumaNode, ...]:
    """NUMA nodes with CPUs of these sizes, a node with the memory of a GPU, and an empty one."""
    with_cpus = [NumaNode(id=n, cpus=(n,), memory_bytes=size) for n, size in enumerate(sizes)]
    return (*with_cpus, NumaNode(id=2, cpus=(), memory_bytes=gpu), NumaNode(id=3, cpus=(), memory_bytes=0))


@pytest.mark.parametrize(
    ("numa", "level"),
    [
        (grace(LPDDR, LPDDR), None),
        (grace(LPDDR, LPDDR * 3 // 4), Level.DRAIN),  # a lost part of a module, which MemTotal would hide
        (grace(LPDDR, NA), Level.UNKNOWN),
        (grace(LPDDR, LPDDR, gpu=NA), None),  # the memory of the GPU does not count, so nothing is lost without it
        (grace(LPDDR, LPDDR * 3 // 4, gpu=0), None),  # no GPU memory: MemTotal is the memory of the host
        ((), None),
    ],
)
def test_the_memory_of_gpus_does_not_stand_in_for_a_lost_module(numa: tuple[NumaNode, ...], level: Level | None) -> None:
    node = replace(host_node(memory_bytes=2 * LPDDR + HBM), numa=numa)
    assert [f.level for f in judged("cpu_memory", node, memory_bytes_min=2 * LPDDR)] == ([level] if level is not None else [])
