"""Writes the files that the task prolog reads: /run/fairlead/topology and the ready plans below /run/fairlead/plans/.

Fields are separated by TABs and never empty; ``-`` is for none or unknown. The file topology:

    1 node NAME GPUS CPUS COUNT THREADS     GPUS how many, CPUS the online CPU list, COUNT how many CPUs, THREADS as below
    gpu GRES_INDEX MINOR UUID PCI NUMA CORES NICS MASK  by PCI address; CORES the list of the nearest CPUs, MASK the same in
                                            capital hex digits
    core PACKAGE NUMA L3 CPULIST            one physical core, CPULIST its online hardware threads

THREADS is 1 where every core has one CPU. It is 2 where the online CPUs are 0 to COUNT - 1 and every core has the CPUs i and
i + COUNT / 2, as Linux numbers hardware threads on x86. Else, and where the CPUs near one GPU are of several packages, it is -.

The file plans/N has one line for each of N local tasks that have the whole node:

    LOCALID CPULIST MASK GPUS NUMA NICS CORES SLURM_MASK DOMAIN
                                            GPUS in GRES indices, CORES how many physical cores, SLURM_MASK in capital
                                            hex digits as in SLURM_CPU_BIND_LIST, without its leading zeros, DOMAIN the first
                                            LOCALID whose GPUs have the same near CPUs: tasks of one DOMAIN may exchange
                                            their CPUs

The file plans/N.ready has the same as an assignment, because a shell's read costs a system call for each character:

    fl_ready='GPUS CORES DOMAIN:SLURM_MASK ...'  GPUS all GRES indices, CORES of each task, then each task's by LOCALID
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.cpulist import as_cpu_set, format_cpu_set
from fairlead.model.facts import Missing, Node
from fairlead.topology.binding import binding_plan
from fairlead.topology.distances import accelerators, locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator

VERSION = "1"


def gres_index_by_pci(node: Node) -> dict[str, int]:
    """Return Slurm's GRES index by PCI address: GPUs count in the order of their device files, as gres.conf lists them.

    Where the minor number of a GPU is not known, all are in PCI order, as with AutoDetect.
    """
    gpus = accelerators.for_jobs(node)
    minors = [g.minor for g in gpus if not isinstance(g.minor, Missing)]
    if len(minors) == len(gpus) == len(set(minors)):
        gpus = tuple(sorted(gpus, key=lambda g: 0 if isinstance(g.minor, Missing) else g.minor))
    return {g.pci: i for i, g in enumerate(gpus)}


def planner_machine(node: Node, order: dict[str, int] | None = None) -> binding_plan.Machine:
    """Return the node as the planner sees it. ``order``: GRES index by PCI address where the site's differs.

    With a GPU in MIG mode Slurm's indices count instances, so no index shows which GPU a job has. Then no GPU has near CPUs.
    """
    order = gres_index_by_pci(node) if order is None else order
    online = as_cpu_set(locality.online(node))
    cores = {}
    for cpu in node.cpus:
        mask = as_cpu_set(cpu.siblings or (cpu.id,)) & online
        if cpu.online and mask:
            cores[mask] = binding_plan.Core(cpu.package, cpu.numa, cpu.l3, mask)
    locations = []
    in_mig_mode = not isinstance(node.gpus, Missing) and any(gpu.mig_current is True for gpu in node.gpus)
    for gpu in accelerators.for_jobs(node):
        where = locality.of_pci(node, gpu.pci)
        names = ",".join(n.name for n in nearest_nics.nearest(node, gpu.pci)[0]) or "-"
        near = 0 if in_mig_mode else as_cpu_set(where.cpus)
        locations.append(binding_plan.GpuLocation(order[gpu.pci], gpu.pci, where.numa, near, names))
    return binding_plan.Machine(online, list(cores.values()), locations)


def render_topology(node: Node, order: dict[str, int] | None = None) -> str:
    """Return the text of /run/fairlead/topology. ``order``: GRES index by PCI address where the site's differs."""
    machine = planner_machine(node, order)
    gpus = {g.pci: g for g in accelerators.for_jobs(node)}
    count = machine.online.bit_count()
    lines: list[tuple[str, ...]] = [
        (
            VERSION,
            "node",
            node.name,
            str(len(machine.gpus)),
            format_cpu_set(machine.online),
            str(count),
            thread_numbering(machine),
        )
    ]
    for location in machine.gpus:
        gpu = gpus[location.pci]
        near = format_cpu_set(location.near)
        mask = f"{location.near:X}" if location.near else "-"
        lines.append(
            ("gpu", str(location.index), _minor(gpu), _uuid(gpu), location.pci, _known(location.numa), near, location.nics, mask)
        )
    for core in machine.cores:
        cpus = format_cpu_set(core.cpus)
        lines.append(("core", _known(core.package), _known(core.numa), _known(core.l3), cpus))
    return "".join("\t".join(line) + "\n" for line in lines)


