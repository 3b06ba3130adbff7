"""Reads the machines that `fairlead slurm-config` describes: this node, machine trees, published topology files."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter

from msgspec.structs import replace

from fairlead.checks.gpu_count import compute_gpus
from fairlead.cli import read_machine
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.errors import DataError, InputMissing, UsageError
from fairlead.host.gather import gather
from fairlead.host.recorded_tree import refuse_broken
from fairlead.host.root import Root
from fairlead.model.facts import Node
from fairlead.model.nodelist import in_order, is_name
from fairlead.slurm_config.slurm_node import KernelGpu, SlurmNode, Socket, of_node, of_published
from fairlead.topology.distances.accelerators import accelerators

_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)
_MODEL = re.compile(r"^Model:\s*(.*)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)


def read(args: argparse.Namespace) -> list[SlurmNode]:
    """Return the nodes of the command line, in the order of their names. Raise DataError for a name that occurs twice."""
    sources = args.source or [args.root]
    found = {}
    for source in sources:
        node = read_source(source, args)
        if node.name in found:
            raise DataError(f"{source}: there is already a node {node.name}", hint="give this one another name: OTHER_NAME=TREE")
        if not is_name(node.name):
            raise DataError(f"{source}: {node.name!r} is not a node name", hint="give it a name: NAME=TREE")
        found[node.name] = node
    return [found[name] for name in in_order(found)]


def read_source(source: str, args: argparse.Namespace) -> SlurmNode:
    """Return the machine of one source: TREE, NAME=TREE or a published topology file."""
    name, named, path = source.partition("=")
    if not named or os.path.exists(source):
        name, path = "", source
    socket = Socket(args.socket)
    if os.path.isfile(path):
        if args.what in ("nodes", "all"):
            raise UsageError(f"{path}: a topology file does not say how much memory a node has", hint="name a machine tree")
        try:
            with open(path, encoding="utf-8") as f:
                node = of_published(f.read(16 << 20), socket=socket, kind=args.type or "gpu")
        except OSError as e:
            raise InputMissing(f"{path}: {e.strerror}") from None
        except (UnicodeDecodeError, DataError) as e:
            raise DataError(f"{path}: {e}", hint="copy /run/fairlead/topology of that node again") from None
    else:
        root = machine(path)
        refuse_broken(root)
        raw = read_machine.live_nvml(10.0)[0] if root.is_live else recorded_nvml(path)
        facts = gather(root, raw, reads=("/proc/meminfo",))
        node = of_node(facts, memory_mib=_memory(facts), socket=socket, kernel=_kernel(root, facts), kind=args.type)
        node = replace(node, gpu_kinds=dict(Counter(compute_gpus(facts))))
    return replace(node, name=name) if name else node


def _memory(node: Node) -> int | None:
    """Return the RealMemory that slurmd reports, in MiB. It is the whole MemTotal. Return None if MemTotal cannot be read."""
    text = node.text("/proc/meminfo")
    match = _TOTAL.search(text) if isinstance(text, str) else None
    return int(match[1]) // 1024 if match else None


def _kernel(root: Root, node: Node) -> dict[str, KernelGpu]:
    """Return the GPUs by PCI address, read without a driver library.

    NVIDIA's minor number and product are read from /proc/driver/nvidia (the driver's README, "Device Minor"). AMD's render
    node is read from sysfs, as Slurm's AutoDetect=rsmi has it.
    """
    found = {}
    for gpu in accelerators(node):
        if gpu.vendor == "NVIDIA":
            text = root.read_text(f"/proc/driver/nvidia/gpus/{gpu.pci}/information")
            minor = _MINOR.search(text) if isinstance(text, str) else None
            model = _MODEL.search(text) if isinstance(text, str) else None
            if minor:
                found[gpu.pci] = KernelGpu(f"/dev/nvidia{minor[1]}", model[1].strip() if model else "")
        else:
            names = [n for n in root.names(f"/sys/bus/pci/devices/{gpu.pci}/drm") if re.fullmatch(r"renderD\d+", n)]
            if len(names) == 1:
                found[gpu.pci] = KernelGpu(f"/dev/dri/{names[0]}")
    return found
