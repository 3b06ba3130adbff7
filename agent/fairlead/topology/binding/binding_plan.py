"""Computes the binding plan of one step: which CPUs each of its tasks should have.

The task prolog runs this module in an isolated Python, so it imports only transport.py and model/cpulist.py. Every task of a
step computes the same plan from the same input. A CPU set is an integer with bit N set for CPU N.

The plan redistributes the CPUs that Slurm assigned to the tasks. Every task keeps its number of CPUs and its threads-per-core
pattern, and the union of all CPU sets stays the same. The summed distance between tasks and their GPUs is the least possible. If
several plans have that distance, tasks keep the CPU sets that they have, as far as possible. If the input is not clear, the
module raises Doubt, and Slurm's masks stay.
"""

from __future__ import annotations

from fairlead.model import cpulist
from fairlead.model.cpulist import format_cpu_set
from fairlead.topology.binding import transport
from fairlead.topology.binding.transport import CpuPiece, assign_pieces

Doubt = transport.Doubt
TASKS_MAX = 1024
CPUS_MAX = 8192


class Core:
    """Holds one physical core: its CPUs (hardware threads), and the numbers of its package, NUMA node and L3 cache, or -1 if
    unknown."""

    __slots__ = ("cpus", "l3", "numa", "package")

    def __init__(self, package: int, numa: int, l3: int, cpus: int) -> None:
        self.package = package
        self.numa = numa
        self.l3 = l3
        self.cpus = cpus

    def order(self) -> tuple[int, int, int, int]:
        return (self.package, self.numa, self.l3, self.cpus & -self.cpus)


class GpuLocation:
    """Says where one GPU or one MIG device is. ``near``: the CPU set nearest to it, or 0 if not known. ``index``: Slurm's GRES
    index, or -1 if not known."""

    __slots__ = ("index", "near", "nics", "numa", "pci")

    def __init__(self, index: int, pci: str, numa: int, near: int, nics: str = "-") -> None:
        self.index = index
        self.pci = pci
        self.numa = numa
        self.near = near
        self.nics = nics


#: A piece is a set of CPUs that tasks can exchange as a whole. The fields are the task that has the CPUs now, their CPU set, and
#: their core (None for CPUs on several cores).
Piece = tuple[int, int, Core | None]


class Machine:
    """Describes a node as the planner sees it: the ``online`` CPU set, the cores in order, and the GPUs by PCI address.

    The planner reads it from /run/fairlead/topology. ``by_uuid``: the GPUs and the MIG devices by UUID. ``indexed``: whether the
    GRES index of each GPU is known. It is not known if a GPU of the node is in MIG mode. ``listed``: the GPUs and MIG devices by
    GRES index on such a node, if gres.conf lists them.
    """

    __slots__ = ("by_uuid", "cores", "gpus", "indexed", "listed", "online")

    def __init__(
        self,
        online: int,
        cores: list[Core],
        gpus: list[GpuLocation],
        by_uuid: dict[str, GpuLocation] | None = None,
        listed: dict[int, GpuLocation] | None = None,
    ) -> None:
        self.online = online
        self.cores = sorted(cores, key=Core.order)
        self.gpus = gpus
        self.by_uuid = by_uuid or {}
        self.listed = listed or {}
        self.indexed = all(gpu.index >= 0 for gpu in gpus)


def parse_cpu_set(text: str) -> int:
    """Return the CPU set of ``0-3,8``. Raise Doubt for text that is not a CPU list, and for CPU numbers from CPUS_MAX on."""
    try:
        cpu_set = cpulist.parse_cpu_set(text)
    except ValueError as e:
        raise Doubt(f"not a CPU list: {text[:80]!r}") from e
    if cpu_set.bit_length() > CPUS_MAX:
        raise Doubt(f"not a CPU list: {text[:80]!r}")
    return cpu_set


