"""Describes a node as slurm.conf and gres.conf do: sockets, cores in Slurm's own numbering, memory, GPUs.

Slurm numbers cores, not CPUs: core 0 is the first core of the first socket, in hwloc's logical order (gres.conf(5), Cores;
"Core L#" of lstopo). hwloc orders the parts of a package or NUMA node by their lowest CPU, from packages down to cores. A
"socket" may be a NUMA node or an L3 cache instead (slurm.conf(5), SlurmdParameters=numa_node_as_socket and l3cache_as_socket).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.cpulist import as_cpu_set
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.nodelist import natural
from fairlead.topology.binding import binding_plan
from fairlead.topology.distances import locality
from fairlead.topology.distances.accelerators import Accelerator, accelerators

_BRANDS = frozenset({"nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "grid", "graphics", "device", "gpu"})


class Socket(StrEnum):
    """Says what slurmd counts as a socket."""

    PACKAGE = "package"
    NUMA = "numa"
    L3 = "l3"


class GpuGres(Struct, frozen=True, kw_only=True):
    """Describes one GPU.

    cores: Slurm's numbers of all cores of the nearest sockets, or () if these are all cores or are not known. near: Slurm's
    numbers of the nearest cores alone, as Slurm's AutoDetect finds them. links: the number of NVLinks to each GPU of the node, in
    the order of the node's GPUs, and -1 for the GPU itself (gres.conf(5), Links). mig: whether the GPU is in MIG mode, or will be
    by the site's declaration. instances: the MIG profile of each GPU instance that the site declares.
    """

    pci: str
    file: str
    type: str
    cores: tuple[int, ...]
    near: tuple[int, ...]
    links: tuple[int, ...]
    mig: bool = False
    instances: tuple[str, ...] = ()


class KernelGpu(Struct, frozen=True):
    """Describes a GPU that the kernel knows and NVML does not name. file: its device file. product: its name or ""."""

    file: str
    product: str = ""


class SlurmNode(Struct, frozen=True, kw_only=True):
    """Describes a node for Slurm. ``cores_per_socket`` and ``threads_per_core`` are 0 if they differ within the node, because
    slurm.conf cannot express that.

    ``gpus`` are in the order of their device files. ``memory_mib``: None if it is not known. ``notes``: one line each.
    ``gpu_kinds``: how many of NVIDIA's GPUs have each PCI ID, or {} if that was not read.
    """

    name: str
    cpus: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int | None
    gpus: tuple[GpuGres, ...]
    notes: tuple[str, ...] = ()
    gpu_kinds: Mapping[str, int] = {}


def gres_type(name: str) -> str:
    """Return a short GRES type for a product's name, such as h100. It is a part of AutoDetect's name (`nvidia_h100_80gb_hbm3`).

    With AutoDetect, a configured type must be part of the detected type (gres.conf(5), Type). The type has only letters, digits
    and _, because slurm.conf allows no other character in it. For the product "GH200/GB200" the type is gh200.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in _BRANDS]
    if words[:2] == ["rtx", "pro"] and len(words) > 2:
        return f"rtx_pro_{words[2]}"
    if words[:1] == ["rtx"] and len(words) > 1:
        return f"rtx_{words[1]}"
    return words[0] if words else "gpu"


def numbered(cores: Sequence[binding_plan.Core], socket: Socket) -> list[tuple[int, int]]:
    """Return (socket, CPU set) of each core in Slurm's order. Sockets are numbered from 0 in that order."""
    sets: dict[tuple[object, ...], int] = {}

    def levels(core: binding_plan.Core) -> tuple[tuple[object, ...], tuple[object, ...], tuple[object, ...]]:
        package = ("package", core.package)
        return package, (*package, "numa", core.numa), (*package, "l3", core.l3)

    for core in cores:
        for level in levels(core):
            sets[level] = sets.get(level, 0) | core.cpus

    def key(core: binding_plan.Core) -> tuple[int, ...]:
        package, *inner = levels(core)
        inner.sort(key=lambda level: -sets[level].bit_count())
        return tuple(_lowest(each) for each in (sets[package], sets[inner[0]], sets[inner[1]], core.cpus))

    which = {Socket.PACKAGE: 0, Socket.NUMA: 1, Socket.L3: 2}[socket]
    ordered = sorted(cores, key=key)
    order = {level: n for n, level in enumerate(dict.fromkeys(levels(core)[which] for core in ordered))}
    return sorted(((order[levels(core)[which]], core.cpus) for core in ordered), key=lambda each: each[0])


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def of_node(
    node: Node,
    *,
    memory_mib: int | None,
    socket: Socket = Socket.PACKAGE,
    kernel: Mapping[str, KernelGpu] | None = None,
    kind: str = "",
) -> SlurmNode:
    """Return the node that Slurm sees on a machine. ``kernel``: GPUs by PCI address, for GPUs that NVML did not name.

    ``kind``: the GRES type of every GPU, or "" for a type by product. ``memory_mib``: RealMemory, or None if it is not known.
    Raise DataError for a GPU without a device file and for two GPUs with the same one.
    """
    up = as_cpu_set(locality.online(node))
    cores = {}
    for cpu in node.cpus:
        mask = as_cpu_set(cpu.siblings or (cpu.id,)) & up
        if cpu.online and mask:
            cores[mask] = binding_plan.Core(cpu.package, cpu.numa, cpu.l3, mask)
    known = {} if isinstance(node.gpus, Missing) else {gpu.pci: gpu for gpu in node.gpus}
    found = [gpu for gpu in accelerators(node) if not gpu.passed_through]
    if any(gpu.vendor == "NVIDIA" for gpu in found):
        found = [gpu for gpu in found if gpu.vendor == "NVIDIA"]
    kernel_gpus = kernel or {}
    placed = sorted(((_file(node.name, gpu, kernel_gpus), gpu) for gpu in found), key=lambda each: natural(each[0]))
    near = {gpu.pci: as_cpu_set(locality.of_pci(node, gpu.pci).cpus) for gpu in found}
    order = [gpu for _, gpu in placed]
    gpus = [
        (
            gpu.pci,
            file,
            kind or gres_type(_product(gpu, kernel_gpus)),
            near[gpu.pci],
            _links(gpu, order),
            _mig(known.get(gpu.pci)),
        )
        for file, gpu in placed
    ]
    return _build(node.name, list(cores.values()), gpus, memory_mib, socket)


