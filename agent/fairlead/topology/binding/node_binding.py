"""The binding plan of one node for any number of tasks, any part of its GPUs and CPUs.

Rank i keeps GPU i of the allocation, and the CPUs move: equal shares of whole cores at the least summed distance between
tasks and their GPUs. Nothing is refused but a request without CPUs: where a GPU's place is not known the shares are even
runs, and the notes say so. The task prolog's planner (plan.py) is the same arithmetic on what Slurm dealt.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fairlead.errors import DataError, UsageError
from fairlead.model.cpulist import as_cpu_set, cpus_in, format_cpu_set
from fairlead.model.facts import Missing, Node, NumaNode
from fairlead.topology.binding import binding_plan
from fairlead.topology.binding.binding_plan import Core, Machine, Place
from fairlead.topology.binding.core_assignment import deal
from fairlead.topology.distances import locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator, accelerators

TASKS_MAX = 4096


class Share(Struct, frozen=True, kw_only=True):
    """One task. ``memory``: a numactl-like policy, "preferred:0", or "default" where no node is the right one."""

    rank: int
    gpus: tuple[str, ...]  # PCI addresses
    cpus: str
    numa: tuple[int, ...]
    nics: tuple[str, ...]
    memory: str


class Plan(Struct, frozen=True, kw_only=True):
    """``distance``: summed over tasks, their CPUs and their GPUs: 0 near, 1 in the same package, 2 elsewhere."""

    tasks: tuple[Share, ...]
    distance: int
    notes: tuple[str, ...]


def chosen(node: Node, wanted: Sequence[str]) -> tuple[Accelerator, ...]:
    """The GPUs that ``wanted`` names by index, PCI address or UUID, in its order; all of them for none.

    Raises UsageError for a name that fits no GPU and for a GPU named twice.
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
    """The cores with their online CPUs; every CPU is on one core only, whatever the siblings' files say."""
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


def bind(
    node: Node, tasks: int, *, gpus: Sequence[str] = (), allowed: int | None = None, threads_per_core: int | None = None
) -> Plan:
    """The plan. ``allowed``: the CPUs of the allocation as a set, None for all that are online.

    Raises UsageError for an impossible number of tasks or an unknown GPU, DataError where there is no CPU at all.
    """
    if not 1 <= tasks <= TASKS_MAX:
        raise UsageError(f"--tasks: {tasks} is not between 1 and {TASKS_MAX}")
    if threads_per_core is not None and threads_per_core < 1:
        raise UsageError(f"--threads-per-core: {threads_per_core} is not a positive number")
    cards = chosen(node, gpus)
    up = as_cpu_set(locality.online(node))
    if not up:
        raise DataError("no online CPU is described", hint="sys/devices/system/cpu must be part of the tree")
    cores = physical_cores(node)
    wanted = up if allowed is None else up & allowed
    if not wanted:
        raise UsageError("--cpus: none of these CPUs is online", hint=f"online are {format_cpu_set(up)}")
    notes = []
    outside = (allowed or 0) & ~up
    if outside:
        notes.append(f"CPUs {format_cpu_set(outside)} are not online: left out")
    places = []
    said: dict[str, list[str]] = {}
    for card in cards:
        where = locality.of_pci(node, card.pci)
        places.append(Place(card.index, card.pci, where.numa, as_cpu_set(where.cpus)))
        if where.note:
            what = where.note if where.cpus else f"{where.note}: even shares of the CPUs instead of near ones"
            said.setdefault(what, []).append(card.pci)
    notes += [f"GPU {', '.join(pci)}: {what}" for what, pci in said.items()]
    machine = Machine(up, cores, places)
    hands = binding_plan.deal_gpus(places, tasks) if places else [[] for _ in range(tasks)]
    masks = deal(machine, [_lowest(c.cpus & wanted, threads_per_core) for c in machine.cores], hands, notes)
    best = {card.pci: tuple(n.name for n in nearest_nics.nearest(node, card.pci)[0]) for card in cards}
    shares = [_share(node, rank, mask, hand, best) for rank, (mask, hand) in enumerate(zip(masks, hands, strict=True))]
    return Plan(tasks=tuple(shares), distance=_total(machine, masks, hands), notes=tuple(notes))


def _total(machine: Machine, masks: list[int], hands: list[list[Place]]) -> int:
    return sum(binding_plan.distance(machine, mask, hand) for mask, hand in zip(masks, hands, strict=True))


def _share(node: Node, rank: int, mask: int, hand: list[Place], best: dict[str, tuple[str, ...]]) -> Share:
    held = {n.id: (as_cpu_set(n.cpus) & mask).bit_count() for n in node.numa}
    return Share(
        rank=rank,
        gpus=tuple(g.pci for g in hand),
        cpus=format_cpu_set(mask),
        numa=tuple(sorted(n for n, count in held.items() if count)),
        nics=tuple(dict.fromkeys(name for g in hand for name in best[g.pci])),
        memory=_memory(node, held, {g.numa for g in hand}),
    )


def _memory(node: Node, held: dict[int, int], near: set[int]) -> str:
    """The NUMA node of the task's GPU where it has CPUs, else the one with most of its CPUs; the nearest one with memory.

    Only nodes with CPUs count: GPU memory is a NUMA node too (GH200), and binding to it would fill the GPU.
    """
    homes = [n for n, count in held.items() if count]
    if not homes:
        return "default"
    home = min(homes, key=lambda n: (n not in near, -held[n], n))
    fit = [n for n in locality.with_cpus(node) if _has_memory(n)]
    if any(n.id == home for n in fit):
        return f"preferred:{home}"
    own = next(n for n in node.numa if n.id == home)
    row = dict(zip(sorted(n.id for n in node.numa), own.distances, strict=False))
    nearest = min(fit, key=lambda n: (row.get(n.id, 255), n.id), default=None)
    return "default" if nearest is None else f"preferred:{nearest.id}"


def _has_memory(numa: NumaNode) -> bool:
    """Unread memory counts as memory: the kernel has a node for it."""
    return isinstance(numa.memory_bytes, Missing) or numa.memory_bytes > 0


def _lowest(mask: int, count: int | None) -> int:
    """The ``count`` lowest CPUs of a set; all for None."""
    if count is None or mask.bit_count() <= count:
        return mask
    return as_cpu_set(cpus_in(mask)[:count])
