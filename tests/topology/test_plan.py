"""The planner's promises, against brute force and on the shapes of real machines."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.topology.binding import binding_plan, published_files, transport
from fairlead.topology.binding.binding_plan import Core, Doubt, GpuLocation, Machine
from tests.topology.build import hgx


def spread(masks: list[int]) -> list[str]:
    return [binding_plan.format_cpu_set(m) for m in masks]


def block(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


def total(machine: Machine, masks: list[int], gpus: list[GpuLocation]) -> int:
    return sum(
        binding_plan.distance(machine, m, g) for m, g in zip(masks, binding_plan.assign_gpus(gpus, len(masks)), strict=True)
    )


def test_slurms_cyclic_default_is_put_right() -> None:
    """8 tasks of 14 cores assigned in turn over two sockets: afterwards each is on its GPU's socket, the CPU sets the same. Four
    of them were there already, and have kept their own."""
    machine = published_files.planner_machine(hgx())
    cyclic = [block((i // 2) * 14 + (i % 2) * 56, 14) for i in range(8)]
    made = binding_plan.permute_cpu_sets(machine, cyclic, machine.gpus, machine.online)
    assert spread(made) == ["0-13", "28-41", "14-27", "42-55", "56-69", "84-97", "70-83", "98-111"]
    assert [i for i, mask in enumerate(made) if mask == cyclic[i]] == [0, 2, 5, 7]
    assert set(made) == set(cyclic)
    assert total(machine, made, machine.gpus) == 0


def test_what_is_right_is_left_alone() -> None:
    machine = published_files.planner_machine(hgx())
    right = [block(i * 14, 14) for i in (1, 0, 3, 2, 5, 4, 7, 6)]
    assert binding_plan.permute_cpu_sets(machine, right, machine.gpus, machine.online) is right


def test_hardware_threads_stay_with_their_core() -> None:
    machine = published_files.planner_machine(hgx(threads=2))
    cyclic = [sum(block((i // 2) * 14 + (i % 2) * 56 + 112 * t, 14) for t in (0, 1)) for i in range(8)]
    made = binding_plan.permute_cpu_sets(machine, cyclic, machine.gpus, machine.online)
    assert spread(made)[0] == "0-13,112-125"
    assert {m.bit_count() for m in made} == {28}
    assert all(binding_plan.count_cores(machine, m) == 14 for m in made)


def test_one_thread_a_core_stays_so() -> None:
    machine = published_files.planner_machine(hgx(threads=2))
    cyclic = [block((i // 2) * 14 + (i % 2) * 56, 14) for i in range(8)]
    made = binding_plan.permute_cpu_sets(machine, cyclic, machine.gpus, machine.online)
    assert all(binding_plan.count_cores(machine, m) == m.bit_count() == 14 for m in made)


def test_tasks_that_split_a_core_swap_whole_shares() -> None:
    machine = published_files.planner_machine(hgx(sockets=2, cores=2, threads=2, gpus=2))
    # Tasks 0 and 1 each have one thread of core 2 (socket 1), tasks 2 and 3 one thread of core 0.
    masks = [1 << 2, 1 << 6, 1 << 0, 1 << 4]
    made = binding_plan.permute_cpu_sets(machine, masks, machine.gpus, machine.online)
    assert sorted(made) == sorted(masks)
    assert total(machine, made, machine.gpus) == 0


def test_part_of_a_node_keeps_within_its_cpus() -> None:
    machine = published_files.planner_machine(hgx())
    gpus = [g for g in machine.gpus if g.index in {3, 4}]
    masks = [block(60, 4), block(50, 4)]
    made = binding_plan.permute_cpu_sets(machine, masks, gpus, block(50, 4) | block(60, 4))
    assert made == [block(50, 4), block(60, 4)]


@pytest.mark.parametrize(
    ("masks", "allowed"),
    [
        ([0, 1], -1),
        ([3, 6], -1),
        ([1, 1 << 60], block(0, 8)),
        ([1, 1 << 500], -1),
    ],
)
def test_doubt_leaves_slurms_masks(masks: list[int], allowed: int) -> None:
    machine = published_files.planner_machine(hgx())
    with pytest.raises(Doubt):
        binding_plan.permute_cpu_sets(machine, masks, machine.gpus, machine.online if allowed < 0 else allowed)


def test_unknown_place_of_a_gpu_is_a_doubt() -> None:
    machine = published_files.planner_machine(hgx(gpus=2, numa=[-1, -1]))
    with pytest.raises(Doubt):
        binding_plan.permute_cpu_sets(machine, [1, 2], machine.gpus, machine.online)
    assert published_files.render_plans(hgx(gpus=2, numa=[-1, -1])) == {}


@pytest.mark.parametrize("text", ["", "0-", "-1", "3-1", "a", "0,,1", "1-2-3", "9" * 30, "٣", "0 1"])
def test_cpulist_garbage(text: str) -> None:
    with pytest.raises(Doubt):
        binding_plan.parse_cpu_set(text)


@pytest.mark.parametrize("text", ["", "0x", "0xg", "0x1,", "0x-1", "0x 1", "0x" + "f" * 3000, "1_0"])
def test_mask_garbage(text: str) -> None:
    with pytest.raises(Doubt):
        binding_plan.parse_masks(text)


@given(st.sets(st.integers(0, 600), min_size=1))
def test_cpulists_come_back(cpus: set[int]) -> None:
    mask = sum(1 << c for c in cpus)
    assert binding_plan.parse_cpu_set(binding_plan.format_cpu_set(mask)) == mask
    assert binding_plan.parse_masks(f"0x{mask:X},{mask:x}") == [mask, mask]


@given(st.integers(1, 12), st.integers(1, 24))
def test_gpus_are_assigned_in_order(count: int, tasks: int) -> None:
    gpus = [GpuLocation(i, "", 0, 1) for i in range(count)]
    gpus_of_task = binding_plan.assign_gpus(gpus, tasks)
    assigned = [g.index for own in gpus_of_task for g in own]
    assert len(gpus_of_task) == tasks
    assert all(gpus_of_task)
    assert sorted(set(assigned)) == list(range(count))
    if tasks <= count:
        assert assigned == sorted(assigned)
    else:
        assert assigned == [rank % count for rank in range(tasks)]
    sizes = {assigned.count(i) for i in range(count)} if tasks > count else {len(h) for h in gpus_of_task}
    assert max(sizes) - min(sizes) <= 1


@st.composite
def steps(draw: st.DrawFn) -> tuple[Machine, list[int], list[GpuLocation]]:
    """Up to 2 packages of 2 NUMA nodes, threads 1 or 2, up to 3 tasks with up to 6 cores between them."""
    threads = draw(st.sampled_from([1, 2]))
    cores = []
    for c in range(8):
        cpus = sum(1 << (c + 8 * t) for t in range(threads))
        cores.append(Core(c // 4, c // 2, 0, cpus))
    online = sum(c.cpus for c in cores)
    gpus = []
    for i in range(draw(st.integers(1, 4))):
        numa = draw(st.integers(0, 3))
        gpus.append(GpuLocation(i, f"{i}", numa, sum(c.cpus for c in cores if c.numa == numa)))
    tasks = draw(st.integers(2, 3))
    chosen = draw(st.permutations(cores))[: draw(st.integers(tasks, 6))]
    masks = [0] * tasks
    for i, core in enumerate(chosen):
        owner = i if i < tasks else draw(st.integers(0, tasks - 1))
        one = core.cpus & -core.cpus
        masks[owner] |= draw(st.sampled_from([core.cpus, one, core.cpus & ~one or one]))
    return Machine(online, cores, gpus), masks, gpus


@settings(max_examples=150, deadline=None)
@given(steps())
def test_least_distance_by_brute_force(step: tuple[Machine, list[int], list[GpuLocation]]) -> None:
    machine, masks, gpus = step
    made = binding_plan.permute_cpu_sets(machine, masks, gpus, machine.online)
    binding_plan.check_permutation(masks, made)
    for old, new in zip(masks, made, strict=True):
        pattern = [sorted((m & c.cpus).bit_count() for c in machine.cores if m & c.cpus) for m in (old, new)]
        assert pattern[0] == pattern[1]
    assert made == binding_plan.permute_cpu_sets(machine, masks, gpus, machine.online)
    pieces = [(t, m & c.cpus) for t, m in enumerate(masks) for c in machine.cores if m & c.cpus]
    best = None
    for order in itertools.permutations(range(len(pieces))):
        trial = [0] * len(masks)
        for (task, cpus), to in zip(pieces, order, strict=True):
            if cpus.bit_count() != pieces[to][1].bit_count():
                break
            trial[task] |= pieces[to][1]
        else:
            cost = total(machine, trial, gpus)
            best = cost if best is None else min(best, cost)
    assert total(machine, made, gpus) == best


@settings(max_examples=60, deadline=None)
@given(
    supply=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    demand=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    seed=st.lists(st.integers(0, 9), min_size=12, max_size=12),
)
def test_transport_is_least_cost(supply: list[int], demand: list[int], seed: list[int]) -> None:
    cost = [tuple(seed[s * 3 + d] for d in range(len(demand))) for s in range(len(supply))]
    if sum(supply) < sum(demand):
        with pytest.raises(Doubt):
            transport.least_cost_flow(supply, demand, cost)
        return
    flow = transport.least_cost_flow(supply, demand, cost)
    assert [sum(f[d] for f in flow) for d in range(len(demand))] == demand
    assert all(0 <= sum(f) <= n and min(f) >= 0 for f, n in zip(flow, supply, strict=True))
    best: dict[tuple[int, ...], int] = {tuple(supply): 0}
    for d, need in enumerate(demand):
        for _ in range(need):
            after: dict[tuple[int, ...], int] = {}
            for left, spent in best.items():
                for s, n in enumerate(left):
                    if n:
                        key = (*left[:s], n - 1, *left[s + 1 :])
                        after[key] = min(after.get(key, 1 << 30), spent + cost[s][d])
            best = after
    assert sum(f[d] * c[d] for f, c in zip(flow, cost, strict=True) for d in range(len(demand))) == min(best.values())


def test_it_is_standard_library_only() -> None:
    """Nothing is loaded but the three modules and their packages, in an isolated Python without site-packages."""
    agent = Path(binding_plan.__file__).parents[3]
    code = f"""import sys