def of_published(text: str, *, socket: Socket = Socket.PACKAGE, kind: str = "gpu") -> SlurmNode:
    """Return the node of a published topology file (/run/fairlead/topology), which has no memory, types and NVLinks.

    Raise DataError for a file that is not whole.
    """
    try:
        machine = binding_plan.parse_topology(text)
    except binding_plan.Doubt as e:
        raise DataError(str(e), hint="copy /run/fairlead/topology of that node again") from None
    lines = [line.split("\t") for line in text.splitlines()]
    minors = {fields[4]: fields[2] for fields in lines if fields[0] == "gpu"}
    name = lines[0][2]
    if "-" in minors.values():
        raise DataError(f"{name}: the minor number of a GPU is not known, and so is its device file")
    gpus = sorted(
        ((g.pci, f"/dev/nvidia{minors[g.pci]}", kind, g.near, (), False) for g in machine.gpus), key=lambda each: natural(each[1])
    )
    return _build(name, machine.cores, gpus, None, socket)


def _build(
    name: str,
    cores: list[binding_plan.Core],
    gpus: Sequence[tuple[str, str, str, int, tuple[int, ...], bool]],
    memory_mib: int | None,
    socket: Socket,
) -> SlurmNode:
    doubled = sorted({file for _, file, *_ in gpus if sum(1 for _, other, *_ in gpus if other == file) > 1})
    if doubled:
        raise DataError(f"{name}: {doubled[0]} is the device file of two GPUs", hint="record the node again")
    order = numbered(cores, socket)
    counts = [sum(1 for at, _ in order if at == number) for number in range(1 + max((at for at, _ in order), default=-1))]
    threads = {mask.bit_count() for _, mask in order}
    notes = []
    if len(set(counts)) > 1:
        notes.append(f"its sockets have {', '.join(map(str, counts))} cores: Slurm can only say CPUs=")
    if len(threads) > 1:
        notes.append("its cores have different numbers of threads: Slurm can only say CPUs=")
    even = len(set(counts)) == 1 and len(threads) == 1
    made = []
    unknown, partial = [], []
    for pci, file, kind, near, links, mig in gpus:
        mine = tuple(number for number, (_, mask) in enumerate(order) if mask & near)
        touched = {order[number][0] for number in mine}
        whole = tuple(number for number, (at, _) in enumerate(order) if at in touched)
        if not mine:
            unknown.append(pci)
        elif whole != mine:
            partial.append(pci)
        everywhere = len(whole) == len(order)
        made.append(
            GpuGres(pci=pci, file=file, type=kind, cores=() if everywhere or not even else whole, near=mine, links=links, mig=mig)
        )
    if unknown:
        notes.append(f"the CPUs near GPU {', '.join(unknown)} are not known: no Cores there")
    if partial:
        better = ": SlurmdParameters=numa_node_as_socket keeps them apart" if socket is Socket.PACKAGE else ""
        notes.append(f"near GPU {', '.join(partial)} is part of a socket, and Slurm takes whole ones only{better}")
    return SlurmNode(
        name=name,
        cpus=sum(mask.bit_count() for _, mask in order),
        sockets=len(counts),
        cores_per_socket=counts[0] if even else 0,
        threads_per_core=threads.pop() if even else 0,
        memory_mib=memory_mib,
        gpus=tuple(made),
        notes=tuple(notes),
    )


def _product(gpu: Accelerator, kernel: Mapping[str, KernelGpu]) -> str:
    return gpu.name if gpu.named or gpu.pci not in kernel else kernel[gpu.pci].product or gpu.name


def _file(name: str, gpu: Accelerator, kernel: Mapping[str, KernelGpu]) -> str:
    """Return the device file of a GPU. It has the GPU's minor number, not NVML's index. Raise DataError where it is unknown."""
    if gpu.vendor == "NVIDIA" and not isinstance(gpu.minor, Missing):
        return f"/dev/nvidia{gpu.minor}"
    if gpu.pci in kernel:
        return kernel[gpu.pci].file
    raise DataError(
        f"{name}: the device file of GPU {gpu.pci} is not known (its driver does not name it)",
        hint="repair or remove that GPU, or record the node when its driver answers: without it the GPU would be lost",
    )


def _links(gpu: Accelerator, order: Sequence[Accelerator]) -> tuple[int, ...]:
    links = () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks
    ends = [link.remote for link in links if link.active is True]
    return tuple(-1 if other is gpu else ends.count(other.pci) for other in order)


def _mig(gpu: Gpu | None) -> bool:
    return gpu is not None and gpu.mig_current is True
