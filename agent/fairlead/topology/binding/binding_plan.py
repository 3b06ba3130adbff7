"""The binding plan: which CPUs each task of a GPU step should have. Standard library only, and little of it.

The task prolog runs this in an isolated Python, so it imports nothing but transport.py; every task of a step would compute the
same plan from the same input. CPU sets are integers with bit N for CPU N.

The shares that Slurm dealt are permuted: every task keeps its number of CPUs and its threads-per-core pattern, the
union of all shares stays what it was, and the summed distance between tasks and their GPUs is the least possible. Of plans as
near as each other it is the one in which whoever has a share that is near keeps it, so that few tasks have to move.
Whatever is not clear raises Doubt, and Slurm's masks stay.
"""

from __future__ import annotations

from fairlead.model import cpulist
from fairlead.model.cpulist import format_cpu_set
from fairlead.topology.binding import transport
from fairlead.topology.binding.transport import Item, share_out

Doubt = transport.Doubt
TASKS_MAX = 1024
CPUS_MAX = 8192


class Core:
    """One physical core: the CPUs (hardware threads) on it. -1: unknown."""

    __slots__ = ("cpus", "l3", "numa", "package")

    def __init__(self, package: int, numa: int, l3: int, cpus: int) -> None:
        self.package = package
        self.numa = numa
        self.l3 = l3
        self.cpus = cpus

    def order(self) -> tuple[int, int, int, int]:
        return (self.package, self.numa, self.l3, self.cpus & -self.cpus)


class Place:
    """Where one GPU is. ``near``: the CPUs closest to it, 0 when nobody knows."""

    __slots__ = ("index", "near", "nics", "numa", "pci")

    def __init__(self, index: int, pci: str, numa: int, near: int, nics: str = "-") -> None:
        self.index = index
        self.pci = pci
        self.numa = numa
        self.near = near
        self.nics = nics


class Machine:
    """What /run/fairlead/topology says: cores, and GPUs by Slurm's GRES index."""

    __slots__ = ("cores", "gpus", "online")

    def __init__(self, online: int, cores: list[Core], gpus: list[Place]) -> None:
        self.online = online
        self.cores = sorted(cores, key=Core.order)
        self.gpus = gpus


def parse_cpu_set(text: str) -> int:
    """Return the CPU set of ``0-3,8``. Raise Doubt for anything else, and for CPU numbers from CPUS_MAX on."""
    try:
        cpu_set = cpulist.parse_cpu_set(text)
    except ValueError as e:
        raise Doubt(f"not a CPU list: {text[:80]!r}") from e
    if cpu_set.bit_length() > CPUS_MAX:
        raise Doubt(f"not a CPU list: {text[:80]!r}")
    return cpu_set


def parse_masks(text: str) -> list[int]:
    """SLURM_CPU_BIND_LIST (``0x...,0x...``, one mask per local task) as CPU sets. Raises Doubt."""
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
    """SLURM_STEP_GPUS (``0,1,4-7``) as GRES indices, in its order. Raises Doubt."""
    found: list[int] = []
    for part in text.split(","):
        found += cpulist.cpus_in(parse_cpu_set(part))
    if len(set(found)) != len(found):
        raise Doubt("a GPU is named twice")
    return found


def parse_topology(text: str) -> Machine:
    """The published topology file. Raises Doubt for anything but a complete one."""
    lines = text.split("\n")
    head = lines[0].split("\t")
    if lines[-1] != "" or len(head) < 5 or head[:2] != ["1", "node"]:
        raise Doubt("topology file: not complete, or not of this version")
    cores, gpus = [], []
    try:
        for line in lines[1:-1]:
            fields = line.split("\t")
            if fields[0] == "gpu":
                near = 0 if fields[6] == "-" else parse_cpu_set(fields[6])
                gpus.append(Place(int(fields[1]), fields[4], _number(fields[5]), near, fields[7]))
            elif fields[0] == "core":
                package, numa, l3 = (_number(f) for f in fields[1:4])
                cores.append(Core(package, numa, l3, parse_cpu_set(fields[4])))
        if len(gpus) != int(head[3]):
            raise Doubt("topology file: GPUs are missing")
    except (IndexError, ValueError) as e:
        raise Doubt(f"topology file: {e}") from e
    return Machine(parse_cpu_set(head[4]), cores, gpus)


