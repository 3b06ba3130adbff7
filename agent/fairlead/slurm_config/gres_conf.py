"""Writes gres.conf and the NodeName lines of slurm.conf. Equal nodes share one line (gres.conf(5), slurm.conf(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from fairlead.model.cpulist import format_cpulist
from fairlead.model.nodelist import fold, in_order
from fairlead.slurm_config.slurm_node import GpuGres, SlurmNode

# nodes whose memory differs by at most 1/100 are equal, because firmware and kernel take a little more or less
MEMORY_FRACTION = 100


def gres_lines(node: SlurmNode, autodetect: str = "") -> tuple[str, ...]:
    """Return the lines of one node, without NodeName. ``autodetect``: "" or a mechanism (nvml, nvidia, rsmi).

    With a mechanism, slurmd detects links and cores itself and compares them with these lines. A difference drains the node. A
    node in MIG mode is left to AutoDetect, because the device files of GPU instances are known only on the node, and change with
    the instances. Its NodeName line has the number of instances of each type (``gpu_types``).
    """
    head = f"AutoDetect={autodetect} " if autodetect else ""
    if any(gpu.mig for gpu in node.gpus):
        return ("AutoDetect=nvml",)
    lines = []
    for group in _alike(node.gpus, autodetect):
        first = group[0]
        cores = _cores(first, autodetect)
        links = f" Links={','.join(map(str, first.links))}" if _says_links(first) and not autodetect else ""
        files = fold(gpu.file for gpu in group)
        lines.append(f"{head}Name=gpu Type={first.type} File={files}{f' Cores={cores}' if cores else ''}{links}")
    return tuple(lines)


def _alike(gpus: Sequence[GpuGres], autodetect: str) -> list[list[GpuGres]]:
    """Return the GPUs in groups that one line can hold: neighbours in file order with the same type and cores, and no Links."""
    groups: list[list[GpuGres]] = []
    for gpu in gpus:
        last = groups[-1][-1] if groups else None
        links = not autodetect and (_says_links(gpu) or (last is not None and _says_links(last)))
        if last is not None and not links and (last.type, _cores(last, autodetect)) == (gpu.type, _cores(gpu, autodetect)):
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    return groups


def _cores(gpu: GpuGres, autodetect: str) -> str:
    if not gpu.cores or (autodetect and gpu.cores != gpu.near):
        return ""
    return format_cpulist(gpu.cores)


def _says_links(gpu: GpuGres) -> bool:
    """Return whether Links prefers some GPUs. Behind NVSwitches it prefers none, because no link ends at another GPU."""
    return any(count > 0 for count in gpu.links)


def render_gres(nodes: Iterable[SlurmNode], autodetect: str = "") -> str:
    """Return the gres.conf of these nodes. ``autodetect``: see gres_lines."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        lines = gres_lines(node, autodetect)
        if lines:
            groups.setdefault(lines, []).append(node.name)
    ordered = sorted(groups, key=lambda lines: in_order(groups[lines])[0])
    return "".join(f"NodeName={fold(groups[lines])} {line}\n" for lines in ordered for line in lines)


def mig_type(profile: str) -> str:
    """Return the GRES type of a GPU instance. It is a part of AutoDetect's name for it (`nvidia_h100_80gb_hbm3_3g.40gb`).

    Slurm 22.05 makes its name only from the slices and the memory, so the type has no attributes (`+me`, `-me`). It rounds the
    memory that NVML reports. With A100 80 GB and driver 535, the profile 3g.40gb therefore has the name 3g.39gb
    (NVIDIA/mig-parted issue 31). For such a case, ``gpu_types`` has ``names``. Slurm 24.11 takes the profile from NVML's name of
    the instance, if that has one, with its attributes (src/plugins/gpu/nvml/gpu_nvml.c, _handle_mig). This type is a part of that
    name too.
    """
    return re.sub(r"([+]|-me).*", "", profile)


def gpu_types(node: SlurmNode, names: Mapping[str, str] = {}) -> dict[str, int]:
    """Return how many GPUs, or GPU instances, a node has of each GRES type. ``names``: the types of MIG profiles for which slurmd
    uses another name.

    Instances come first, because the type of a whole GPU (h100) is also part of AutoDetect's names for GPU instances.
    """
    types: dict[str, int] = {}
    for gpu in sorted(node.gpus, key=lambda gpu: not gpu.instances):
        for kind in [names.get(p, mig_type(p)) for p in gpu.instances] or [gpu.type]:
            types[kind] = types.get(kind, 0) + 1
    return types


def counted(node: SlurmNode) -> bool:
    """Return whether the number of GPUs is known. For a node in MIG mode it is known only by the site's declaration."""
    return all(gpu.instances for gpu in node.gpus if gpu.mig)


def node_line(node: SlurmNode, names: Iterable[str], mig_names: Mapping[str, str] = {}) -> str:
    """Return the NodeName line of ``names``, which are all like ``node``. ``mig_names``: see ``gpu_types``."""
    words = [f"NodeName={fold(names)}", f"CPUs={node.cpus}"]
    if node.cores_per_socket:
        words += ["Boards=1", f"SocketsPerBoard={node.sockets}", f"CoresPerSocket={node.cores_per_socket}"]
        words += [f"ThreadsPerCore={node.threads_per_core}"]
    if node.memory_mib is not None:
        words.append(f"RealMemory={node.memory_mib}")
    types = gpu_types(node, mig_names)
    if types and counted(node):
        words.append("Gres=" + ",".join(f"gpu:{kind}:{count}" for kind, count in types.items()))
    return " ".join(words)


def render_nodes(nodes: Iterable[SlurmNode], mig_names: Mapping[str, str] = {}) -> tuple[str, tuple[str, ...]]:
    """Return the NodeName lines, and notes. Equal nodes share one line, with the least memory that one of these nodes has.

    Slurm drains a node that has less than RealMemory (slurm.conf(5), RealMemory).
    """
    groups: list[list[SlurmNode]] = []
    for node in sorted(nodes, key=lambda n: (node_line(replace(n, memory_mib=None), ["n"]), n.memory_mib or 0, n.name)):
        if groups and _equal(groups[-1][0], node):
            groups[-1].append(node)
        else:
            groups.append([node])
    lines = []
    notes = []
    for group in groups:
        names = in_order(node.name for node in group)
        lines.append((names[0], node_line(group[0], names, mig_names)))
        least, most = group[0].memory_mib, group[-1].memory_mib
        if least != most:
            notes.append(f"{fold(names)}: RealMemory is the least of {least} to {most} MiB")
        if not counted(group[0]):
            notes.append(f"{fold(names)}: in MIG mode: add the Gres that `slurmd -C` prints there")
        elif any(gpu.mig for gpu in group[0].gpus):
            notes.append(f"{fold(names)}: compare its MIG types with `slurmd -G` there; --mig-type PROFILE=TYPE corrects one")
    return "".join(f"{line}\n" for _, line in sorted(lines)), tuple(notes)


def _equal(a: SlurmNode, b: SlurmNode) -> bool:
    if node_line(replace(a, memory_mib=None), ["n"]) != node_line(replace(b, memory_mib=None), ["n"]):
        return False
    if a.memory_mib is None or b.memory_mib is None:
        return a.memory_mib == b.memory_mib
    return (b.memory_mib - a.memory_mib) * MEMORY_FRACTION <= a.memory_mib
