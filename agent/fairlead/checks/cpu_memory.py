"""Checks that the node has as much memory and as many CPUs as are declared for this kind of node.

MemTotal (/proc/meminfo) is the memory that the kernel can use. It is some percent smaller than the memory of the DIMMs. A
site therefore declares a lower limit. A node that loses a DIMM falls below this limit. On Grace the driver makes the memory
of each GPU a NUMA node without CPUs, and MemTotal counts it (NVIDIA Grace Hopper tuning guide). If the machine has such
nodes, the check therefore adds up the MemTotal of the other nodes (/sys/devices/system/node/nodeN/meminfo). The check reads
the number of CPUs from /sys/devices/system/cpu/online, and the state of hardware threads from
/sys/devices/system/cpu/smt/control (Documentation/ABI/testing/sysfs-devices-system-cpu). Slurm also drains a node that
registers with less memory or fewer CPUs than slurm.conf declares (low RealMemory, low CPUs), but only when slurmd starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import listed_gpus
from fairlead.model.facts import Missing, Node, Why, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import host_of, unread

SMT = ("on", "off", "forceoff", "notsupported", "notimplemented")


class Params(CheckParams, frozen=True, kw_only=True):
    memory_bytes_min: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="The least MemTotal in bytes, without NUMA nodes that are the memory of GPUs (Grace)."
            " If unset, memory is not judged."
        ),
    ] = None
    cpus_expected: Annotated[
        Annotated[int, Meta(ge=1, le=8192)] | None,
        Meta(description="Number of CPUs (hardware threads) that must be online. If unset, it is not judged."),
    ] = None
    smt: Annotated[bool | None, Meta(description="Hardware threads must be on (true) or off (false); unset: not judged.")] = None


def _drain(summary: str, action: Action, fault: str, *evidence: str) -> Finding:
    return with_action(Level.DRAIN, summary, action, *evidence, service=Service.DRAIN_AFTER_JOB, fault=fault)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if params.memory_bytes_min is None and params.cpus_expected is None and params.smt is None:
        return
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        least, have = params.memory_bytes_min, host_memory_bytes(node, host.memory_bytes)
        if least is not None:
            if isinstance(have, Missing):
                yield unread("the size of the memory", have)
            elif have < least:
                said = f"{have / 2**30:.0f} GiB of memory, at least {least / 2**30:.0f} declared"
                yield _drain(said, Action.CHECK_HARDWARE, "memory", *_nodes(node))
        if params.cpus_expected is not None:
            if isinstance(host.cpus_online, Missing):
                yield unread("the number of CPUs", host.cpus_online)
            elif host.cpus_online < params.cpus_expected:
                yield _drain(f"{host.cpus_online} of {params.cpus_expected} CPUs are online", Action.CHECK_HARDWARE, "cpus")
            elif host.cpus_online > params.cpus_expected:
                yield Finding(
                    level=Level.WARN,
                    summary=f"{host.cpus_online} CPUs are online, {params.cpus_expected} declared",
                    action=Action.PROVISION,
                    fault="cpus",
                )
        if params.smt is not None:
            if isinstance(host.smt, Missing):
                yield unread("the state of hardware threads", host.smt)
            elif host.smt not in SMT:
                yield unread("the state of hardware threads", unreadable(f"{host.smt[:40]!r} is none"))
            elif (host.smt == "on") is not params.smt:
                want = "on" if params.smt else "off"
                yield _drain(f"hardware threads are {host.smt}, {want} declared", Action.PROVISION, "smt")


def host_memory_bytes(node: Node, total: int | Missing) -> int | Missing:
    """Return the memory of the host in bytes, without the memory of GPUs. ``total``: MemTotal of the whole machine.

    Return Missing if a NUMA node may be the memory of a GPU and this cannot be told: MemTotal could hide a lost module.
    """
    without_cpus = [n.memory_bytes for n in node.numa if not n.cpus]
    if not any(isinstance(size, Missing) or size for size in without_cpus):
        return total
    if isinstance(node.gpus, Missing):
        return node.gpus
    doubts = (*without_cpus, *(gpu.memory_total_bytes for gpu in node.gpus))
    if doubt := next((value for value in doubts if isinstance(value, Missing) and value.why is Why.UNREADABLE), None):
        return doubt
    of_gpus = _nodes_of_gpus(node)
    if not of_gpus:
        return total
    sizes = [n.memory_bytes for n in node.numa if n.id not in of_gpus]
    missing = next((size for size in sizes if isinstance(size, Missing)), None)
    return missing if missing is not None else sum(size for size in sizes if isinstance(size, int))


def _nodes_of_gpus(node: Node) -> frozenset[int]:
    """Return the NUMA nodes that are the memory of GPUs: as many nodes without CPUs as there are GPUs, each about as large as the
    memory of a GPU. CXL memory and the memory of a CPU package are nodes without CPUs too, and belong to the host."""
    totals = [gpu.memory_total_bytes for gpu in listed_gpus(node) if isinstance(gpu.memory_total_bytes, int)]
    found = [
        n.id
        for n in node.numa
        if not n.cpus and isinstance(n.memory_bytes, int) and any(0.75 * t < n.memory_bytes < 1.25 * t for t in totals)
    ]
    return frozenset(found) if len(found) == len(listed_gpus(node)) else frozenset()


def _nodes(node: Node) -> Iterator[str]:
    """Yield one line with the memory of each NUMA node. The node that lost a DIMM has less than the others."""
    sizes = [f"node {n.id}: {n.memory_bytes / 2**30:.0f} GiB" for n in node.numa if isinstance(n.memory_bytes, int)]
    if sizes:
        yield ", ".join(sizes[:16])


check = Check(
    summary="As much memory and as many CPUs as this kind of node has",
    params=Params,
    another_gpu={"memory_bytes_min": None, "cpus_expected": None, "smt": None},
    judge=judge,
    mode=Mode.ENFORCE,
    confirm=2,
    confirm_of=3,
    slow=True,
)
