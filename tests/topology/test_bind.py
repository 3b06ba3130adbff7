"""`fairlead bind`: its promises on every tree, for random parts of the node, and against brute force."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.errors import DataError, UsageError
from fairlead.model.facts import Missing, Node, Why
from fairlead.topology.binding import binding_plan, published_files
from fairlead.topology.binding.node_binding import BindingPlan, plan_binding
from fairlead.topology.distances import locality
from fairlead.topology.distances.accelerators import accelerators
from tests.topology.build import hgx
from tests.topology.topology_nodes import NAMES
from tests.topology.topology_nodes import node as node_of


def numbers(text: str) -> set[int]:
    mask = binding_plan.parse_cpu_set(text)
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


@cache
def distances(name: str) -> dict[str, dict[int, int]]:
    """GPU -> CPU -> 0 near, 1 in the same package as a near one, 2 elsewhere; worked out from the facts once more."""
    return by_facts(node_of(name))


def by_facts(node: Node) -> dict[str, dict[int, int]]:
    package = {c.id: c.package for c in node.cpus}
    found = {}
    for gpu in accelerators(node):
        near = set(locality.of_pci(node, gpu.pci).cpus)
        close = {package[c] for c in near if c in package}
        found[gpu.pci] = {
            c: 0 if not near or c in near else 1 if package.get(c, -1) in close else 2 for c in locality.online(node)
        }
    return found


def promises(node: Node, made: BindingPlan, tasks: int, gpus: list[str], allowed: set[int]) -> None:
    held = [numbers(t.cpus) for t in made.tasks]
    assert [t.rank for t in made.tasks] == list(range(tasks))
    assert all(held), "a task without CPUs"
    assert set().union(*held) <= allowed
    if tasks <= len(allowed):
        assert sum(map(len, held)) == len(set().union(*held)), "a CPU in two tasks"
    else:
        loads = [sum(cpu in h for h in held) for cpu in allowed]
        assert max(loads) <= -(-tasks // len(allowed))
    if tasks >= len(gpus):
        assert [t.gpus for t in made.tasks] == [(gpus[i % len(gpus)],) if gpus else () for i in range(tasks)]
    else:
        assert [g for t in made.tasks for g in t.gpus] == gpus
        sizes = [len(t.gpus) for t in made.tasks]
        assert max(sizes) - min(sizes) <= 1
    memory = {n.id for n in node.numa if not isinstance(n.memory_bytes, Missing) and n.memory_bytes > 0}
    with_cpus = {n.id for n in locality.with_cpus(node)}
    for task, cpus in zip(made.tasks, held, strict=True):
        assert set(task.numa) == {n.id for n in node.numa if cpus & set(n.cpus)}
        where = task.memory.removeprefix("preferred:")
        assert where == "default" or int(where) in (memory & with_cpus if memory & with_cpus else with_cpus)


def no_better(made: BindingPlan, cost: dict[str, dict[int, int]], pieces: list[set[int]]) -> None:
    """No exchange of pieces between tasks, and none with a piece that lies idle, would lessen the summed distance.

    Pieces move along edges task -> task; a plan is the best one exactly when no round of moves has a negative sum.
    """
    holders: list[tuple[tuple[str, ...] | None, list[set[int]]]] = [(t.gpus, []) for t in made.tasks]
    holders.append((None, []))
    held = [numbers(t.cpus) for t in made.tasks]
    for piece in pieces:
        owner = next((i for i, h in enumerate(held) if piece <= h), len(holders) - 1)
        holders[owner][1].append(piece)

    def price(gpus: tuple[str, ...] | None, piece: set[int]) -> int:
        return sum(cost[g][c] for g in gpus or () for c in piece)

    assert made.distance == sum(price(g, p) for g, owned in holders for p in owned)
    size = len(holders)
    far = 1 << 40
    move = [[far] * size for _ in range(size)]
    for i, (gpus, owned) in enumerate(holders):
        for j, (other, _) in enumerate(holders):
            if i != j:
                move[i][j] = min((price(other, p) - price(gpus, p) for p in owned), default=far)
    best = [0] * size
    for _ in range(size):
        best = [min(best[j], min(best[i] + move[i][j] for i in range(size))) for j in range(size)]
    assert best == [min(best[j], min(best[i] + move[i][j] for i in range(size))) for j in range(size)], "not the least distance"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_promises_on_a_machine_of_the_world(name: str, data: st.DataObject) -> None:
    node = node_of(name)
    every = [g.pci for g in accelerators(node)]
    online = list(locality.online(node))
    tasks = data.draw(st.integers(1, 2 * max(1, len(every))), "tasks")
    gpus = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=1), "gpus") if every else []
    whole = data.draw(st.booleans(), "whole")
    part = data.draw(st.sets(st.sampled_from(online), min_size=1), "cpus")
    allowed = set(online) if whole else part
    threads = data.draw(st.sampled_from([None, 1, 2]), "threads")
    mask = sum(1 << c for c in allowed)
    made = plan_binding(node, tasks, gpus=gpus, allowed=None if whole else mask, threads_per_core=threads)
    assert made == plan_binding(node, tasks, gpus=gpus, allowed=None if whole else mask, threads_per_core=threads)
    siblings = {c.id: set(c.siblings) for c in node.cpus if c.online}
    pieces: list[set[int]] = []
    taken: set[int] = set()
    for cpu in sorted(allowed):
        if cpu not in taken:
            pieces.append(siblings.get(cpu, {cpu}) & allowed)
            taken |= pieces[-1]
    if threads:
        pieces = [set(sorted(p)[:threads]) for p in pieces]
        allowed = set().union(*pieces)
    promises(node, made, tasks, gpus, allowed)
    if len(pieces) < tasks:
        pieces = [{c} for p in pieces for c in p]
    if len(pieces) >= tasks:
        sizes = {sum(p <= held for p in pieces) for held in [numbers(t.cpus) for t in made.tasks]}
        assert sizes == {len(pieces) // tasks}
        no_better(made, distances(name), pieces)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sockets=st.integers(1, 2),
    cores=st.integers(1, 3),
    numa=st.lists(st.integers(-1, 2), min_size=1, max_size=3),
    tasks=st.integers(1, 6),
)
def test_least_distance_by_trying_all(sockets: int, cores: int, numa: list[int], tasks: int) -> None:
    node = hgx(sockets=sockets, cores=cores, gpus=len(numa), numa=numa)
    online = locality.online(node)
    if tasks > len(online):
        return
    made = plan_binding(node, tasks)
    cost = by_facts(node)
    each = len(online) // tasks
    gpus_of_task = [t.gpus for t in made.tasks]

    def assign(left: frozenset[int], rank: int) -> int:
        if rank == tasks:
            return 0
        return min(
            sum(cost[g][c] for g in gpus_of_task[rank] for c in cpus) + assign(left - set(cpus), rank + 1)
            for cpus in itertools.combinations(sorted(left), each)
        )

    assert made.distance == assign(frozenset(online), 0)


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-a100", "l40s-pcie", "alps-gh200", "juwels-booster", "dgx-2"])
def test_a_whole_node_is_bound_as_the_task_prolog_does(name: str) -> None:
    """The published plans and `fairlead bind` are one decision."""
    node = node_of(name)
    for tasks, text in published_files.render_plans(node).items():
        assert [line.split("\t")[1] for line in text.splitlines()] == [t.cpus for t in plan_binding(node, tasks).tasks]


def test_every_gpu_has_its_part_of_the_near_cpus() -> None:
    """Two GPUs on one NUMA node of a quarter of the socket: each task gets half of the near cores, and far ones."""
    made = plan_binding(node_of("hgx-a100"), 8)
    near = {g.pci: set(locality.of_pci(node_of("hgx-a100"), g.pci).cpus) for g in accelerators(node_of("hgx-a100"))}
    assert [len(numbers(t.cpus) & near[t.gpus[0]]) for t in made.tasks] == [16] * 8


def test_gpus_are_chosen_by_index_address_or_uuid_in_the_order_given() -> None:
    node = node_of("hgx-h100")
    pci = [g.pci for g in accelerators(node)]
    uuid = accelerators(node)[2].uuid
    assert isinstance(uuid, str)
    assert [t.gpus for t in plan_binding(node, 3, gpus=["5", pci[0], uuid]).tasks] == [(pci[5],), (pci[0],), (pci[2],)]
    for wrong in (["8"], ["0000:00:00.0"], ["3", "3"], [""]):
        with pytest.raises(UsageError):
            plan_binding(node, 1, gpus=wrong)


def test_one_task_with_all_gpus_keeps_all_cpus() -> None:
    made = plan_binding(node_of("hgx-h100"), 1)
    assert (made.tasks[0].cpus, len(made.tasks[0].gpus), made.tasks[0].numa) == ("0-111", 8, (0, 1))


def test_threads_of_a_core() -> None:
    node = node_of("lumi-g")
    assert plan_binding(node, 8, threads_per_core=1).tasks[0].cpus == "48-55"
    assert plan_binding(node, 8, threads_per_core=2).tasks[0].cpus == "48-55,112-119"


def test_more_tasks_than_cpus_share_them_and_it_is_said() -> None:
    made = plan_binding(hgx(sockets=1, cores=2, gpus=1), 5)
    assert sorted(t.cpus for t in made.tasks) == ["0", "0", "0", "1", "1"]
    assert made.notes == ("5 tasks on 2 CPUs: tasks share CPUs",)


def test_unknown_places_are_split_evenly_and_it_is_said() -> None:
    node = hgx(gpus=4, numa=[-1, -1, -1, -1])
    made = plan_binding(node, 4)
    assert [t.cpus for t in made.tasks] == ["0-27", "28-55", "56-83", "84-111"]
    (note,) = made.notes
    assert "the kernel does not say on which NUMA node it is" in note
    assert "split evenly" in note
    assert all(g in note for t in made.tasks for g in t.gpus)


def test_memory_is_preferred_where_the_gpu_is_and_never_in_the_gpu() -> None:
    made = plan_binding(node_of("alps-gh200"), 4)
    assert [t.memory for t in made.tasks] == ["preferred:0", "preferred:1", "preferred:2", "preferred:3"]
    assert [t.memory for t in plan_binding(node_of("juwels-booster"), 4).tasks] == [f"preferred:{n}" for n in (3, 1, 7, 5)]


def test_a_node_without_memory_is_not_preferred() -> None:
    node = hgx(sockets=1, cores=8, numa_per_socket=2, gpus=2)
    empty = replace(node, numa=(replace(node.numa[0], memory_bytes=0), node.numa[1]))
    assert [t.memory for t in plan_binding(empty, 2).tasks] == ["preferred:1", "preferred:1"]


def test_impossible_wishes() -> None:
    node = hgx()
    for tasks, allowed, threads in ((0, None, None), (5000, None, None), (1, 1 << 500, None), (1, None, 0)):
        with pytest.raises(UsageError):
            plan_binding(node, tasks, allowed=allowed, threads_per_core=threads)
    with pytest.raises(DataError):
        plan_binding(replace(node, cpus=(), numa=()), 1)
    assert plan_binding(node, 1, allowed=1 | 1 << 500).notes == ("CPUs 500 are not online: left out",)


def test_a_node_whose_driver_does_not_answer_keeps_its_gpus() -> None:
    silent = replace(node_of("hgx-h100"), gpus=Missing(Why.UNREADABLE, "NVML does not answer"))
    assert [t.cpus for t in plan_binding(silent, 8).tasks] == [t.cpus for t in plan_binding(node_of("hgx-h100"), 8).tasks]