def parse_masks(text: str) -> list[int]:
    """Return the CPU sets of SLURM_CPU_BIND_LIST (``0x...,0x...``), one for each local task. Raise Doubt for other text."""
    masks = []
    for part in text.split(","):
        digits = part[2:] if part[:2] in ("0x", "0X") else part
        if not digits or len(digits) > CPUS_MAX // 4 or digits.strip("0123456789abcdefABCDEF"):
            raise Doubt(f"not a mask: {part[:40]!r}")
        masks.append(int(digits, 16))
    if len(masks) > TASKS_MAX:
        raise Doubt("too many masks")
    return masks


def parse_indices(text: str) -> list[int]:
    """Return the GRES indices of SLURM_STEP_GPUS (``0,1,4-7``) in its order. Raise Doubt for other text."""
    found: list[int] = []
    for part in text.split(","):
        found += cpulist.cpus_in(parse_cpu_set(part))
    if len(set(found)) != len(found):
        raise Doubt("a GPU is named twice")
    return found


def parse_topology(text: str) -> Machine:
    """Return the machine of a published topology file. Raise Doubt for a file that is not complete."""
    lines = text.split("\n")
    head = lines[0].split("\t")
    if lines[-1] != "" or len(head) < 5 or head[:2] != ["1", "node"]:
        raise Doubt("topology file: not complete, or not of this version")
    cores, gpus, by_uuid, listed = [], [], {}, {}
    try:
        for line in lines[1:-1]:
            fields = line.split("\t")
            if fields[0] == "gpu":
                near = 0 if fields[6] == "-" else parse_cpu_set(fields[6])
                gpus.append(GpuLocation(_number(fields[1]), fields[4], _number(fields[5]), near, fields[7]))
                by_uuid[fields[3]] = gpus[-1]
            elif fields[0] == "mig":
                near = 0 if fields[7] == "-" else parse_cpu_set(fields[7])
                by_uuid[fields[1]] = GpuLocation(-1, fields[2], _number(fields[6]), near, fields[8])
            elif fields[0] == "gres" and fields[2] in by_uuid:
                listed[int(fields[1])] = by_uuid[fields[2]]
            elif fields[0] == "core":
                package, numa, l3 = (_number(f) for f in fields[1:4])
                cores.append(Core(package, numa, l3, parse_cpu_set(fields[4])))
        if len(gpus) != int(head[3]):
            raise Doubt("topology file: GPUs are missing")
    except (IndexError, ValueError) as e:
        raise Doubt(f"topology file: {e}") from e
    by_uuid.pop("-", None)
    return Machine(parse_cpu_set(head[4]), cores, gpus, by_uuid, listed)


def _number(field: str) -> int:
    return -1 if field == "-" else int(field)


def gpus_by_uuid(machine: Machine, visible: str) -> list[GpuLocation]:
    """Return the GPUs and MIG devices that CUDA_VISIBLE_DEVICES names by UUID, in its order. Raise Doubt for any other text."""
    found = [machine.by_uuid[word] for word in visible.split(",") if word in machine.by_uuid]
    if len(found) != visible.count(",") + 1 or len(set(visible.split(","))) != len(found):
        raise Doubt("the visible devices are not UUIDs of this node's GPUs, each named once")
    return found


def gpus_by_list(machine: Machine, indices: list[int], visible: str) -> list[GpuLocation]:
    """Return the GPUs and MIG devices of these GRES indices, on a node whose gres.conf lists them. Raise Doubt if one is not
    listed, or if CUDA_VISIBLE_DEVICES is no list of as many numbers."""
    words = visible.split(",")
    if len(words) != len(indices) or not all(word.isascii() and word.isdigit() for word in words):
        raise Doubt("the visible devices are neither UUIDs nor numbers of the step's GPUs")
    if any(index not in machine.listed for index in indices):
        raise Doubt("gres.conf does not say which MIG device an index means")
    return [machine.listed[index] for index in indices]


