"""Finds which CPUs are near a device, from sysfs facts only.

Inside a job, NVML reports only CPUs of the caller's cpuset (dask-cuda#1381), so NVML is not used. On real machines `numa_node`
can be -1 or name a node without CPUs. In that case the result has a note.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.facts import Missing, Nic, Node, NumaNode


class Locality(Struct, frozen=True, kw_only=True):
    """Says where a device is. numa: its NUMA node, or -1 if unknown. cpus: the nearest online CPUs, or () if unknown.

    note: the reason if ``numa`` and ``cpus`` are unknown or differ from the kernel's values, else "".
    """

    numa: int
    cpus: tuple[int, ...]
    note: str = ""


def online(node: Node) -> tuple[int, ...]:
    """Return the online CPUs in order. If the node describes no CPUs, return the CPUs of its NUMA nodes."""
    if node.cpus:
        return tuple(sorted(c.id for c in node.cpus if c.online))
    return tuple(sorted({cpu for n in node.numa for cpu in n.cpus}))


def with_cpus(node: Node) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have an online CPU. GPU memory and memory expanders are NUMA nodes without CPUs."""
    up = set(online(node))
    return tuple(n for n in sorted(node.numa, key=lambda n: n.id) if up & set(n.cpus))


def of_numa(node: Node, numa: int) -> Locality:
    """Return the locality of a device whose numa_node in sysfs is ``numa``."""
    up = set(online(node))
    candidates = with_cpus(node)
    by_id = {n.id: n for n in node.numa}
    if numa >= 0 and any(n.id == numa for n in candidates):
        return Locality(numa=numa, cpus=tuple(sorted(up & set(by_id[numa].cpus))))
    if len(candidates) == 1:
        return Locality(numa=candidates[0].id, cpus=tuple(sorted(up & set(candidates[0].cpus))))
    if numa >= 0 and numa in by_id and candidates:
        # The distances have the order of the online NUMA nodes' numbers (Documentation/ABI/stable/sysfs-devices-node).
        row = dict(zip(sorted(by_id), by_id[numa].distances, strict=False))
        best = min((row.get(n.id, 255), n.id) for n in candidates)
        if best[0] < 255 and sum(1 for n in candidates if row.get(n.id, 255) == best[0]) == 1:
            near = by_id[best[1]]
            return Locality(
                numa=near.id,
                cpus=tuple(sorted(up & set(near.cpus))),
                note=f"NUMA node {numa} has no CPUs: taken as node {near.id}, the nearest that has",
            )
        return Locality(numa=-1, cpus=(), note=f"NUMA node {numa} has no CPUs and no nearest node that has")
    if numa >= 0:
        return Locality(numa=-1, cpus=(), note=f"NUMA node {numa} is not there")
    return Locality(numa=-1, cpus=(), note="the kernel does not say on which NUMA node it is")


def of_pci(node: Node, address: str) -> Locality:
    """Return the locality of a PCI device. It is unknown if the machine tree does not describe the device."""
    for device in node.pci:
        if device.address == address:
            if isinstance(device.numa, Missing) and device.local_cpus:
                return _of_cpus(node, device.local_cpus)
            return of_numa(node, -1 if isinstance(device.numa, Missing) else device.numa)
    return of_numa(node, -1)


def _of_cpus(node: Node, local: tuple[int, ...]) -> Locality:
    """Return the locality by the kernel's list of local CPUs. It is unknown if the list has all CPUs of the machine."""
    up = set(online(node))
    near = up & set(local)
    if not near or near == up:
        return of_numa(node, -1)
    homes = [n.id for n in with_cpus(node) if near <= set(n.cpus)]
    return Locality(
        numa=homes[0] if homes else -1,
        cpus=tuple(sorted(near)),
        note="the kernel gives local CPUs without a NUMA node: taken as they are",
    )


def of_nic(node: Node, nic: Nic) -> Locality:
    """Return the locality of a NIC, from its PCI device, or else from the numa_node of its network interface."""
    if any(d.address == nic.pci for d in node.pci):
        return of_pci(node, nic.pci)
    return of_numa(node, -1 if isinstance(nic.numa, Missing) else nic.numa)


def even_split(node: Node, position: int, count: int) -> tuple[int, ...]:
    """Return one of ``count`` equal consecutive parts of the online CPUs, sorted by package and core. It is shown for a device of
    unknown locality."""
    where = {c.id: (c.package, c.numa, c.core, c.id) for c in node.cpus}
    cpus = sorted(online(node), key=lambda c: where.get(c, (0, 0, 0, c)))
    run = cpus[position * len(cpus) // count : (position + 1) * len(cpus) // count]
    return tuple(sorted(run))
