"""Finds out which GPU or MIG instance each GRES index means, if gres.conf lists the device files and slurmd detects nothing.

slurmd then counts in the order of its configuration (src/interfaces/gres.c, _merge_config and gres_node_config_load; read in
22.05.8, 24.11.5 and 26.05.3). It takes the lines of gres.conf that begin with Name, and then those that begin with NodeName and
name this node. For each type of Gres= in slurm.conf, in the order there, it takes the lines of this type, in their order. Each
file of File= gets one index. All files of MultipleFiles= together get one index.

MultipleFiles= of a MIG instance names the file of its GPU and the files of two capabilities, /dev/nvidia-caps/nvidia-capN: of its
GPU instance, and of its compute instance. The driver lists the numbers N in /proc/driver/nvidia-caps/mig-minors, by the minor
number of the GPU and the ids of the instances (MIG user guide, "Device Nodes and Capabilities"; Slurm takes them from there too).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fairlead.model.nodelist import expand
from fairlead.slurm_config.gres_order import WHOLE, Device

MINORS = "/proc/driver/nvidia-caps/mig-minors"
INDICES_MAX = 1024
_PAIR = re.compile(r"\b(\w++)\s*+=\s*(\"[^\"]*\"|\S+)")
_GPU_FILE = re.compile(r"/dev/nvidia([0-9]{1,5})", re.ASCII)
_CAP_FILE = re.compile(r"/dev/nvidia-caps/nvidia-cap([0-9]{1,7})", re.ASCII)
_CAP = re.compile(r"gpu([0-9]{1,5})/gi([0-9]{1,5})(?:/ci([0-9]{1,5}))?/access ([0-9]{1,7})", re.ASCII)
_COUNTED = re.compile(r"gpu(?::([^:,()]+))??(?::([0-9]+))?(?:\([^)]*\))?", re.IGNORECASE | re.ASCII)


class GresLine(Struct, frozen=True):
    """Holds one line of gres.conf with device files of GPUs. ``multiple``: all files together are one device."""

    type: str
    files: tuple[str, ...]
    multiple: bool


class Capability(Struct, frozen=True):
    """Says what a capability gives access to: a GPU instance, or one of its compute instances. ``gpu``: the minor number of the
    GPU. ``ci``: None for the GPU instance."""

    gpu: int
    gi: int
    ci: int | None


def gpu_lines(lines: Iterable[str], node: str) -> tuple[GresLine, ...] | None:
    """Return the lines of gres.conf that hold for a node, in the order in which slurmd takes them.

    ``lines``: without comments, with continued lines joined. ``node``: Slurm's NodeName. Return None if slurmd detects GPUs on
    this node, because it then counts in another order. Raise ValueError for a nodelist or file list that is not valid.
    """
    everywhere: list[GresLine] = []
    named: list[GresLine] = []
    detects, detects_here = "", ""
    for line in lines:
        pairs = {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}
        by_node = "nodename" in pairs
        if by_node and node not in expand(pairs["nodename"]):
            continue
        if "autodetect" in pairs and by_node:
            detects_here = pairs["autodetect"].lower()
        elif "autodetect" in pairs and "name" not in pairs:
            detects = pairs["autodetect"].lower()
        if pairs.get("name", "").lower() != "gpu":
            continue
        text = pairs.get("multiplefiles") or pairs.get("file") or pairs.get("files")
        if text:
            made = GresLine(pairs.get("type", ""), tuple(expand(text)), "multiplefiles" in pairs)
            (named if by_node else everywhere).append(made)
    return None if (detects_here or detects) not in {"", "off"} else (*everywhere, *named)


def counted_types(nodes: Iterable[Mapping[str, str]], node: str) -> tuple[tuple[str, int], ...]:
    """Return (type, number) of each GPU type in Gres= of a node, in the order there. The type is "" if Gres= has no types.

    ``nodes``: the values of each NodeName line of slurm.conf by lower-case key. Raise ValueError for a nodelist that is not
    valid, and for GPUs that are written in another way.
    """
    default, own = "", None
    for values in nodes:
        if values.get("nodename", "").upper() == "DEFAULT":
            default = values.get("gres", default)
        elif own is None and node in expand(values.get("nodename", "")):
            own = values.get("gres", default)
    found = []
    for word in re.split(r",(?![^(]*\))", own or ""):
        match = _COUNTED.fullmatch(word.strip())
        if match is None and re.match(r"\s*gpu\b", word, re.IGNORECASE):
            raise ValueError(f"Gres={word[:80]!r} is not understood")
        if match:
            found.append((match[1] or "", int(match[2] or 1)))
    return tuple(found)


def files_by_index(lines: Iterable[GresLine], types: Iterable[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
    """Return the device files of each GRES index, in the order of the indices."""
    left = list(lines)
    found: list[tuple[str, ...]] = []
    for kind, count in types:
        end = len(found) + count
        for line in [line for line in left if not kind or line.type.lower() == kind.lower()]:
            if len(found) >= end:
                break
            left.remove(line)
            found += [line.files] if line.multiple else [(file,) for file in line.files[: end - len(found)]]
    return tuple(found[:INDICES_MAX])


def capabilities(text: str) -> dict[int, Capability]:
    """Return what each /dev/nvidia-caps/nvidia-capN is for, by N. ``text``: the driver's mig-minors. Lines of other capabilities
    (config, monitor) are left out."""
    found = {}
    for line in text.splitlines():
        if match := _CAP.fullmatch(line.strip()):
            gpu, gi, ci, number = match.groups()
            found[int(number)] = Capability(int(gpu), int(gi), None if ci is None else int(ci))
    return found


def device_of(files: Sequence[str], caps: Mapping[int, Capability]) -> Device | None:
    """Return the GPU or MIG device of the files of one GRES index, or None if they are not exactly those of one device."""
    gpus = [int(match[1]) for file in files if (match := _GPU_FILE.fullmatch(file))]
    numbers = [int(match[1]) for file in files if (match := _CAP_FILE.fullmatch(file))]
    if len(gpus) != 1 or len(gpus) + len(numbers) != len(files):
        return None
    if not numbers:
        return gpus[0], WHOLE
    named = [caps[number] for number in numbers if number in caps]
    instances = {cap.gi for cap in named if cap.ci is None}
    computes = {(cap.gi, cap.ci) for cap in named if cap.ci is not None}
    if len(numbers) != 2 or len(instances) != 1 or len(computes) != 1 or {cap.gpu for cap in named} != set(gpus):
        return None
    ((gi, ci),) = computes
    return (gpus[0], (gi, ci)) if {gi} == instances else None


def mistakes(
    lines: Iterable[GresLine], caps: Mapping[int, Capability], present: Mapping[int, Collection[tuple[int, int]]]
) -> Iterator[str]:
    """Yield one line for each mistake in the lines of MIG instances. ``present``: the ids (GPU instance, compute instance) of the
    MIG devices of each GPU in MIG mode, by the minor number of the GPU."""
    listed: set[Device] = set()
    for line in lines:
        if not line.multiple:
            continue
        said = f"MultipleFiles={','.join(line.files)}"
        device = device_of(line.files, caps)
        if device is None or device[1] == WHOLE:
            yield f"{said}: {_wrong(line.files, caps)}"
        elif device in listed:
            yield f"{said}: {_in_words(device)} is on another line too"
        elif device[0] in present and device[1] not in present[device[0]]:
            yield f"{said}: {_in_words(device)} does not exist"
        if device is not None:
            listed.add(device)
    for gpu, devices in present.items():
        for ids in sorted(devices):
            if listed and (gpu, ids) not in listed:
                yield f"no line has {_in_words((gpu, ids))}"


def _wrong(files: Sequence[str], caps: Mapping[int, Capability]) -> str:
    """Return in words why these files are not those of one MIG device."""
    gpus = [int(match[1]) for file in files if (match := _GPU_FILE.fullmatch(file))]
    if len(gpus) != 1:
        return "names no GPU (/dev/nvidiaN)" if not gpus else f"names {len(gpus)} GPUs"
    for file in files:
        match = _CAP_FILE.fullmatch(file)
        cap = caps.get(int(match[1])) if match else None
        if match is None and not _GPU_FILE.fullmatch(file):
            return f"{file} is no device file of a GPU or of a MIG capability"
        if match and cap is None:
            return f"{file} is the capability of no MIG instance ({MINORS})"
        if cap and cap.gpu != gpus[0]:
            return f"{file} is the capability of an instance of /dev/nvidia{cap.gpu}"
    named = [caps[int(match[1])] for file in files if (match := _CAP_FILE.fullmatch(file))]
    if not any(cap.ci is None for cap in named):
        return "the capability of the GPU instance is missing"
    if not any(cap.ci is not None for cap in named):
        return "the capability of the compute instance is missing"
    return "the capabilities are those of several instances"


def _in_words(device: Device) -> str:
    gpu, (gi, ci) = device
    compute = f", compute instance {ci}" if ci else ""
    return f"MIG instance {gi}{compute} of /dev/nvidia{gpu}"
