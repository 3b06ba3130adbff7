"""The files that the task prolog reads: /run/fairlead/topology and the ready plans below /run/fairlead/plans/.

TAB separated, no empty field, ``-`` for none or unknown. topology:

    1 node NAME GPUS CPUS COUNT THREADS     GPUS how many, CPUS the online CPU list, COUNT how many CPUs, THREADS as below
    gpu GRES_INDEX MINOR UUID PCI NUMA CORES NICS MASK  by PCI address; CORES the list of the nearest CPUs, MASK the same in
                                            capital hex digits
    core PACKAGE NUMA L3 CPULIST            one physical core, CPULIST its online hardware threads

THREADS is 1 where every core has one CPU; 2 where the online CPUs are 0 to COUNT - 1 and every core has the CPUs i and
i + COUNT / 2, as Linux numbers hardware threads on x86; else -. It is - too where the CPUs near one GPU are of several packages.

plans/N, one line for each of N local tasks that have the whole node:

    LOCALID CPULIST MASK GPUS NUMA NICS CORES SLURM_MASK PLACE
                                            GPUS in GRES indices, CORES how many physical cores, SLURM_MASK in capital
                                            hex digits as in SLURM_CPU_BIND_LIST, without its leading zeros, PLACE the first
                                            LOCALID whose GPUs are where this task's are: tasks of one PLACE may have each
                                            other's CPUs

plans/N.ready, the same as an assignment for the task prolog (a shell's read costs a system call for each character):

    fl_ready='GPUS CORES PLACE:SLURM_MASK ...'  GPUS all GRES indices, CORES of each task, then each task's by LOCALID
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.cpulist import as_cpu_set, format_cpu_set
from fairlead.model.facts import Missing, Node
from fairlead.topology.binding import binding_plan
from fairlead.topology.distances import accelerators, locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator

VERSION = "1"


def gres_order(node: Node) -> dict[str, int]:
    """Slurm's GRES index by PCI address: the order of the device files (minors), which gres.conf lists in order.

    A GPU without a minor makes the order unknown: then it is PCI order for all, as with AutoDetect.
    """
    gpus = accelerators.for_jobs(node)
    minors = [g.minor for g in gpus if not isinstance(g.minor, Missing)]
    if len(minors) == len(gpus) == len(set(minors)):
        gpus = tuple(sorted(gpus, key=lambda g: 0 if isinstance(g.minor, Missing) else g.minor))
    return {g.pci: i for i, g in enumerate(gpus)}


def machine(node: Node, order: dict[str, int] | None = None) -> binding_plan.Machine:
    """The node as the planner sees it.

    With a GPU in MIG mode Slurm's indices count instances, so no index says which GPU a job has: every place is unknown.
    """
    order = gres_order(node) if order is None else order
    up = as_cpu_set(locality.online(node))
    cores = {}
    for cpu in node.cpus:
        mask = as_cpu_set(cpu.siblings or (cpu.id,)) & up
        if cpu.online and mask:
            cores[mask] = binding_plan.Core(cpu.package, cpu.numa, cpu.l3, mask)
    places = []
    split = not isinstance(node.gpus, Missing) and any(gpu.mig_current is True for gpu in node.gpus)
    for gpu in accelerators.for_jobs(node):
        where = locality.of_pci(node, gpu.pci)
        names = ",".join(n.name for n in nearest_nics.nearest(node, gpu.pci)[0]) or "-"
        near = 0 if split else as_cpu_set(where.cpus)
        places.append(binding_plan.Place(order[gpu.pci], gpu.pci, where.numa, near, names))
    return binding_plan.Machine(up, list(cores.values()), places)


def render_topology(node: Node, order: dict[str, int] | None = None) -> str:
    """The text of /run/fairlead/topology. ``order``: GRES index by PCI address where the site's differs."""
    made = machine(node, order)
    gpus = {g.pci: g for g in accelerators.for_jobs(node)}
    count = made.online.bit_count()
    lines: list[tuple[str, ...]] = [
        (VERSION, "node", node.name, str(len(made.gpus)), format_cpu_set(made.online), str(count), threads(made))
    ]
    for place in made.gpus:
        gpu = gpus[place.pci]
        near = format_cpu_set(place.near)
        mask = f"{place.near:X}" if place.near else "-"
        lines.append(("gpu", str(place.index), _minor(gpu), _uuid(gpu), place.pci, _known(place.numa), near, place.nics, mask))
    for core in made.cores:
        cpus = format_cpu_set(core.cpus)
        lines.append(("core", _known(core.package), _known(core.numa), _known(core.l3), cpus))
    return "".join("\t".join(line) + "\n" for line in lines)


