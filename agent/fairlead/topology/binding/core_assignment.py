"""Even shares of an allocation's cores, at the least summed distance between tasks and their GPUs.

`fairlead bind` deals a node to tasks with it, `fairlead run` a task's CPUs to its ranks. Like plan.py it imports nothing that
costs time: `fairlead run` starts once for every rank.
"""

from __future__ import annotations

from fairlead.model.cpulist import cpus_in
from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.binding_plan import Machine, Place
from fairlead.topology.binding.transport import Item, share_out


def deal(machine: Machine, parts: list[int], hands: list[list[Place]], notes: list[str]) -> list[int]:
    """CPU sets by rank: whole cores while there are enough, else CPUs, else CPUs that several tasks share.

    ``parts``: of each core, in the machine's order, the CPUs that may be used. ``notes`` gets what is worth saying.
    """
    tasks = len(hands)
    pieces = [(home, part) for home, part in enumerate(parts) if part]
    if (cores := len(pieces)) < tasks:
        pieces = [(home, 1 << cpu) for home, part in pieces for cpu in cpus_in(part)]
        if (cpus := len(pieces)) < tasks:
            notes.append(f"{tasks} tasks on {cpus} CPUs: tasks share CPUs")
            pieces *= -(-tasks // cpus)
        else:
            notes.append(f"{tasks} tasks on {cores} cores: tasks share cores")
    each = len(pieces) // tasks
    groups = binding_plan.alike(hands)
    costs = [_Cost(machine, hands[group[0]]) for group in groups]
    items = [Item(piece, tuple(cost(home, piece) for cost in costs)) for home, piece in pieces]
    dealt = share_out(items, groups, [each] * tasks)
    return [dealt[rank] for rank in range(tasks)]


class _Cost:
    """The distance of CPUs on one core to the GPUs of one task."""

    def __init__(self, machine: Machine, hand: list[Place]) -> None:
        self._packages = [c.package for c in machine.cores]
        self._gpus = [(g.near, {c.package for c in machine.cores if c.cpus & g.near}) for g in hand if g.near]

    def __call__(self, core: int, cpus: int) -> int:
        package = self._packages[core]
        return sum((cpus & ~near).bit_count() * (1 if package in packages else 2) for near, packages in self._gpus)