def thread_numbering(machine: binding_plan.Machine) -> str:
    """Return THREADS of the first line: "1" or "2" where CPU numbers show which CPUs are on one core, else "-"."""
    count = machine.online.bit_count()
    cores = {c.cpus & machine.online for c in machine.cores} - {0}
    if any(len({c.package for c in machine.cores if c.cpus & gpu.near}) > 1 for gpu in machine.gpus):
        return "-"
    if all(c.bit_count() == 1 for c in cores):
        return "1"
    pairs = {1 << i | 1 << i + count // 2 for i in range(count // 2)}
    return "2" if count % 2 == 0 and machine.online == (1 << count) - 1 and cores == pairs else "-"


def render_plans(node: Node, order: dict[str, int] | None = None) -> dict[int, str]:
    """Return the texts of /run/fairlead/plans/N by N, for 1 to twice the number of GPUs. An N without a clear plan is left
    out."""
    machine = planner_machine(node, order)
    texts = {}
    for tasks in range(1, 2 * len(machine.gpus) + 1):
        try:
            cpu_sets = binding_plan.whole_node_cpu_sets(machine, tasks)
        except binding_plan.Doubt:
            continue
        gpus_of_task = binding_plan.assign_gpus(machine.gpus, tasks)
        domain = {task: group[0] for group in binding_plan.tasks_by_numa_domain(gpus_of_task) for task in group}
        lines = []
        for rank, (cpu_set, gpus) in enumerate(zip(cpu_sets, gpus_of_task, strict=True)):
            numa = sorted({c.numa for c in machine.cores if c.cpus & cpu_set and c.numa >= 0})
            names = list(dict.fromkeys(n for g in gpus for n in g.nics.split(",") if n != "-"))
            fields = (
                str(rank),
                format_cpu_set(cpu_set),
                f"{cpu_set:x}",
                ",".join(str(g.index) for g in gpus),
                ",".join(map(str, numa)) or "-",
                ",".join(names) or "-",
                str(binding_plan.count_cores(machine, cpu_set)),
                f"{cpu_set:X}",
                str(domain[rank]),
            )
            lines.append("\t".join(fields) + "\n")
        texts[tasks] = "".join(lines)
    return texts


def plan_files(node: Node, order: dict[str, int] | None = None) -> dict[str, str]:
    """Return the texts of all files below /run/fairlead/plans, by name: ``N`` and ``N.ready``."""
    plans = render_plans(node, order)
    ready = render_ready(plans)
    return {**{str(n): text for n, text in plans.items()}, **{f"{n}.ready": text for n, text in ready.items()}}


def render_ready(plans: Mapping[int, str]) -> dict[int, str]:
    """Return the texts of /run/fairlead/plans/N.ready by N, made from those of plans/N where all tasks have as many cores."""
    texts = {}
    for tasks, text in plans.items():
        rows = [line.split("\t") for line in text.splitlines()]
        gpus = sorted({int(index) for row in rows for index in row[3].split(",")})
        if len({row[6] for row in rows}) == 1:
            masks = " ".join(f"{row[8]}:{row[7]}" for row in rows)
            texts[tasks] = f"fl_ready='{','.join(map(str, gpus))} {rows[0][6]} {masks}'\n"
    return texts


def _known(number: int) -> str:
    return str(number) if number >= 0 else "-"


def _minor(gpu: Accelerator) -> str:
    return "-" if isinstance(gpu.minor, Missing) else str(gpu.minor)


def _uuid(gpu: Accelerator) -> str:
    return "-" if isinstance(gpu.uuid, Missing) or not gpu.uuid else gpu.uuid