def threads(made: binding_plan.Machine) -> str:
    """THREADS: how CPU numbers tell which CPUs are one core, where they do so simply."""
    count = made.online.bit_count()
    cores = {c.cpus & made.online for c in made.cores} - {0}
    if any(len({c.package for c in made.cores if c.cpus & gpu.near}) > 1 for gpu in made.gpus):
        return "-"
    if all(c.bit_count() == 1 for c in cores):
        return "1"
    pairs = {1 << i | 1 << i + count // 2 for i in range(count // 2)}
    return "2" if count % 2 == 0 and made.online == (1 << count) - 1 and cores == pairs else "-"


def render_plans(node: Node, order: dict[str, int] | None = None) -> dict[int, str]:
    """The texts of /run/fairlead/plans/N for N of 1 to twice the GPUs; numbers that leave a doubt are left out."""
    made = machine(node, order)
    texts = {}
    for tasks in range(1, 2 * len(made.gpus) + 1):
        try:
            masks = binding_plan.whole_node(made, tasks)
        except binding_plan.Doubt:
            continue
        hands = binding_plan.deal_gpus(made.gpus, tasks)
        place = {task: group[0] for group in binding_plan.alike(hands) for task in group}
        lines = []
        for rank, (mask, hand) in enumerate(zip(masks, hands, strict=True)):
            numa = sorted({c.numa for c in made.cores if c.cpus & mask and c.numa >= 0})
            names = list(dict.fromkeys(n for g in hand for n in g.nics.split(",") if n != "-"))
            fields = (
                str(rank),
                format_cpu_set(mask),
                f"{mask:x}",
                ",".join(str(g.index) for g in hand),
                ",".join(map(str, numa)) or "-",
                ",".join(names) or "-",
                str(binding_plan.physical(made, mask)),
                f"{mask:X}",
                str(place[rank]),
            )
            lines.append("\t".join(fields) + "\n")
        texts[tasks] = "".join(lines)
    return texts


def plan_files(node: Node, order: dict[str, int] | None = None) -> dict[str, str]:
    """The texts of the files below /run/fairlead/plans, by name: ``N`` and ``N.ready``."""
    plans = render_plans(node, order)
    ready = render_ready(plans)
    return {**{str(n): text for n, text in plans.items()}, **{f"{n}.ready": text for n, text in ready.items()}}


def render_ready(plans: Mapping[int, str]) -> dict[int, str]:
    """The texts of /run/fairlead/plans/N.ready, from those of plans/N; where all tasks have as many cores."""
    texts = {}
    for tasks, text in plans.items():
        rows = [line.split("\t") for line in text.splitlines()]
        gpus = sorted({int(index) for row in rows for index in row[3].split(",")})
        if len({row[6] for row in rows}) == 1:
            shares = " ".join(f"{row[8]}:{row[7]}" for row in rows)
            texts[tasks] = f"fl_ready='{','.join(map(str, gpus))} {rows[0][6]} {shares}'\n"
    return texts


def _known(number: int) -> str:
    return str(number) if number >= 0 else "-"


def _minor(gpu: Accelerator) -> str:
    return "-" if isinstance(gpu.minor, Missing) else str(gpu.minor)


def _uuid(gpu: Accelerator) -> str:
    return "-" if isinstance(gpu.uuid, Missing) or not gpu.uuid else gpu.uuid
