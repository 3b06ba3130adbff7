"""Assigns equal parts of an allocation's cores to tasks, at the least summed distance between tasks and their GPUs.

`fairlead bind` uses this module to assign the cores of a node to tasks. `fairlead run` uses it to assign the CPUs of one task to
the task's ranks. The module imports nothing that is slow to import, because `fairlead run` starts once for every rank.
"""

from __future__ import annotations

from fairlead.model.cpulist import cpus_in
from fairlead.topology.binding.binding_plan import GpuLocation, Machine, tasks_by_numa_domain
from fairlead.topology.binding.transport import CpuPiece, assign_pieces


def assign_cores(
    machine: Machine, cpus_of_cores: list[int], gpus_of_task: list[list[GpuLocation]], notes: list[str]
) -> list[int]:
    """Return the CPU sets by rank. They have whole cores if there are enough cores, else single CPUs if there are enough CPUs,
    else CPUs that several tasks share.

    ``cpus_of_cores``: for each core, in the machine's order, the CPUs that may be used. ``gpus_of_task``: the GPUs by rank. If
    tasks share cores or CPUs, a text is added to ``notes``.
    """
    tasks = len(gpus_of_task)
    pieces = [(core, cpu_set) for core, cpu_set in enumerate(cpus_of_cores) if cpu_set]
    if (cores := len(pieces)) < tasks:
        pieces = [(core, 1 << cpu) for core, cpu_set in pieces for cpu in cpus_in(cpu_set)]
        if (cpus := len(pieces)) < tasks:
            notes.append(f"{tasks} tasks on {cpus} CPUs: tasks share CPUs")
            pieces *= -(-tasks // cpus)
        else:
            notes.append(f"{tasks} tasks on {cores} cores: tasks share cores")
    each = len(pieces) // tasks
    groups = tasks_by_numa_domain(gpus_of_task)
    distances = [_DistanceToGpus(machine, gpus_of_task[group[0]]) for group in groups]
    items = [CpuPiece(cpu_set, tuple(distance(core, cpu_set) for distance in distances)) for core, cpu_set in pieces]
    assigned = assign_pieces(items, groups, [each] * tasks)
    return [assigned[rank] for rank in range(tasks)]


class _DistanceToGpus:
    """Computes the distance of CPUs on one core to the GPUs of one task. binding_plan.distance does the same for any CPUs."""

    def __init__(self, machine: Machine, gpus: list[GpuLocation]) -> None:
        self._packages = [c.package for c in machine.cores]
        self._gpus = [(g.near, {c.package for c in machine.cores if c.cpus & g.near}) for g in gpus if g.near]

    def __call__(self, core: int, cpu_set: int) -> int:
        """Return the distance of ``cpu_set``. ``core``: the position of its core in the machine's list of cores."""
        package = self._packages[core]
        return sum((cpu_set & ~near).bit_count() * (1 if package in packages else 2) for near, packages in self._gpus)
