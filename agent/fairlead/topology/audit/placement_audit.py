"""Finds GPUs of unknown locality, GPUs on NUMA nodes without memory, uneven NUMA nodes, and NICs far from the GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairlead.model.facts import Missing, Nic
from fairlead.model.finding import Action, Finding, Level
from fairlead.topology.audit.machine_view import MachineView, finding, lost
from fairlead.topology.distances import locality, nearest_nics, path_classes


def unknown_locality(view: MachineView) -> Iterable[Finding]:
    """Find GPUs whose NUMA node is unknown or has no CPUs."""
    for gpu in view.gpus:
        where = locality.of_pci(view.node, gpu.pci)
        if not where.note:
            continue
        cost = _crossing(view, view.to_host(gpu.pci))
        advice = "" if where.cpus else f": tasks keep the CPUs that Slurm gave them{cost}; update the firmware, which must say it"
        level = Level.OK if where.cpus else Level.WARN
        yield finding("locality", gpu.pci, f"GPU {gpu.pci}: {where.note}{advice}", where.note, level=level)


def memory(view: MachineView) -> Iterable[Finding]:
    """Find GPUs on a NUMA node without memory (NPS or SNC with unevenly filled memory channels)."""
    by_id = {n.id: n for n in view.node.numa}
    for gpu in view.gpus:
        own = by_id.get(view.numa(gpu.pci))
        if own is None or isinstance(own.memory_bytes, Missing) or own.memory_bytes:
            continue
        rate = view.to_host(gpu.pci)
        yield finding(
            "numa_memory",
            gpu.pci,
            f"GPU {gpu.pci} is on NUMA node {own.id}, which has no memory: all of its {rate:.1f} GB/s to the host cross to "
            "another node; fill this node's memory channels, or use fewer NUMA nodes a socket (NPS, SNC)",
            f"node{own.id}/meminfo: MemTotal 0",
        )


def uneven_nodes(view: MachineView) -> Iterable[Finding]:
    """Find sockets whose NUMA nodes with GPUs have different numbers of GPUs, because of sub-NUMA clustering."""
    counts = Counter(view.numa(gpu.pci) for gpu in view.gpus)
    by_package: dict[int, dict[int, int]] = {}
    for gpu in view.gpus:
        package, numa = view.package(gpu.pci), view.numa(gpu.pci)
        if package >= 0 and numa >= 0:
            by_package.setdefault(package, {})[numa] = counts[numa]
    for package, nodes in sorted(by_package.items()):
        if len(set(nodes.values())) < 2:
            continue
        most = max(nodes, key=lambda n: (nodes[n], -n))
        least = min(nodes, key=lambda n: (nodes[n], n))
        one = max((view.to_host(g.pci) for g in view.gpus if view.numa(g.pci) == most), default=0.0)
        more = one * (nodes[most] - nodes[least])
        yield finding(
            "numa_split",
            "",
            f"socket {package}: NUMA node {most} serves {nodes[most]} GPUs ({one * nodes[most]:.1f} GB/s), node {least} only "
            f"{nodes[least]} ({one * nodes[least]:.1f} GB/s): {more:.1f} GB/s more on one node's memory and "
            "cores; set one NUMA node a socket (NPS1, SNC off), or move a GPU",
            *(f"NUMA node {n}: {c} GPUs" for n, c in sorted(nodes.items())),
            action=Action.PROVISION,
        )


def far_nics(view: MachineView) -> Iterable[Finding]:
    """Find machines whose NICs are all on one socket, and GPUs that are far from a NIC.

    A GPU is far from a NIC in two cases. Either its NUMA node has no NIC, or no NIC is behind the same switch as this GPU
    although one NIC has no GPU behind its switch.
    """
    if not view.nics:
        return
    order = path_classes.NCCL_ORDER.index
    best = {g.pci: min((view.classes.nccl(g.pci, n.pci) for n in view.nics), key=order) for g in view.gpus}
    sides = {view.package(g.pci) for g in view.gpus} - {-1}
    nic_sides = {view.package(n.pci) for n in view.nics}
    gathered = len(nic_sides) == 1 and -1 not in nic_sides and len(sides) > 1
    away: list[str] = []
    for gpu in view.gpus:
        if gathered and view.package(gpu.pci) not in (nic_sides | {-1}):
            away.append(gpu.pci)
    if away:
        yield _one_socket(view, away, next(iter(nic_sides)))
    close = order("PXB")
    beside = {n.pci for n in view.nics if any(order(view.classes.nccl(g.pci, n.pci)) <= close for g in view.gpus)}
    paired = any(order(c) <= close for c in best.values())
    idle = [n for n in view.nics if n.pci not in beside and view.numa(n.pci) >= 0]
    for gpu in view.gpus:
        if gpu.pci in away or order(best[gpu.pci]) <= order("P2C") or view.numa(gpu.pci) < 0:
            continue  # topology.locality reports a GPU of unknown locality
        near = min(view.nics, key=lambda n: (order(view.classes.nccl(gpu.pci, n.pci)), nearest_nics.natural(n.name)))
        rate = _rate(view, gpu.pci, near)
        evidence = tuple(f"{n.name} {n.pci}: {view.classes.nccl(gpu.pci, n.pci)}" for n in view.nics)
        if best[gpu.pci] == "SYS":
            if any(view.numa(n.pci) < 0 for n in view.nics):
                continue
            yield finding(
                "nic_distance",
                gpu.pci,
                f"GPU {gpu.pci} has no NIC on its NUMA node: its network traffic crosses between NUMA nodes"
                f"{_crossing(view, rate)}; move a NIC beside it",
                *evidence,
            )
        elif paired and idle:
            yield finding(
                "nic_root",
                gpu.pci,
                f"GPU {gpu.pci} and its nearest NIC {near.name} are on different root ports: no GPUDirect RDMA, {rate:.1f} of "
                f"{rate:.1f} GB/s go through host memory; NIC {idle[0].name} is beside no GPU: move it to this GPU's switch",
                *evidence,
            )


def _one_socket(view: MachineView, away: list[str], socket: int) -> Finding:
    rate = sum(max((_rate(view, pci, n) for n in view.nics), default=0.0) for pci in away)
    total = sum(_own_rate(view, n) for n in view.nics)
    wanted = min(rate, total) if total else rate
    single = len(view.nics) == 1
    names = ", ".join(n.name for n in view.nics)
    advice = "the node has one NIC only" if single else "move half of the NICs to the other socket"
    return finding(
        "nics_one_socket",
        "",
        f"{'the only NIC is' if single else f'all {len(view.nics)} NICs are'} on socket {socket}; {len(away)} GPUs on another "
        f"reach the network across sockets{_crossing(view, wanted)}; {advice}",
        f"NICs {names}",
        f"GPUs {', '.join(away)}",
        action=Action.NONE if single else Action.CHECK_HARDWARE,
        level=Level.OK if single else Level.WARN,
    )


def _rate(view: MachineView, gpu: str, nic: Nic) -> float:
    """Return the GB/s that a GPU and a NIC can exchange, which the slowest of their links and the NIC's port limits, or 0 if
    unknown."""
    return min((x for x in (view.to_host(gpu), _own_rate(view, nic)) if x), default=0.0)


def _own_rate(view: MachineView, nic: Nic) -> float:
    limits = [view.to_host(nic.pci), 0.0 if isinstance(nic.rate_gbps, Missing) else nic.rate_gbps / 8]
    return min((x for x in limits if x), default=0.0)


def _crossing(view: MachineView, rate: float) -> str:
    """Return a text about how much of ``rate`` GB/s the path between sockets costs, by NCCL's figures for this processor."""
    if not rate:
        return ""
    if not view.sockets:
        return f", up to {rate:.1f} GB/s of it"
    if view.sockets >= rate:
        return f", 0.0 of {rate:.1f} GB/s lost while one GPU does it alone"
    return f", {lost(view.sockets, rate)}"