def assign_gpus(gpus: list[GpuLocation], tasks: int) -> list[list[GpuLocation]]:
    """Return the GPUs of each task, by rank, as programs choose them.

    Rank i uses GPU i. If there are more tasks than GPUs, rank i uses GPU i modulo the number of GPUs. If there are fewer tasks
    than GPUs, each task uses a group of consecutive GPUs.
    """
    count = len(gpus)
    if tasks <= count:
        return [gpus[i * count // tasks : (i + 1) * count // tasks] for i in range(tasks)]
    return [[gpus[i % count]] for i in range(tasks)]


def distance(machine: Machine, cpu_set: int, gpus: list[GpuLocation]) -> int:
    """Return the distance between CPUs and GPUs, summed over all pairs of a CPU and a GPU. A pair counts 0 if the CPU is near the
    GPU, 1 if it is in the same package as a near CPU, else 2."""
    total = 0
    for gpu in gpus:
        if not gpu.near:
            continue
        packages = {c.package for c in machine.cores if c.cpus & gpu.near}
        for core in machine.cores:
            far = core.cpus & cpu_set & ~gpu.near
            if far:
                total += far.bit_count() * (1 if core.package in packages else 2)
    return total


def total_distance(machine: Machine, cpu_sets: list[int], gpus_of_task: list[list[GpuLocation]]) -> int:
    """Return the sum of the distances of all tasks. The CPU sets and the GPUs are given in the order of the tasks' ranks."""
    return sum(distance(machine, cpu_set, gpus) for cpu_set, gpus in zip(cpu_sets, gpus_of_task, strict=True))


def tasks_by_numa_domain(gpus_of_task: list[list[GpuLocation]]) -> list[list[int]]:
    """Return the ranks in groups. The tasks of a group have GPUs with the same near CPUs, and may exchange their CPU sets."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for task, gpus in enumerate(gpus_of_task):
        groups.setdefault(tuple(sorted(g.near for g in gpus)), []).append(task)
    return list(groups.values())


def permute_cpu_sets(machine: Machine, masks: list[int], gpus: list[GpuLocation], allowed: int) -> list[int]:
    """Return the planned CPU sets of a step's local tasks: the CPUs of ``masks`` redistributed, or ``masks`` unchanged if that
    gains nothing.

    ``masks``: Slurm's CPU sets by local task. ``allowed``: the CPU set of the step's cpuset. Raise Doubt if the masks are not
    disjoint parts of the allowed set, or the location of a GPU is not known.
    """
    check_masks(machine, masks, gpus, allowed)
    gpus_of_task = assign_gpus(gpus, len(masks))
    before = total_distance(machine, masks, gpus_of_task)
    if not before:
        return masks
    groups = tasks_by_numa_domain(gpus_of_task)
    costs = _Costs(machine, gpus, [gpus_of_task[group[0]] for group in groups])
    pieces = pieces_of_cores(machine, masks)
    patterns = threads_per_core(pieces, len(masks))
    planned = [0] * len(masks)
    for alike in exchangeable(pieces, masks, patterns):
        wanted = [0] * len(masks)
        for task, _, _ in alike:
            wanted[task] += 1
        items = [CpuPiece(cpu_set, costs.of(cpu_set, core)) for _, cpu_set, core in alike]
        for task, cpu_set in assign_pieces(items, groups, wanted).items():
            planned[task] |= cpu_set
    if total_distance(machine, planned, gpus_of_task) >= before:
        return masks
    keep_own_cpu_sets(masks, planned, groups, patterns)
    check_permutation(masks, planned)
    return planned


def check_masks(machine: Machine, masks: list[int], gpus: list[GpuLocation], allowed: int) -> None:
    """Raise Doubt unless ``masks`` are disjoint, not empty and within ``allowed``, and each GPU's near CPUs are known."""
    union = total = 0
    for mask in masks:
        if not mask:
            raise Doubt("a task without CPUs")
        union |= mask
        total += mask.bit_count()
    known = 0
    for core in machine.cores:
        known |= core.cpus
    if total != union.bit_count():
        raise Doubt("tasks share CPUs")
    if union & ~allowed or union & ~known:
        raise Doubt("a task's CPUs are outside the step's cpuset")
    if not gpus or any(not g.near for g in gpus):
        raise Doubt("the location of a GPU is not known")


def pieces_of_cores(machine: Machine, masks: list[int]) -> list[Piece]:
    """Return a piece for each core and each task that has CPUs of that core, in the order of cores and tasks."""
    return [(task, mask & core.cpus, core) for core in machine.cores for task, mask in enumerate(masks) if mask & core.cpus]


def threads_per_core(pieces: list[Piece], tasks: int) -> list[tuple[int, ...]]:
    """Return for each task how many threads it has on its cores, sorted: (2, 2, 2) for three cores with both threads."""
    counts: list[list[int]] = [[] for _ in range(tasks)]
    for task, cpu_set, _ in pieces:
        counts[task].append(cpu_set.bit_count())
    return [tuple(sorted(each)) for each in counts]


def exchangeable(pieces: list[Piece], masks: list[int], patterns: list[tuple[int, ...]]) -> list[list[Piece]]:
    """Return the pieces in groups. Tasks may exchange pieces of a group without changing their threads-per-core patterns.

    A group has the pieces with the same number of threads of their core. If a core is split between tasks, a group has the
    whole CPU sets (``masks``) of the tasks with the same pattern instead.
    """
    groups: dict[tuple[int, ...], list[Piece]] = {}
    if len({id(core) for _, _, core in pieces}) < len(pieces):
        for task, mask in enumerate(masks):
            groups.setdefault(patterns[task], []).append((task, mask, None))
    else:
        for piece in pieces:
            groups.setdefault((piece[1].bit_count(),), []).append(piece)
    return list(groups.values())


class _Costs:
    """Computes the distances of pieces to the GPUs of each group of tasks, and computes them only once for equal pieces."""

    __slots__ = ("_gpus", "_gpus_of_group", "_known", "_machine")

    def __init__(self, machine: Machine, gpus: list[GpuLocation], gpus_of_group: list[list[GpuLocation]]) -> None:
        self._machine = machine
        self._gpus = gpus
        self._gpus_of_group = gpus_of_group
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def of(self, cpu_set: int, core: Core | None) -> tuple[int, ...]:
        """Return the distances of these CPUs to each group's GPUs. ``core``: the core of the CPUs, or None for several cores."""
        # On one core the distances depend only on its package and on how many of its CPUs are near which GPU.
        near = [(cpu_set & g.near).bit_count() for g in self._gpus]
        key = (cpu_set,) if core is None else (core.package, cpu_set.bit_count(), *near)
        if key not in self._known:
            self._known[key] = tuple(distance(self._machine, cpu_set, gpus) for gpus in self._gpus_of_group)
        return self._known[key]


def keep_own_cpu_sets(masks: list[int], planned: list[int], groups: list[list[int]], patterns: list[tuple[int, ...]]) -> None:
    """Change ``planned`` so that few tasks move: tasks of one group with the same pattern exchange their planned CPU sets.

    If a task's own mask was planned for any task of its group and pattern, the task keeps its mask. The other tasks get the
    remaining CPU sets in the order in which Slurm assigned them. ``masks``: Slurm's CPU sets by task. ``patterns``: see
    threads_per_core.
    """
    owner = {mask: task for task, mask in enumerate(masks)}
    for group in groups:
        for pattern in {patterns[t] for t in group}:
            tasks = [t for t in group if patterns[t] == pattern]
            stay = {masks[t] for t in tasks} & {planned[t] for t in tasks}
            left = [planned[t] for t in tasks if planned[t] not in stay]
            rest = iter(sorted(left, key=lambda mask: owner.get(mask, len(masks))))
            for t in tasks:
                planned[t] = masks[t] if masks[t] in stay else next(rest)


def check_permutation(before: list[int], after: list[int]) -> None:
    """Raise Doubt unless every task has as many CPUs as before, no two tasks share a CPU, and all tasks together have the same
    CPUs as before."""
    union = 0
    for old, new in zip(before, after, strict=True):
        if old.bit_count() != new.bit_count() or union & new:
            raise Doubt("the plan changes a task's number of CPUs, or tasks share CPUs")
        union |= new
    for old in before:
        union &= ~old
    if union:
        raise Doubt("the plan has CPUs that Slurm did not assign")


def whole_node_cpu_sets(machine: Machine, tasks: int) -> list[int]:
    """Return the CPU sets of ``tasks`` tasks that have the whole node, with equal numbers of whole cores. Raise Doubt if
    impossible."""
    cores = [c for c in machine.cores if c.cpus & machine.online]
    each = len(cores) // tasks
    if not each or not machine.gpus or any(not g.near for g in machine.gpus):
        raise Doubt("fewer cores than tasks, or the location of a GPU is not known")
    if len({(c.cpus & machine.online).bit_count() for c in cores}) != 1:
        raise Doubt("cores with and without hardware threads")
    gpus_of_task = assign_gpus(machine.gpus, tasks)
    groups = tasks_by_numa_domain(gpus_of_task)
    costs = _Costs(machine, machine.gpus, [gpus_of_task[group[0]] for group in groups])
    pieces = [CpuPiece(c.cpus & machine.online, costs.of(c.cpus & machine.online, c)) for c in cores]
    assigned = assign_pieces(pieces, groups, [each] * tasks)
    return [assigned[t] for t in range(tasks)]


def widen_to_whole_node(machine: Machine, masks: list[int], planned: list[int]) -> list[int]:
    """Return equal CPU sets of all cores, for a step that has the whole node and whose user gave no number of CPUs.

    ``masks``: Slurm's CPU sets by task. Return ``planned`` if a task would lose CPUs, or if a task has only part of a core
    because of ``--hint``.
    """
    if any(mask & c.cpus not in (0, c.cpus & machine.online) for c in machine.cores for mask in masks):
        return planned
    try:
        wide = whole_node_cpu_sets(machine, len(masks))
    except Doubt:
        return planned
    if all(new.bit_count() >= old.bit_count() for new, old in zip(wide, masks, strict=True)) and wide != planned:
        return wide
    return planned


def count_cores(machine: Machine, cpu_set: int) -> int:
    """Return the number of physical cores of which a CPU set has at least one CPU."""
    return sum(1 for c in machine.cores if c.cpus & cpu_set)


def answer_lines(
    topology: str, bind_list: str, step_gpus: str, *, allowed: int, cpus_on_node: str, visible: str = ""
) -> list[str]:
    """Return the lines that slurm/bind-plan prints, one for each local task: ``CPULIST CORES``, or ``- CORES`` to keep Slurm's
    mask.

    ``topology``: the text of /run/fairlead/topology. ``bind_list``, ``step_gpus``: SLURM_CPU_BIND_LIST and SLURM_STEP_GPUS.
    ``allowed``: the CPU set of the step's cpuset. ``cpus_on_node``: SLURM_CPUS_ON_NODE if the cpuset belongs to the step alone
    and the user gave no number of CPUs, else "". ``visible``: CUDA_VISIBLE_DEVICES. Raise Doubt if the input is not clear.

    On a node with a GPU in MIG mode, Slurm's index does not show which GPU it means. There, rank i has the i-th GPU or MIG device
    of ``visible``. If gres.conf lists the devices, ``visible`` has only numbers, and rank i has the i-th index of ``step_gpus``.
    On other nodes ``visible`` must have no MIG device.
    """
    machine = parse_topology(topology)
    masks, wanted = parse_masks(bind_list), parse_indices(step_gpus)
    if machine.indexed and "MIG" not in visible:
        gpus = [gpu for gpu in machine.gpus if gpu.index in wanted]  # by PCI address, as CUDA counts them
    elif machine.listed and "-" not in visible:
        gpus = gpus_by_list(machine, wanted, visible)
    else:
        gpus = gpus_by_uuid(machine, visible)
    if len(gpus) != len(wanted):
        raise Doubt("the step has GPUs that this node does not have")
    first = min(mask & -mask for mask in masks)
    if not masks[0] & first:
        raise Doubt("the masks are the user's: Slurm's own begin with the lowest CPU in the first task")
    planned = permute_cpu_sets(machine, masks, gpus, allowed)
    whole = machine.indexed and cpus_on_node == str(machine.online.bit_count()) and allowed == machine.online
    if whole and len(gpus) == len(machine.gpus):
        planned = widen_to_whole_node(machine, masks, planned)
    return [
        f"{'-' if cpu_set == mask else format_cpu_set(cpu_set)} {count_cores(machine, cpu_set)}"
        for cpu_set, mask in zip(planned, masks, strict=True)
    ]
