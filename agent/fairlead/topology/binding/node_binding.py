"""Plans the binding of one node for any number of tasks and any part of its GPUs and CPUs.

Rank i always has GPU i of the allocation, and the plan chooses the CPUs. Each task has the same number of whole cores, at the
least summed distance between tasks and their GPUs. Only a request without CPUs is refused. If the NUMA domain of a GPU is not
known, the CPU sets are equal consecutive parts, and the notes say so. The task prolog's planner (binding_plan.py) redistributes
the CPU sets that Slurm assigned by the same distance.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fairlead.errors import DataError, UsageError
from fairlead.model.cpulist import as_cpu_set, cpus_in, format_cpu_set
from fairlead.model.facts import Missing, Node, NumaNode
from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.binding_plan import Core, GpuLocation, Machine
from fairlead.topology.binding.core_assignment import assign_cores
from fairlead.topology.distances import locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator, accelerators

TASKS_MAX = 4096


class TaskBinding(Struct, frozen=True, kw_only=True):
    """Holds the binding of one task. memory: the memory policy in numactl's words, such as "preferred:0", or "default" if no NUMA
    node fits."""

    rank: int
    gpus: tuple[str, ...]  # PCI addresses
    cpus: str
    numa: tuple[int, ...]
    nics: tuple[str, ...]
    memory: str


class BindingPlan(Struct, frozen=True, kw_only=True):
    """Holds the bindings of all tasks by rank.

    distance: the sum over all pairs of a task's CPU and a GPU of that task. A pair counts 0 if the CPU is near the GPU, 1 if it
    is in the same package, else 2.
    """

    tasks: tuple[TaskBinding, ...]
    distance: int
    notes: tuple[str, ...]


def chosen_gpus(node: Node, wanted: Sequence[str]) -> tuple[Accelerator, ...]:
    """Return the GPUs that ``wanted`` names by index, PCI address or UUID, in its order. Return all GPUs if ``wanted`` is empty.

    Raise UsageError for a name that fits no GPU and for a GPU that is named twice.
    """
    every = accelerators(node)
    if not wanted:
        return tuple(g for g in every if not g.passed_through)
    found = []
    for word in wanted:
        hits = [g for g in every if word in (str(g.index), g.pci, g.uuid)]
        if not hits:
            raise UsageError(f"--gpus: no GPU {word!r} here", hint="`fairlead topology` lists them")
        if hits[0] in found:
            raise UsageError(f"--gpus: {word} is named twice")
        found.append(hits[0])
    return tuple(found)


def physical_cores(node: Node) -> list[Core]:
    """Return the cores with their online CPUs. Every CPU is on exactly one core, even if the sysfs files of its siblings
    contradict that."""
    up = as_cpu_set(locality.online(node))
    cores = []
    seen = 0
    for cpu in sorted(node.cpus, key=lambda c: c.id):
        every = as_cpu_set(cpu.siblings or (cpu.id,)) & up & ~seen
        if not cpu.online or not every >> cpu.id & 1:
            continue
        seen |= every
        cores.append(Core(cpu.package, cpu.numa, cpu.l3, every))
    homes = {cpu: n.id for n in node.numa for cpu in n.cpus}
    for cpu_id in cpus_in(up & ~seen):
        cores.append(Core(-1, homes.get(cpu_id, -1), -1, 1 << cpu_id))
    return cores


def plan_binding(
    node: Node, tasks: int, *, gpus: Sequence[str] = (), allowed: int | None = None, threads_per_core: int | None = None
) -> BindingPlan:
    """Return the binding of ``tasks`` tasks.

    ``gpus``: see chosen_gpus. ``allowed``: the CPU set of the allocation, or None for all online CPUs. ``threads_per_core``: the
    largest number of hardware threads of a core to use, or None for all. Raise UsageError for an impossible number of tasks or an
    unknown GPU, and DataError if there is no CPU at all.
    """
    if not 1 <= tasks <= TASKS_MAX:
        raise UsageError(f"--tasks: {tasks} is not between 1 and {TASKS_MAX}")
    if threads_per_core is not None and threads_per_core < 1:
        raise UsageError(f"--threads-per-core: {threads_per_core} is not a positive number")
    chosen = chosen_gpus(node, gpus)
    online = as_cpu_set(locality.online(node))
    if not online:
        raise DataError("no online CPU is described", hint="sys/devices/system/cpu must be part of the tree")
    usable = online if allowed is None else online & allowed
    if not usable:
        raise UsageError("--cpus: none of these CPUs is online", hint=f"online are {format_cpu_set(online)}")
    notes = []
    offline = (allowed or 0) & ~online
    if offline:
        notes.append(f"CPUs {format_cpu_set(offline)} are not online: left out")
    locations = _gpu_locations(node, chosen, notes)
    machine = Machine(online, physical_cores(node), locations)
    gpus_of_task = binding_plan.assign_gpus(locations, tasks) if locations else [[] for _ in range(tasks)]
    cpus_of_cores = [_lowest_threads(c.cpus & usable, threads_per_core) for c in machine.cores]
    cpu_sets = assign_cores(machine, cpus_of_cores, gpus_of_task, notes)
    best = {gpu.pci: tuple(n.name for n in nearest_nics.nearest(node, gpu.pci)[0]) for gpu in chosen}
    bindings = [
        _task_binding(node, rank, cpu_set, gpus, best)
        for rank, (cpu_set, gpus) in enumerate(zip(cpu_sets, gpus_of_task, strict=True))
    ]
    distance = binding_plan.total_distance(machine, cpu_sets, gpus_of_task)
    return BindingPlan(tasks=tuple(bindings), distance=distance, notes=tuple(notes))


def _gpu_locations(node: Node, gpus: Sequence[Accelerator], notes: list[str]) -> list[GpuLocation]:
    """Return the locations of the GPUs. A text is added to ``notes`` for GPUs whose location is not known from their NUMA
    node."""
    found = []
    said: dict[str, list[str]] = {}
    for gpu in gpus:
        where = locality.of_pci(node, gpu.pci)
        found.append(GpuLocation(gpu.index, gpu.pci, where.numa, as_cpu_set(where.cpus)))
        if where.note:
            what = where.note if where.cpus else f"{where.note}: the CPUs are split evenly instead of by nearness"
            said.setdefault(what, []).append(gpu.pci)
    notes += [f"GPU {', '.join(pci)}: {what}" for what, pci in said.items()]
    return found


def _task_binding(
    node: Node, rank: int, cpu_set: int, gpus: list[GpuLocation], best_nics: dict[str, tuple[str, ...]]
) -> TaskBinding:
    cpus_on_numa = {n.id: (as_cpu_set(n.cpus) & cpu_set).bit_count() for n in node.numa}
    return TaskBinding(
        rank=rank,
        gpus=tuple(g.pci for g in gpus),
        cpus=format_cpu_set(cpu_set),
        numa=tuple(sorted(n for n, count in cpus_on_numa.items() if count)),
        nics=tuple(dict.fromkeys(name for g in gpus for name in best_nics[g.pci])),
        memory=_memory_policy(node, cpus_on_numa, {g.numa for g in gpus}),
    )


def _memory_policy(node: Node, cpus_on_numa: dict[int, int], near: set[int]) -> str:
    """Return the memory policy of one task. The policy prefers the NUMA node of the task's GPU if the task has CPUs on that node,
    else the NUMA node with most of the task's CPUs. If the chosen node has no memory, the policy prefers the nearest node with
    memory.

    ``cpus_on_numa``: how many CPUs the task has on each NUMA node. ``near``: the NUMA nodes of its GPUs. Only NUMA nodes with
    CPUs count, because GPU memory can also be a NUMA node (GH200), and binding to that node would fill the GPU.
    """
    homes = [n for n, count in cpus_on_numa.items() if count]
    if not homes:
        return "default"
    home = min(homes, key=lambda n: (n not in near, -cpus_on_numa[n], n))
    fit = [n for n in locality.with_cpus(node) if _has_memory(n)]
    if any(n.id == home for n in fit):
        return f"preferred:{home}"
    own = next(n for n in node.numa if n.id == home)
    distances = dict(zip(sorted(n.id for n in node.numa), own.distances, strict=False))
    nearest = min(fit, key=lambda n: (distances.get(n.id, 255), n.id), default=None)
    return "default" if nearest is None else f"preferred:{nearest.id}"


def _has_memory(numa: NumaNode) -> bool:
    """Return whether a NUMA node has memory. The result is True if the size could not be read, because the kernel has made the
    node."""
    return isinstance(numa.memory_bytes, Missing) or numa.memory_bytes > 0


def _lowest_threads(cpu_set: int, count: int | None) -> int:
    """Return the ``count`` lowest CPUs of a CPU set, or all its CPUs if ``count`` is None."""
    return cpu_set if count is None else as_cpu_set(cpus_in(cpu_set)[:count])
