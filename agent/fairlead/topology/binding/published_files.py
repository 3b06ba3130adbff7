"""Makes the texts of the files that the task prolog reads: /run/fairlead/topology and the plans below /run/fairlead/plans/.

Fields are separated by TABs and never empty. ``-`` means none or unknown. The file topology has these lines:

    1 node NAME GPUS CPUS COUNT THREADS     GPUS is the number of GPUs, CPUS the list of online CPUs, COUNT their number
    gpu GRES_INDEX MINOR UUID PCI NUMA CORES NICS MASK  one line for each GPU, in the order of PCI addresses; CORES is the
                                            list of the nearest CPUs, MASK the same CPUs as a mask in capital hex digits
    mig UUID PCI GI CI PROFILE NUMA CORES NICS
                                            one line for each MIG device. GI and CI are NVML's ids of its instances. PCI, NUMA,
                                            CORES and NICS are those of the GPU that it is a part of
    gres INDEX UUID SINCE                   one line for each GRES index, only where gres.conf lists MIG devices and slurmd
                                            detects nothing: the GPU or MIG device that the index means. Jobs that began before
                                            SINCE, in seconds of /proc/uptime, may have had another device under this index
    core PACKAGE NUMA L3 CPULIST            one line for each physical core; CPULIST is the list of its online CPUs

If a GPU of the node is in MIG mode, Slurm's indices count GPU instances, and their order depends on the release of Slurm. Then
every GRES_INDEX is -, and readers find GPUs and MIG devices by their UUIDs, or by the lines ``gres``. A GPU in MIG mode has - as
its own CORES and MASK.

THREADS is 1 if every core has one CPU. THREADS is 2 if the online CPUs are 0 to COUNT - 1 and every core has the CPUs i and
i + COUNT / 2, as Linux numbers hardware threads on x86. In all other cases, and if the CPUs near one GPU are in several packages,
THREADS is -.

The file plans/N is the plan for N local tasks that have the whole node. It has one line for each task:

    LOCALID CPULIST MASK GPUS NUMA NICS CORES SLURM_MASK DOMAIN
                                            GPUS are GRES indices, CORES is the number of physical cores. SLURM_MASK is the
                                            mask in capital hex digits as in SLURM_CPU_BIND_LIST, without leading zeros.
                                            DOMAIN is the first LOCALID whose GPUs have the same near CPUs. Tasks with the
                                            same DOMAIN may exchange their CPUs

The file plans/N.ready has the same plan as one shell assignment, because a shell's read costs a system call for each character:

    fl_ready='GPUS CORES DOMAIN:SLURM_MASK ...'  GPUS are all GRES indices, CORES is the number of cores of each task. Then
                                            follow the DOMAIN and the SLURM_MASK of each task, in the order of LOCALID
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fairlead.model.cpulist import as_cpu_set, format_cpu_set
from fairlead.model.facts import Missing, Node
from fairlead.model.gpu_state import MigDevice
from fairlead.topology.binding import binding_plan
from fairlead.topology.distances import accelerators, locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator

VERSION = "1"


class ListedDevices(Struct, frozen=True):
    """Says which GPU or MIG device each GRES index means, where gres.conf lists them. uuids: by index. since: seconds of
    /proc/uptime. Jobs that began earlier may have had another device under an index."""

    uuids: dict[int, str] = {}
    since: float = 0.0


NOT_LISTED = ListedDevices()


def gres_index_by_pci(node: Node) -> dict[str, int]:
    """Return Slurm's GRES index by PCI address. GPUs count in the order of their device files, as gres.conf lists them.

    If the minor number of a GPU is not known, the GPUs count in PCI order, as with AutoDetect.
    """
    gpus = accelerators.for_jobs(node)
    minors = [g.minor for g in gpus if not isinstance(g.minor, Missing)]
    if len(minors) == len(gpus) == len(set(minors)):
        gpus = tuple(sorted(gpus, key=lambda g: 0 if isinstance(g.minor, Missing) else g.minor))
    return {g.pci: i for i, g in enumerate(gpus)}


def planner_machine(node: Node, order: dict[str, int] | None = None) -> binding_plan.Machine:
    """Return the node as the planner sees it. ``order``: GRES index by PCI address, or None for that of gres_index_by_pci.

    If a GPU is in MIG mode, Slurm's indices count GPU instances. Then no GPU has an index. A GPU in MIG mode has no near CPUs,
    because programs use its MIG devices (``by_uuid``).
    """
    order = gres_index_by_pci(node) if order is None else order
    online = as_cpu_set(locality.online(node))
    cores = {}
    for cpu in node.cpus:
        mask = as_cpu_set(cpu.siblings or (cpu.id,)) & online
        if cpu.online and mask:
            cores[mask] = binding_plan.Core(cpu.package, cpu.numa, cpu.l3, mask)
    locations = []
    by_uuid = {}
    devices = _mig_devices(node)
    for gpu in accelerators.for_jobs(node):
        where = locality.of_pci(node, gpu.pci)
        names = ",".join(n.name for n in nearest_nics.nearest(node, gpu.pci)[0]) or "-"
        parts = devices.get(gpu.pci)
        for device in parts or ():
            by_uuid[device.uuid] = binding_plan.GpuLocation(-1, gpu.pci, where.numa, as_cpu_set(where.cpus), names)
        near = as_cpu_set(where.cpus) if parts is None else 0
        locations.append(binding_plan.GpuLocation(-1 if devices else order[gpu.pci], gpu.pci, where.numa, near, names))
    return binding_plan.Machine(online, list(cores.values()), locations, by_uuid)


def _mig_devices(node: Node) -> dict[str, tuple[MigDevice, ...]]:
    """Return the MIG devices of each GPU in MIG mode by its PCI address, or () for a GPU whose devices are not known."""
    gpus = () if isinstance(node.gpus, Missing) else node.gpus
    on = {gpu.pci: gpu.mig_devices for gpu in gpus if gpu.mig_current is True}
    return {pci: () if isinstance(devices, Missing) else devices for pci, devices in on.items()}


def render_topology(node: Node, order: dict[str, int] | None = None, listed: ListedDevices = NOT_LISTED) -> str:
    """Return the text of /run/fairlead/topology. ``order``: see planner_machine."""
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
            (
                "gpu",
                _known(location.index),
                _minor(gpu),
                _uuid(gpu),
                location.pci,
                _known(location.numa),
                near,
                location.nics,
                mask,
            )
        )
    for pci, devices in _mig_devices(node).items():
        for device in devices:
            where = machine.by_uuid.get(device.uuid)
            if where is not None:
                profile = "-" if isinstance(device.profile, Missing) else device.profile
                ids = (str(device.gi), str(device.ci), profile, _known(where.numa))
                lines.append(("mig", device.uuid, pci, *ids, format_cpu_set(where.near), where.nics))
    lines += [("gres", str(index), uuid, f"{listed.since:.2f}") for index, uuid in sorted(listed.uuids.items())]
    for core in machine.cores:
        cpus = format_cpu_set(core.cpus)
        lines.append(("core", _known(core.package), _known(core.numa), _known(core.l3), cpus))
    return "".join("\t".join(line) + "\n" for line in lines)


def thread_numbering(machine: binding_plan.Machine) -> str:
    """Return THREADS of the first line: "1" or "2" if the CPU numbers show which CPUs are on one core, else "-"."""
    count = machine.online.bit_count()
    cores = {c.cpus & machine.online for c in machine.cores} - {0}
    if any(len({c.package for c in machine.cores if c.cpus & gpu.near}) > 1 for gpu in machine.gpus):
        return "-"
    if all(c.bit_count() == 1 for c in cores):
        return "1"
    pairs = {1 << i | 1 << i + count // 2 for i in range(count // 2)}
    return "2" if count % 2 == 0 and machine.online == (1 << count) - 1 and cores == pairs else "-"


def render_plans(node: Node, order: dict[str, int] | None = None) -> dict[int, str]:
    """Return the texts of /run/fairlead/plans/N by N. N is from 1 to twice the number of GPUs. If N has no clear plan, it is left
    out. There is no plan if a GPU is in MIG mode, because readers would compare its GRES indices."""
    machine = planner_machine(node, order)
    texts: dict[int, str] = {}
    if not machine.indexed:
        return texts
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
    """Return the texts of /run/fairlead/plans/N.ready by N. ``plans``: the texts of plans/N. If the tasks of a plan have
    different numbers of cores, that plan has no such file."""
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