had = set(sys.modules); sys.path[:0] = [{str(agent)!r}]
from fairlead.topology.binding import binding_plan
print(binding_plan.format_cpu_set(11), *sorted(set(sys.modules) - had))"""
    done = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", code], capture_output=True, text=True, timeout=20, check=True)
    room = "fairlead.topology.binding"
    loaded = (
        f"__future__ fairlead fairlead.model fairlead.model.cpulist fairlead.topology {room} {room}.binding_plan {room}.transport"
    )
    assert done.stdout == f"0-1,3 {loaded}\n"


def masks_of(masks: list[int]) -> str:
    return ",".join(f"0x{m:028X}" for m in masks)


@pytest.mark.parametrize(
    ("masks", "free", "said"),
    [
        ([block((i // 2) * 14 + (i % 2) * 56, 14) for i in range(8)], False, "28-41 14"),
        ([block((i // 2) + (i % 2) * 56, 1) for i in range(8)], False, "2 1"),
        # One core each on a whole node, and nobody asked for a count: even CPU sets of all cores.
        ([block((i // 2) + (i % 2) * 56, 1) for i in range(8)], True, "14-27 14"),
    ],
)
def test_answer(masks: list[int], free: bool, said: str) -> None:
    text = published_files.render_topology(hgx())
    count = "112" if free else ""
    gpus = "0,1,2,3,4,5,6,7"
    assert binding_plan.answer_lines(text, masks_of(masks), gpus, allowed=block(0, 112), cpus_on_node=count)[1] == said


def test_nobody_loses_by_wider_shares() -> None:
    """Masks of whole sockets are shared by tasks: left alone. Two tasks with a socket each have all there is."""
    text = published_files.render_topology(hgx())
    sockets = [block(0, 56), block(56, 56)]
    with pytest.raises(Doubt):
        binding_plan.answer_lines(text, masks_of(sockets * 4), "0,1,2,3,4,5,6,7", allowed=block(0, 112), cpus_on_node="112")
    assert (
        binding_plan.answer_lines(text, masks_of(sockets), "0,1,2,3,4,5,6,7", allowed=block(0, 112), cpus_on_node="112")[1]
        == "- 56"
    )


def test_threads_that_a_hint_left_out_stay_out() -> None:
    """hint=nomultithread on a whole node of 2 x 4 cores with 2 threads: nobody gets the second threads."""
    cores = [binding_plan.Core(i // 4, i // 4, i // 4, 1 << i | 1 << (i + 8)) for i in range(8)]
    gpus = [binding_plan.GpuLocation(g, str(g), g, 0xF0F << 4 * g) for g in (0, 1)]
    machine = binding_plan.Machine(0xFFFF, cores, gpus)
    assert binding_plan.widen_to_whole_node(machine, [0x001, 0x010], [0x001, 0x010]) == [0x001, 0x010]
    assert binding_plan.widen_to_whole_node(machine, [0x101, 0x1010], [0x101, 0x1010]) == [0xF0F, 0xF0F0]


def test_a_single_task_with_one_core_of_a_whole_node_gets_all() -> None:
    text = published_files.render_topology(hgx())
    for count, said in (("112", "0-111 112"), ("", "- 1"), ("56", "- 1")):
        assert binding_plan.answer_lines(text, "0x1", "0,1,2,3,4,5,6,7", allowed=block(0, 112), cpus_on_node=count)[0] == said


@pytest.mark.parametrize(
    ("masks", "gpus"),
    [("0x2,0x1", "0,1"), ("0x1,0x2", "0,9"), ("0x1,0x2", ""), ("", "0,1")],
)
def test_answer_in_doubt(masks: str, gpus: str) -> None:
    with pytest.raises(Doubt):
        binding_plan.answer_lines(published_files.render_topology(hgx()), masks, gpus, allowed=block(0, 112), cpus_on_node="")
