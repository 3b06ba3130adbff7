"""CPU sets of one size, each in one NUMA domain: the task prolog swaps them as the planner would, or leaves them to it.

/usr/bin/taskset is a recorder here, and the step's cpuset a file, so that nodes of any size can be tried.
"""

from __future__ import annotations

import random

import pytest

from fairlead.model.facts import Node
from fairlead.topology.binding import binding_plan, published_files
from tests.hooks.recorded_steps import Site, hexes, swapped
from tests.topology.build import hgx

pytestmark = pytest.mark.root


def block(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


def cyclic(node: Node, tasks: int, cores: int, *, threads: int = 1, sockets: int = 2, skip: int = 0) -> list[int]:
    """Slurm's default: tasks take turns at the sockets; ``threads`` of each core; the first ``skip`` cores are another job's."""
    total = len({c.siblings for c in node.cpus})
    firsts = [(i % sockets) * (total // sockets) + (i // sockets) * cores + skip for i in range(tasks)]
    return [sum(block(first + t * total, cores) for t in range(threads)) for first in firsts]


def test_the_ready_plan_moves_only_who_is_far(site: Site) -> None:
    """Its CPU sets by chance: a task that has one of its own domain starts no process, and the planner would say the same."""
    chance = random.Random(8)
    for tasks, node in ((8, hgx()), (8, hgx(threads=2)), (4, hgx(numa=[1, 1, 0, 0, 1, 1, 0, 0])), (16, hgx(numa_per_socket=4))):
        made = published_files.planner_machine(node)
        cpu_sets = [int(line.split("\t")[7], 16) for line in published_files.render_plans(node)[tasks].splitlines()]
        first = min(cpu_sets, key=lambda mask: mask & -mask)
        masks = [mask for mask in cpu_sets if mask != first]
        chance.shuffle(masks)
        masks.insert(0, first)
        calls = site.calls(node, hexes(masks, node), "0,1,2,3,4,5,6,7", plans=published_files.plan_files(node))
        after = swapped(calls, masks)
        assert after is not None and sorted(after) == sorted(masks)
        alike = binding_plan.tasks_by_numa_domain(binding_plan.assign_gpus(made.gpus, tasks))
        far = sorted(i for group in alike for i in group if masks[i] not in {cpu_sets[t] for t in group})
        assert far
        assert [int(call.split()[0]) for call in calls] == far
        bind = hexes(masks, node)
        said = binding_plan.answer_lines(
            published_files.render_topology(node), bind, "0,1,2,3,4,5,6,7", allowed=made.online, cpus_on_node=""
        )
        assert [binding_plan.format_cpu_set(m) if m != masks[i] else "-" for i, m in enumerate(after)] == [
            s.split()[0] for s in said
        ]


FOUR: dict[str, int] = {"numa_per_socket": 2}
#: node, masks, GPUs
SWAPPED = {
    "part of each core list": (hgx(), cyclic(hgx(), 8, 13), "0,1,2,3,4,5,6,7"),
    "four GPUs of two sockets": (hgx(), cyclic(hgx(), 4, 14, skip=5), "1,2,5,6"),
    "two GPUs a task": (hgx(), cyclic(hgx(), 4, 20), "0,1,2,3,4,5,6,7"),
    "two tasks a GPU": (hgx(), cyclic(hgx(), 8, 6), "0,3,4,7"),
    "both hardware threads": (hgx(threads=2), cyclic(hgx(threads=2), 8, 13, threads=2), "0,1,2,3,4,5,6,7"),
    "one hardware thread a core": (hgx(threads=2), cyclic(hgx(threads=2), 8, 13), "0,1,2,3,4,5,6,7"),
    "single CPUs": (hgx(), cyclic(hgx(), 8, 1, skip=11), "0,1,2,3,4,5,6,7"),
    "288 CPUs": (hgx(sockets=4, cores=72, gpus=4), cyclic(hgx(sockets=4, cores=72, gpus=4), 8, 30, sockets=4), "0,1,2,3"),
    "four NUMA nodes": (hgx(**FOUR), cyclic(hgx(**FOUR), 8, 13, sockets=4), "0,1,2,3,4,5,6,7"),
    "right already": (hgx(), [block(i * 14, 13) for i in range(8)], "0,1,2,3,4,5,6,7"),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_swapped_without_python(site: Site, shell: str, case: str) -> None:
    node, masks, gpus = SWAPPED[case]
    site.cpuset(binding_plan.format_cpu_set(published_files.planner_machine(node).online), version=1 if shell == "dash" else 2)
    after = swapped(site.calls(node, hexes(masks, node), gpus, shell), masks)
    assert after is not None
    assert_planned(node, masks, after, gpus)
    text = published_files.render_topology(node)
    allowed = published_files.planner_machine(node).online
    said = binding_plan.answer_lines(text, hexes(masks, node), gpus, allowed=allowed, cpus_on_node="")
    assert [binding_plan.format_cpu_set(m) if m != masks[i] else "-" for i, m in enumerate(after)] == [s.split()[0] for s in said]


def assert_planned(node: Node, masks: list[int], after: list[int], gpus: str) -> None:
    """The CPU sets are Slurm's, of other tasks; sizes and hardware threads stay; nothing is far from its GPU."""
    machine = published_files.planner_machine(node)
    assert sorted(after) == sorted(masks)
    wanted = [g for g in machine.gpus if str(g.index) in gpus.split(",")]
    for before, now, own in zip(masks, after, binding_plan.assign_gpus(wanted, len(masks)), strict=True):
        assert binding_plan.distance(machine, now, own) == 0
        before_on, now_on = ([n for c in machine.cores if (n := (mask & c.cpus).bit_count())] for mask in (before, now))
        assert sorted(before_on) == sorted(now_on)


@pytest.mark.parametrize("gpus", ["0,1,4,5", "3,4,5,6", "0,4"])
def test_cpu_sets_that_are_all_in_one_numa_domain_stay(site: Site, gpus: str) -> None:
    """Slurm often packs a job's cores into one socket, wherever its GPUs are. The planner would say the same."""
    node, masks = hgx(), [block(14 * i, 14) for i in (0, 2, 1, 3)]
    site.cpuset("0-55", version=1)
    assert site.calls(node, hexes(masks, node), gpus) == []
    text = published_files.render_topology(node)
    assert binding_plan.answer_lines(text, hexes(masks, node), gpus, allowed=block(0, 56), cpus_on_node="") == ["- 14"] * 4


TWO = cyclic(hgx(), 4, 14)
LEFT_TO_THE_PLANNER = {
    "a CPU set on two sockets": (hgx(), [*TWO[:3], block(50, 14)], "0,1,4,5"),
    "more tasks in a domain than CPU sets": (hgx(), TWO, "0,1,2,4"),
    "CPU sets of two sizes": (hgx(), [*TWO[:3], block(70, 13)], "0,1,4,5"),
    "a core of two tasks": (hgx(threads=2), [block(0, 8), block(56, 8), block(112, 8), block(168, 8)], "0,1,4,5"),
    "both threads beside one": (hgx(threads=2), [block(0, 8), block(56, 4) | block(168, 4)], "0,4"),
    "GPUs of one task in two domains": (hgx(), TWO, "0,1,2,3,4"),
    "not in Slurm's order": (hgx(), TWO[::-1], "0,1,4,5"),
    "one CPU twice": (hgx(), [block(0, 14), block(56, 14), block(13, 14), block(70, 14)], "0,1,4,5"),
    "outside the cpuset": (hgx(), [block(0, 14), block(56, 14), block(97, 14), block(70, 14)], "0,1,4,5"),
}


@pytest.mark.parametrize("case", LEFT_TO_THE_PLANNER)
def test_left_to_the_planner(site: Site, case: str) -> None:
    """What the shell does not see through is asked of the planner, by every task."""
    node, masks, gpus = LEFT_TO_THE_PLANNER[case]
    site.cpuset(
        "0-109,112-223"
        if case == "outside the cpuset"
        else binding_plan.format_cpu_set(published_files.planner_machine(node).online),
        version=1,
    )
    assert swapped(site.calls(node, hexes(masks, node), gpus), masks) is None


def test_a_published_file_of_an_older_release(site: Site) -> None:
    """Without THREADS and MASK: the planner is asked."""
    node, masks = hgx(), cyclic(hgx(), 8, 13)
    site.cpuset("0-111", version=1)
    new = published_files.render_topology(node)
    fields = {"1": 6, "gpu": 8, "core": 5}
    rows = [line.split("\t") for line in new.splitlines()]
    old = "".join("\t".join(row[: fields[row[0]]]) + "\n" for row in rows)
    assert binding_plan.parse_topology(old).gpus[7].near == binding_plan.parse_topology(new).gpus[7].near
    assert swapped(site.calls(old, hexes(masks, node), "0,1,2,3,4,5,6,7"), masks) is None


def test_random_steps(site: Site) -> None:
    """Nodes, allocations and CPU sets by chance: all tasks swap or none, and then as planned; a step is never bound worse."""
    chance = random.Random(5)
    found = {"swapped": 0, "planner": 0, "left": 0}
    for _ in range(40):
        sockets, threads, gpus = chance.choice((2, 2, 4)), chance.choice((1, 2)), chance.choice((4, 8))
        cores, homes = chance.choice((12, 28, 60)), [i * sockets // gpus for i in range(gpus)]
        if chance.random() < 0.7:
            homes = [chance.randrange(sockets) for _ in range(gpus)]
        node = hgx(sockets=sockets, cores=cores, threads=threads, gpus=gpus, numa=homes)
        chosen = sorted(chance.sample(range(gpus), chance.randint(3, gpus)))
        each, total, both = chance.choice((1, 3)), sockets * cores, chance.choice((1, threads))
        free = [list(range(s * cores, (s + 1) * cores, each)) for s in range(sockets)]
        starts = []
        for gpu in chosen:
            home = free[homes[gpu]] if chance.random() < 0.85 else chance.choice(free)
            starts.append(home.pop(chance.randrange(len(home))))
        chance.shuffle(starts)
        starts.insert(0, starts.pop(starts.index(min(starts))))
        masks = [sum(block(s + t * total, each) for t in range(both)) for s in starts]
        listed = ",".join(map(str, chosen))
        site.cpuset(binding_plan.format_cpu_set(published_files.planner_machine(node).online), version=2)
        calls = site.calls(node, hexes(masks, node), listed)
        after = swapped(calls, masks)
        if calls and after is not None:
            assert_planned(node, masks, after, listed)
        found["left" if not calls else "planner" if after is None else "swapped"] += 1
    assert found["swapped"] > 5 and found["planner"] > 5, found
