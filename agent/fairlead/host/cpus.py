"""Reads CPUs and NUMA nodes from /sys/devices/system (Documentation/ABI/stable/sysfs-devices-{system-cpu,node}).

It assumes little about the machine: files may be absent, CPUs may be offline, and the numbers of CPUs and NUMA nodes may have
gaps. A NUMA node may have no CPUs (GPU memory) or no memory. Old kernels write masks instead of lists.
"""

from __future__ import annotations

import re

from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist, parse_cpumask
from fairlead.model.facts import Cpu, Missing, NumaNode, unreadable

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_MEMTOTAL = re.compile(r"MemTotal:\s+(\d+) kB")


def signature(root: Root) -> tuple[object, ...]:
    """Return a value that changes whenever the CPUs or the memory of the machine change."""
    return (
        root.read_line(f"{_CPU}/online"),
        root.read_line(f"{_NODE}/online"),
        root.read_line(f"{_NODE}/has_cpu"),
        root.list(_CPU),
        root.list(_NODE),
    )


def numa_nodes(root: Root) -> tuple[NumaNode, ...]:
    """Return every NUMA node that has a folder, by number, with its memory in bytes."""
    return tuple(_numa_node(root, number) for number in _numbered(root, _NODE, "node"))


def cpus(root: Root, nodes: tuple[NumaNode, ...]) -> tuple[Cpu, ...]:
    """Return every CPU that has a folder, by number. An offline CPU has no topology, so its only sibling is itself."""
    home = {cpu: node.id for node in nodes for cpu in node.cpus}
    online = _set(root, f"{_CPU}/online", f"{_CPU}/online_map")
    siblings_of: dict[int, tuple[int, ...]] = {}
    l3_of: dict[int, int] = {}
    found = []
    for cpu in _numbered(root, _CPU, "cpu"):
        topology = f"{_CPU}/cpu{cpu}/topology"
        package = root.number(f"{topology}/physical_package_id")
        is_online = cpu in online if online is not None else not isinstance(package, Missing)
        if cpu not in siblings_of:
            siblings = _first_set(
                root, f"{topology}/core_cpus_list", f"{topology}/thread_siblings_list", f"{topology}/thread_siblings"
            )
            if cpu not in siblings:
                siblings = (cpu,)
            siblings_of.update(dict.fromkeys(siblings, siblings))
        if cpu not in l3_of:
            sharing = _l3(root, f"{_CPU}/cpu{cpu}/cache")
            l3_of.update(dict.fromkeys(sharing, min(sharing, default=-1)))
        core = root.number(f"{topology}/core_id")
        found.append(
            Cpu(
                id=cpu,
                package=-1 if isinstance(package, Missing) else package,
                core=-1 if isinstance(core, Missing) else core,
                numa=home.get(cpu, -1),
                l3=l3_of.get(cpu, -1),
                siblings=siblings_of[cpu],
                online=is_online,
            )
        )
    return tuple(found)


def _numa_node(root: Root, number: int) -> NumaNode:
    folder = f"{_NODE}/node{number}"
    cpus = _first_set(root, f"{folder}/cpulist", f"{folder}/cpumap")
    meminfo = root.read_text(f"{folder}/meminfo", 65536)
    memory: int | Missing = unreadable(f"{folder}/meminfo: no such file")
    if isinstance(meminfo, str):
        match = _MEMTOTAL.search(meminfo)
        memory = int(match[1]) * 1024 if match else unreadable(f"{folder}/meminfo: no MemTotal")
    elif isinstance(meminfo, Missing):
        memory = meminfo
    distance = root.read_line(f"{folder}/distance")
    words = distance.split() if isinstance(distance, str) else []
    return NumaNode(
        id=number,
        cpus=cpus,
        memory_bytes=memory,
        distances=tuple(int(w) for w in words) if all(w.isascii() and w.isdigit() and len(w) < 9 for w in words) else (),
    )


def _l3(root: Root, folder: str) -> tuple[int, ...]:
    """Return the CPUs that share the L3 cache. It is usually index3, but not on every machine."""
    names = root.names(folder)
    for index in sorted((n for n in names if n.startswith("index")), reverse=True):
        if root.read_line(f"{folder}/{index}/level") == "3":
            return _first_set(root, f"{folder}/{index}/shared_cpu_list", f"{folder}/{index}/shared_cpu_map")
    return ()


def _numbered(root: Root, folder: str, prefix: str) -> list[int]:
    tails = [n.removeprefix(prefix) for n in root.names(folder) if n.startswith(prefix)]
    return sorted(int(t) for t in tails if t.isascii() and t.isdigit() and len(t) < 6)


def _first_set(root: Root, *paths: str) -> tuple[int, ...]:
    return _set(root, *paths) or ()


def _set(root: Root, *paths: str) -> tuple[int, ...] | None:
    """Return the CPUs in the first of ``paths`` that can be read, or None. The file's name tells a mask from a list."""
    for path in paths:
        text = root.read_line(path)
        if isinstance(text, str):
            parse = parse_cpumask if path.endswith(("map", "siblings")) else parse_cpulist
            try:
                return parse(text)
            except ValueError:
                continue
    return None
