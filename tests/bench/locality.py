"""How many tasks get a GPU of their own that is near their CPUs: one task a GPU, on every recorded and published machine.

Beside `fairlead bind`: Slurm's default distribution (cores dealt to tasks in turn over the sockets) with --gpu-bind=closest
(every GPU whose Cores overlap the task's CPUs; the program takes number LOCAL_RANK modulo what it sees, srun(1)), an even
split of the cores in order with GPU i for rank i, and mpibind's rule as its source has it (LLNL/mpibind d529180,
src/internals.c: distrib_greedy and distrib_mem_hierarchy, gpu_match). Machines where nobody knows a GPU's place are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.model.facts import Node
from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.node_binding import physical_cores, plan_binding
from fairlead.topology.distances import locality
from fairlead.topology.distances.accelerators import accelerators
from tests.bench.rows import Row
from tests.topology.topology_nodes import MODELS, SITES, node, recorded_names

Assigned = list[tuple[set[int], list[str]]]  # by rank: CPUs, GPUs that the task uses


def near(machine: Node) -> dict[str, set[int]]:
    return {g.pci: set(locality.of_pci(machine, g.pci).cpus) for g in accelerators(machine)}


def cores(machine: Node) -> list[set[int]]:
    ordered = sorted(physical_cores(machine), key=lambda c: c.order())
    return [{i for i in range(c.cpus.bit_length()) if c.cpus >> i & 1} for c in ordered]


def ours(machine: Node, tasks: int) -> Assigned:
    return [(cpus(t.cpus), list(t.gpus)) for t in plan_binding(machine, tasks).tasks]


def cpus(text: str) -> set[int]:
    mask = binding_plan.parse_cpu_set(text)
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


def even_split(machine: Node, tasks: int) -> Assigned:
    every, gpus = cores(machine), list(near(machine))
    each = len(every) // tasks
    return [(set().union(*every[i * each : (i + 1) * each]), [gpus[i]]) for i in range(tasks)]


def closest(machine: Node, tasks: int) -> Assigned:
    places = near(machine)
    package = {c.id: c.package for c in machine.cpus}
    sockets: dict[int, list[set[int]]] = {}
    for core in cores(machine):
        sockets.setdefault(package.get(min(core), -1), []).append(core)
    each = len(cores(machine)) // tasks
    assigned: Assigned = []
    for rank in range(tasks):
        order = sorted(sockets)
        order = order[rank % len(order) :] + order[: rank % len(order)]
        mine: set[int] = set()
        for _ in range(each):
            socket = next(s for s in order if sockets[s])
            mine |= sockets[socket].pop(0)
        seen = [g for g, cpus_of in places.items() if cpus_of & mine or not cpus_of]
        assigned.append((mine, [seen[rank % len(seen)]] if seen else []))
    return assigned


def mpibind(machine: Node, tasks: int) -> Assigned:
    nodes = sorted(machine.numa, key=lambda n: n.id)
    online = set(locality.online(machine))
    gpus = {n.id: [g.pci for g in accelerators(machine) if _numa(machine, g.pci) == n.id] for n in nodes}
    assigned: Assigned = []
    if tasks < len(nodes):
        share, rest = divmod(len(nodes), tasks)
        at = 0
        for rank in range(tasks):
            mine = nodes[at : at + share + (rank < rest)]
            at += len(mine)
            assigned.append((set().union(*(set(n.cpus) & online for n in mine)), [g for n in mine for g in gpus[n.id]]))
        return assigned
    weight = {n.id: len(gpus[n.id]) for n in nodes}
    if not any(weight.values()):
        weight = {n.id: len(set(n.cpus) & online) for n in nodes}
    whole = sum(weight.values())
    count = {n: tasks * w // whole for n, w in weight.items()}
    for n in sorted(weight, key=lambda n: -(tasks * weight[n] % whole))[: tasks - sum(count.values())]:
        count[n] += 1
    for n in nodes:
        if not count[n.id]:
            continue
        inside = [c for c in cores(machine) if c & set(n.cpus)]
        cards = gpus[n.id]
        for i in range(count[n.id]):
            part = inside[i * len(inside) // count[n.id] : (i + 1) * len(inside) // count[n.id]]
            if count[n.id] >= len(cards):
                mine_gpus = [cards[i * len(cards) // count[n.id]]] if cards else []
            else:
                mine_gpus = cards[i * len(cards) // count[n.id] : (i + 1) * len(cards) // count[n.id]]
            assigned.append((set().union(*part) if part else set(), mine_gpus))
    return assigned


def _numa(machine: Node, pci: str) -> int:
    return locality.of_pci(machine, pci).numa


def good(machine: Node, assigned: Assigned) -> int:
    """Tasks with CPUs near a GPU that they use alone."""
    places = near(machine)
    users = [g for _, gpus in assigned for g in gpus]
    return sum(1 for mine, gpus in assigned if any(users.count(g) == 1 and mine & places[g] for g in gpus))


POLICIES: dict[str, Callable[[Node, int], Assigned]] = {
    "--gpu-bind=closest": closest,
    "even split": even_split,
    "mpibind's rule": mpibind,
}


def measure(names: list[str]) -> tuple[int, int, dict[str, int]]:
    """Machines, tasks, and good tasks by policy (ours is "")."""
    machines = tasks = 0
    counts = dict.fromkeys(["", *POLICIES], 0)
    for name in names:
        machine = node(name)
        places = near(machine)
        if not places or not all(places.values()) or len(physical_cores(machine)) < len(places):
            continue
        machines += 1
        tasks += len(places)
        counts[""] += good(machine, ours(machine, len(places)))
        for policy, deal in POLICIES.items():
            counts[policy] += good(machine, deal(machine, len(places)))
    return machines, tasks, counts


def rows() -> list[Row]:
    found = []
    for what, names in (("recorded in ../shared/data", recorded_names()), ("of the lab", [*MODELS, *SITES])):
        machines, tasks, counts = measure(names)
        if not tasks:
            continue
        lost = {policy: 100 * (tasks - count) / tasks for policy, count in counts.items()}
        beside = ", ".join(f"{policy} {share:.0f} %" for policy, share in lost.items() if policy)
        detail = f"({tasks} tasks, one a GPU)"
        found.append(Row(f"tasks without a near GPU of their own, {machines} machines {what}", lost[""], 0, "%", beside, detail))
    return found


if __name__ == "__main__":
    for row in rows():
        print(row)
