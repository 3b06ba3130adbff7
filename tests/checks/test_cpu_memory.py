"""As much memory, as many CPUs and hardware threads as declared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Gpu, NumaNode, unreadable
from fairlead.model.finding import Level
from tests.checks.hosts import host_node, judged
from tests.checks.nodes import gpu

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


def grace(*sizes: Any, third: Any = HBM) -> tuple[NumaNode, ...]:
    """NUMA nodes with CPUs of these sizes, a node without CPUs, such as the memory of a GPU, and an empty one."""
    with_cpus = [NumaNode(id=n, cpus=(n,), memory_bytes=size) for n, size in enumerate(sizes)]
    return (*with_cpus, NumaNode(id=2, cpus=(), memory_bytes=third), NumaNode(id=3, cpus=(), memory_bytes=0))


def gpus(*sizes: Any) -> tuple[Gpu, ...]:
    return tuple(gpu(n, memory_total_bytes=size) for n, size in enumerate(sizes))


CXL = 96 << 30


@pytest.mark.parametrize(
    ("numa", "gpu_sizes", "level"),
    [
        (grace(LPDDR, LPDDR), (HBM,), None),
        (grace(LPDDR, LPDDR * 3 // 4), (HBM,), Level.DRAIN),  # a lost part of a module, which MemTotal would hide
        (grace(LPDDR, NA), (HBM,), Level.UNKNOWN),
        (grace(LPDDR, LPDDR, third=NA), (HBM,), Level.UNKNOWN),  # it may be a GPU's, or the host's
        (grace(LPDDR, LPDDR * 3 // 4), (NA,), Level.UNKNOWN),  # how large the GPU's memory is cannot be read
        (grace(LPDDR, LPDDR * 3 // 4, third=0), (HBM,), None),  # no GPU memory: MemTotal is the memory of the host
        (grace(LPDDR, LPDDR * 3 // 4, third=CXL), (HBM,), None),  # CXL memory belongs to the host
        (grace(LPDDR, LPDDR * 3 // 4, third=CXL), (CXL,) * 8, None),  # as large as a GPU's, but not one for each GPU
        (grace(LPDDR, LPDDR * 3 // 4), (), None),  # NVML lists no GPU, so the node is none's
        (grace(LPDDR, LPDDR), None, Level.UNKNOWN),  # NVML does not answer
        (grace(LPDDR, LPDDR, third=0), None, None),  # there is no node that may be a GPU's
        ((), (HBM,), None),
    ],
)
def test_only_the_memory_of_gpus_does_not_stand_in_for_a_lost_module(
    numa: tuple[NumaNode, ...], gpu_sizes: tuple[Any, ...] | None, level: Level | None
) -> None:
    node = replace(host_node(memory_bytes=2 * LPDDR + HBM), numa=numa, gpus=NA if gpu_sizes is None else gpus(*gpu_sizes))
    assert [f.level for f in judged("cpu_memory", node, memory_bytes_min=2 * LPDDR)] == ([level] if level is not None else [])