def _number(field: str) -> int:
    return -1 if field == "-" else int(field)


def deal_gpus(gpus: list[Place], tasks: int) -> list[list[Place]]:
    """Rank i keeps GPU i. Fewer tasks than GPUs: consecutive groups; more: rank modulo GPUs, as programs choose."""
    count = len(gpus)
    if tasks <= count:
        return [gpus[i * count // tasks : (i + 1) * count // tasks] for i in range(tasks)]
    return [[gpus[i % count]] for i in range(tasks)]


def distance(machine: Machine, cpus: int, gpus: list[Place]) -> int:
    """Summed over CPUs and GPUs: 0 for a CPU near the GPU, 1 in the same package as such a CPU, 2 elsewhere."""
    total = 0
    for gpu in gpus:
        if not gpu.near:
            continue
        packages = {c.package for c in machine.cores if c.cpus & gpu.near}
        for core in machine.cores:
            far = core.cpus & cpus & ~gpu.near
            if far:
                total += far.bit_count() * (1 if core.package in packages else 2)
    return total


def alike(hands: list[list[Place]]) -> list[list[int]]:
    """Tasks grouped by where their GPUs are."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for task, gpus in enumerate(hands):
        groups.setdefault(tuple(sorted(g.near for g in gpus)), []).append(task)
    return list(groups.values())


def permute(machine: Machine, masks: list[int], gpus: list[Place], allowed: int) -> list[int]:
    """The shares of one step's local tasks, permuted. ``masks``: Slurm's, by local task. ``allowed``: the step's cpuset.

    Raises Doubt when the shares are not clearly disjoint parts of the allowed set, or a GPU's place is not known.
    """
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
        raise Doubt("where a GPU is is not known")
    hands = deal_gpus(gpus, len(masks))
    before = sum(distance(machine, mask, hand) for mask, hand in zip(masks, hands, strict=True))
    if not before:
        return masks
    groups = alike(hands)

    def costs(cpus: int) -> tuple[int, ...]:
        return tuple(distance(machine, cpus, hands[group[0]]) for group in groups)

    # Pieces of cores, unless a core is split between tasks: then whole shares.
    pieces: list[tuple[int, int, Core]] = []  # (task, CPUs, where they are)
    split = False
    threads: list[list[int]] = [[] for _ in masks]  # by task, on each of its cores
    for core in machine.cores:
        owners = [t for t, mask in enumerate(masks) if mask & core.cpus] if union & core.cpus else []
        split = split or len(owners) > 1
        pieces += [(t, masks[t] & core.cpus, core) for t in owners]
        for t in owners:
            threads[t].append((masks[t] & core.cpus).bit_count())
    kinds = [tuple(sorted(counts)) for counts in threads]
    patterns: dict[tuple[int, ...], list[tuple[int, int, Core | None]]] = {}
    if split:
        for task, mask in enumerate(masks):
            patterns.setdefault(kinds[task], []).append((task, mask, None))
    else:
        for task, cpus, core in pieces:
            patterns.setdefault((cpus.bit_count(),), []).append((task, cpus, core))
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}
    result = [0] * len(masks)
    for dealt in patterns.values():
        wanted = [0] * len(masks)
        items = []
        for task, cpus, place in dealt:
            wanted[task] += 1
            key = (cpus,) if place is None else _profile(place, cpus, gpus)
            if key not in memo:
                memo[key] = costs(cpus)
            items.append(Item(cpus, memo[key]))
        for task, mask in share_out(items, groups, wanted).items():
            result[task] |= mask
    after = sum(distance(machine, mask, hand) for mask, hand in zip(result, hands, strict=True))
    if after >= before:
        return masks
    keep(masks, result, groups, kinds)
    check(masks, result)
    return result


def keep(masks: list[int], result: list[int], groups: list[list[int]], kinds: list[tuple[int, ...]]) -> None:
    """Of alike tasks that were dealt each other's shares, those that had one of them keep it; the others take what is left, in
    the order in which Slurm dealt it. ``kinds``: by task, its threads on each core. Changes ``result``."""
    owner = {mask: task for task, mask in enumerate(masks)}
    for group in groups:
        for kind in {kinds[t] for t in group}:
            tasks = [t for t in group if kinds[t] == kind]
            dealt = {result[t] for t in tasks}
            stay = {masks[t] for t in tasks} & dealt
            left = [result[t] for t in tasks if result[t] not in stay]
            rest = iter(sorted(left, key=lambda mask: owner.get(mask, len(masks))))
            for t in tasks:
                result[t] = masks[t] if masks[t] in stay else next(rest)


def _profile(core: Core, cpus: int, gpus: list[Place]) -> tuple[int, ...]:
    """What the distances of a piece of one core depend on: its place and how many of its CPUs are near which GPU."""
    return (core.package, cpus.bit_count(), *[(cpus & g.near).bit_count() for g in gpus])


def check(before: list[int], after: list[int]) -> None:
    """The promise, once more: no task has fewer CPUs, none is shared, none is new. Raises Doubt."""
    union = 0
    for old, new in zip(before, after, strict=True):
        if old.bit_count() != new.bit_count() or union & new:
            raise Doubt("the plan does not keep what Slurm gave")
        union |= new
    for old in before:
        union &= ~old
    if union:
        raise Doubt("the plan leaves what Slurm gave")


def whole_node(machine: Machine, tasks: int) -> list[int]:
    """Even shares of all cores for so many tasks on the whole node, whole cores each. Raises Doubt."""
    cores = [c for c in machine.cores if c.cpus & machine.online]
    each = len(cores) // tasks
    if not each or not machine.gpus or any(not g.near for g in machine.gpus):
        raise Doubt("fewer cores than tasks, or where a GPU is is not known")
    if len({(c.cpus & machine.online).bit_count() for c in cores}) != 1:
        raise Doubt("cores with and without hardware threads")
    hands = deal_gpus(machine.gpus, tasks)
    groups = alike(hands)
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}
    items = []
    for core in cores:
        key = _profile(core, core.cpus, machine.gpus)
        if key not in memo:
            memo[key] = tuple(distance(machine, core.cpus & machine.online, hands[g[0]]) for g in groups)
        items.append(Item(core.cpus & machine.online, memo[key]))
    dealt = share_out(items, groups, [each] * tasks)
    return [dealt[t] for t in range(tasks)]


def widen(machine: Machine, masks: list[int], shares: list[int]) -> list[int]:
    """For a whole node and no CPU count: even shares of all cores, unless a task loses, or has part of a core by a hint."""
    if any(mask & c.cpus not in (0, c.cpus & machine.online) for c in machine.cores for mask in masks):
        return shares
    try:
        wide = whole_node(machine, len(masks))
    except Doubt:
        return shares
    if all(new.bit_count() >= old.bit_count() for new, old in zip(wide, masks, strict=True)) and wide != shares:
        return wide
    return shares


def physical(machine: Machine, cpus: int) -> int:
    """How many physical cores a CPU set touches."""
    return sum(1 for c in machine.cores if c.cpus & cpus)


def answers(topology: str, bind_list: str, step_gpus: str, *, allowed: int, cpus_on_node: str) -> list[str]:
    """What slurm/bind-plan prints, by local task: ``CPULIST CORES``, or ``- CORES`` to leave Slurm's mask.

    ``allowed``: the step's cpuset. ``cpus_on_node``: SLURM_CPUS_ON_NODE where the cpuset is the step's own and the user
    named no CPU count, else "". Raises Doubt.
    """
    machine = parse_topology(topology)
    masks, wanted = parse_masks(bind_list), parse_indices(step_gpus)
    gpus = [gpu for gpu in machine.gpus if gpu.index in wanted]  # by PCI address, as CUDA counts them
    if len(gpus) != len(wanted):
        raise Doubt("the step is not one of this node")
    first = min(mask & -mask for mask in masks)
    if not masks[0] & first:
        raise Doubt("the masks are the user's: Slurm's own begin with the lowest CPU in the first task")
    shares = permute(machine, masks, gpus, allowed)
    whole = cpus_on_node == str(machine.online.bit_count()) and allowed == machine.online
    if whole and len(gpus) == len(machine.gpus):
        shares = widen(machine, masks, shares)
    return [
        f"{'-' if share == mask else format_cpu_set(share)} {physical(machine, share)}"
        for share, mask in zip(shares, masks, strict=True)
    ]
