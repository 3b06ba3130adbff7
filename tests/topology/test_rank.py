"""`fairlead run`'s plan: parts of one task's CPUs for its ranks, and every doubt that leaves a rank as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.facts import Node
from fairlead.topology.binding import binding_plan, published_files, rank_binding
from fairlead.topology.binding.binding_plan import Doubt, Machine
from fairlead.topology.binding.rank_binding import LocalRank, RankBinding
from tests.topology.build import hgx

ALL = (1 << 112) - 1
BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7", "SLURM_CPUS_ON_NODE": "112"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7", "SLURM_CPUS_ON_NODE": "112"}


def machine_of(node: Node) -> tuple[Machine, dict[str, str]]:
    text = published_files.render_topology(node)
    return binding_plan.parse_topology(text), rank_binding.pci_by_uuid(text)


HGX = machine_of(hgx())


def bindings(
    env: dict[str, str],
    ranks: int = 8,
    *,
    own: int = ALL,
    cpuset: int = ALL,
    per_rank: int | None = None,
    node: Node | None = None,
) -> list[RankBinding]:
    machine, uuids = HGX if node is None else machine_of(node)
    gpus = rank_binding.visible_gpus(machine, uuids, env, published=True)
    ranked = [LocalRank(i, ranks, "LOCAL_RANK") for i in range(ranks)]
    return [rank_binding.plan_rank(machine, gpus, r, env, own=own, cpuset=cpuset, per_rank=per_rank) for r in ranked]


def lists(found: list[RankBinding]) -> list[str]:
    return [binding_plan.format_cpu_set(s.cpus) for s in found]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ranks", [1, 8, 16])
def test_on_the_whole_node_it_is_the_published_plan(threads: int, ranks: int) -> None:
    node = hgx(threads=threads)
    whole = (1 << 112 * threads) - 1
    env = {**BATCH, "SLURM_CPUS_ON_NODE": str(112 * threads)}
    found = bindings(env, ranks, own=whole, cpuset=whole, node=node)
    published = [line.split("\t") for line in published_files.render_plans(node)[ranks].splitlines()]
    assert lists(found) == [row[1] for row in published]
    assert [s.memory for s in found] == [int(row[4]) if "," not in row[4] else None for row in published]


@settings(max_examples=60, deadline=None)
@given(own=st.integers(1, ALL), ranks=st.sampled_from([1, 8, 11, 16]))
def test_shares_are_even_apart_and_within_the_tasks_cpus(own: int, ranks: int) -> None:
    if own.bit_count() < ranks:
        return
    env = {**BATCH, "SLURM_CPUS_ON_NODE": str(own.bit_count())}
    found = bindings(env, ranks, own=own, cpuset=own)
    union = 0
    for each in found:
        assert each.cpus and not each.cpus & union and not each.cpus & ~own
        assert each.cpus.bit_count() == found[0].cpus.bit_count()
        union |= each.cpus


def test_part_of_a_node() -> None:
    """GPUs 2 and 5 of 8, eight CPUs on either socket, devices constrained: the program counts them 0 and 1."""
    own = 0xFF | 0xFF << 56
    env = {**STEP, "SLURM_STEP_GPUS": "2,5", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_CPUS_ON_NODE": "16"}
    found = bindings(env, 2, own=own, cpuset=own)
    assert lists(found) == ["0-7", "56-63"]
    assert [s.memory for s in found] == [0, 1]
    assert [[g.index for g in s.gpus] for s in found] == [[2], [5]]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("7,0", [1, 0]),  # the user's order
        ("GPU-00000006,GPU-00000001", [1, 0]),
        ("GPU-00000006", [1]),
    ],
)
def test_visible_devices_are_taken_in_their_order(visible: str, expected: list[int]) -> None:
    found = bindings({**BATCH, "CUDA_VISIBLE_DEVICES": visible}, len(expected))
    assert [s.memory for s in found] == expected


def test_fewer_ranks_than_gpus_wait_to_be_told() -> None:
    with pytest.raises(Doubt, match="--gpus-per-rank"):
        bindings(BATCH, 4)
    assert [s.memory for s in bindings(BATCH, 4, per_rank=2)] == [0, 0, 1, 1]
    assert [s.memory for s in bindings(BATCH, 4, per_rank=1)] == [0, 0, 0, 0]
    near = {**STEP, "SLURM_STEP_GPUS": "0,1,2,3"}
    assert [s.memory for s in bindings(near, 2)] == [0, 0]  # whichever they use, it is in one place
    with pytest.raises(Doubt, match="3 GPUs each"):
        bindings(BATCH, 4, per_rank=3)


def test_memory_is_never_preferred_where_the_gpus_or_the_cpus_are_not() -> None:
    assert [s.memory for s in bindings(BATCH, 1)] == [None]  # torchrun itself: GPUs on both sockets
    far = bindings({**BATCH, "SLURM_CPUS_ON_NODE": "56"}, 8, own=(1 << 56) - 1, cpuset=(1 << 56) - 1)
    assert [s.memory for s in far] == [0, 0, 0, 0, None, None, None, None]


def test_a_gpu_without_a_place_gets_an_even_share() -> None:
    found = bindings(BATCH, 8, node=hgx(numa=[-1] * 8))
    assert [s.cpus.bit_count() for s in found] == [14] * 8
    assert {s.memory for s in found} == {None}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"SLURM_JOB_GPUS": ""}, "names no GPUs"),
        ({"SLURM_JOB_GPUS": "0,9"}, "not published"),
        ({"SLURM_JOB_GPUS": "0,$(id)"}, "not a CPU list"),
        ({"SLURM_STEP_ID": "3"}, "names no GPUs"),  # a step without GPUs has the job's list in its environment
        ({"CUDA_VISIBLE_DEVICES": ""}, "is not known here"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "is not known here"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1c56a8c9"}, "is not known here"),
        ({"CUDA_VISIBLE_DEVICES": "0,-1"}, "is not known here"),
        # The second of GPUs 3 and 4, or the node's GPU 1, which the job does not have; then GPU 4 read in both ways.
        ({"SLURM_JOB_GPUS": "1,2,3,4,5", "CUDA_VISIBLE_DEVICES": "3"}, "is not known here"),
        ({"SLURM_CPUS_ON_NODE": "16"}, "part of the node's CPUs"),
    ],
)
def test_doubts(change: dict[str, str], why: str) -> None:
    with pytest.raises(Doubt, match=why):
        bindings({**BATCH, **change}, 1)


def test_gpus_assigned_to_several_tasks_are_a_doubt() -> None:
    env = {**STEP, "SLURM_GTIDS": "0,1", "SLURM_GPUS_PER_TASK": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    with pytest.raises(Doubt, match="GPUs of its own"):
        bindings(env, 4)


def test_more_ranks_than_cpus_is_a_doubt() -> None:
    with pytest.raises(Doubt, match="8 ranks on 2 CPUs"):
        bindings({**BATCH, "SLURM_CPUS_ON_NODE": "2"}, 8, own=3, cpuset=3)


NARROW = (1 << 28) - 1
MASKS = {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x000FFFFFFF,0xFFFFFF0000", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("env", "slurms"),
    [
        ({**STEP, **MASKS}, True),
        ({**STEP, **MASKS, "SLURM_CPU_BIND_LIST": "0x0FFFFFFFFF,0x0"}, False),  # taskset inside the task
        ({**STEP, **MASKS, "SLURM_CPU_BIND_LIST": "FFFFFFF,0"}, False),  # typed by the user
        ({**STEP, **MASKS, "SLURM_CPU_BIND_TYPE": "map_cpu:"}, False),
        ({**STEP, **MASKS, "SLURM_LOCALID": "2"}, False),
        ({**BATCH, "SLURM_CPUS_ON_NODE": "28"}, True),  # task/affinity without a cpuset
        ({**BATCH, "SLURM_CPUS_ON_NODE": "112"}, False),
        ({}, False),
    ],
)
def test_who_narrowed_the_mask(env: dict[str, str], slurms: bool) -> None:
    assert rank_binding.is_slurms_mask(env, NARROW, ALL) is slurms
    assert rank_binding.is_slurms_mask(env, ALL, ALL)


def test_a_slurm_task_keeps_the_mask_that_it_was_assigned() -> None:
    machine, uuids = HGX
    env = {**STEP, **MASKS, "SLURM_GPUS_ON_NODE": "8", "SLURM_GTIDS": "0,1"}
    gpus = rank_binding.visible_gpus(machine, uuids, {**env, "SLURM_STEP_GPUS": "0-7"}, published=True)
    found = rank_binding.plan_rank(machine, gpus, LocalRank(0, 2, rank_binding.SLURM), env, own=NARROW, cpuset=ALL, per_rank=4)
    assert (found.cpus, found.memory) == (NARROW, 0)
    with pytest.raises(Doubt, match="GPUs of its own"):
        rank_binding.plan_rank(machine, gpus[:4], LocalRank(0, 2, rank_binding.SLURM), env, own=NARROW, cpuset=ALL, per_rank=1)


@pytest.mark.parametrize(("name", "size"), rank_binding.LAUNCHERS)
def test_launchers(name: str, size: str) -> None:
    found = rank_binding.local_rank({name: "3", size: "8", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"})
    assert (found.number, found.ranks, found.source) == (3, 8, name)
    for broken in ({name: "3"}, {name: "8", size: "8"}, {name: "-1", size: "8"}, {name: "a[$(id)]", size: "8"}):
        with pytest.raises(Doubt):
            rank_binding.local_rank(broken)


def test_slurms_own_rank_is_the_last_resort() -> None:
    found = rank_binding.local_rank({"SLURM_LOCALID": "1", "SLURM_GTIDS": "4,5,6"})
    assert (found.number, found.ranks) == (1, 3)
    with pytest.raises(Doubt):
        rank_binding.local_rank({"SLURM_LOCALID": "1"})
    with pytest.raises(Doubt, match="no launcher"):
        rank_binding.local_rank({})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (True, True)),
        ({"FAIRLEAD_PROFILE": "minimal", "FAIRLEAD_SKIP": "OMP_NUM_THREADS"}, (True, True)),
        ({"FAIRLEAD_PROFILE": "off"}, (False, False)),
        ({"FAIRLEAD_PROFILE": "fast"}, (False, False)),
        ({"FAIRLEAD_SKIP": "CPUS"}, (False, True)),
        ({"FAIRLEAD_SKIP": "NCCL_DEBUG,MEMORY"}, (True, False)),
        ({"FAIRLEAD_SKIP": "a;b"}, (False, False)),
    ],
)
def test_what_the_user_wants(env: dict[str, str], expected: tuple[bool, bool]) -> None:
    assert rank_binding.wanted_bindings(env) == expected
