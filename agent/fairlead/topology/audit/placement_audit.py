"""Places: GPUs that nobody can place, memory that is not where the GPU is, NICs on the wrong side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairlead.model.facts import Missing, Nic
from fairlead.model.finding import Action, Finding, Level
from fairlead.topology.audit.machine_view import MachineView, finding, lost
from fairlead.topology.distances import locality, nearest_nics, path_classes


def unknown_places(scene: MachineView) -> Iterable[Finding]:
    """A GPU whose NUMA node nobody knows, or which has no CPUs."""
    for gpu in scene.gpus:
        where = locality.of_pci(scene.node, gpu.pci)
        if not where.note:
            continue
        cost = _crossing(scene, scene.to_host(gpu.pci))
        advice = "" if where.cpus else f": tasks keep the CPUs that Slurm gave them{cost}; update the firmware, which must say it"
        level = Level.OK if where.cpus else Level.WARN
        yield finding("locality", gpu.pci, f"GPU {gpu.pci}: {where.note}{advice}", where.note, level=level)


def memory(scene: MachineView) -> Iterable[Finding]:
    """A GPU on a NUMA node without memory (NPS or SNC with unevenly filled memory channels)."""
    by_id = {n.id: n for n in scene.node.numa}
    for gpu in scene.gpus:
        own = by_id.get(scene.numa(gpu.pci))
        if own is None or isinstance(own.memory_bytes, Missing) or own.memory_bytes:
            continue
        rate = scene.to_host(gpu.pci)
        yield finding(
            "numa_memory",
            gpu.pci,
            f"GPU {gpu.pci} is on NUMA node {own.id}, which has no memory: all of its {rate:.1f} GB/s to the host cross to "
            "another node; fill this node's memory channels, or use fewer NUMA nodes a socket (NPS, SNC)",
            f"node{own.id}/meminfo: MemTotal 0",
        )


def uneven_nodes(scene: MachineView) -> Iterable[Finding]:
    """Sub-NUMA clustering that gives some NUMA nodes of a socket more GPUs than others that have some."""
    counts = Counter(scene.numa(gpu.pci) for gpu in scene.gpus)
    by_package: dict[int, dict[int, int]] = {}
    for gpu in scene.gpus:
        package, numa = scene.package(gpu.pci), scene.numa(gpu.pci)
        if package >= 0 and numa >= 0:
            by_package.setdefault(package, {})[numa] = counts[numa]
    for package, nodes in sorted(by_package.items()):
        if len(set(nodes.values())) < 2:
            continue
        most = max(nodes, key=lambda n: (nodes[n], -n))
        least = min(nodes, key=lambda n: (nodes[n], n))
        one = max((scene.to_host(g.pci) for g in scene.gpus if scene.numa(g.pci) == most), default=0.0)
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


def far_nics(scene: MachineView) -> Iterable[Finding]:
    """NICs all on one socket; a GPU without a NIC on its NUMA node, or beside none while one is beside no GPU."""
    if not scene.nics:
        return
    order = path_classes.NCCL_ORDER.index
    best = {g.pci: min((scene.classes.nccl(g.pci, n.pci) for n in scene.nics), key=order) for g in scene.gpus}
    sides = {scene.package(g.pci) for g in scene.gpus} - {-1}
    nic_sides = {scene.package(n.pci) for n in scene.nics}
    gathered = len(nic_sides) == 1 and -1 not in nic_sides and len(sides) > 1
    away: list[str] = []
    for gpu in scene.gpus:
        if gathered and scene.package(gpu.pci) not in (nic_sides | {-1}):
            away.append(gpu.pci)
    if away:
        yield _one_socket(scene, away, next(iter(nic_sides)))
    close = order("PXB")
    beside = {n.pci for n in scene.nics if any(order(scene.classes.nccl(g.pci, n.pci)) <= close for g in scene.gpus)}
    paired = any(order(c) <= close for c in best.values())
    idle = [n for n in scene.nics if n.pci not in beside]
    for gpu in scene.gpus:
        if gpu.pci in away or order(best[gpu.pci]) <= order("P2C"):
            continue
        near = min(scene.nics, key=lambda n: (order(scene.classes.nccl(gpu.pci, n.pci)), nearest_nics.natural(n.name)))
        rate = _rate(scene, gpu.pci, near)
        evidence = tuple(f"{n.name} {n.pci}: {scene.classes.nccl(gpu.pci, n.pci)}" for n in scene.nics)
        if best[gpu.pci] == "SYS":
            yield finding(
                "nic_distance",
                gpu.pci,
                f"GPU {gpu.pci} has no NIC on its NUMA node: its network traffic crosses between NUMA nodes"
                f"{_crossing(scene, rate)}; move a NIC beside it",
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


def _one_socket(scene: MachineView, away: list[str], socket: int) -> Finding:
    rate = sum(max((_rate(scene, pci, n) for n in scene.nics), default=0.0) for pci in away)
    total = sum(_own_rate(scene, n) for n in scene.nics)
    wanted = min(rate, total) if total else rate
    single = len(scene.nics) == 1
    names = ", ".join(n.name for n in scene.nics)
    advice = "the node has one NIC only" if single else "move half of the NICs to the other socket"
    return finding(
        "nics_one_socket",
        "",
        f"{'the only NIC is' if single else f'all {len(scene.nics)} NICs are'} on socket {socket}; {len(away)} GPUs on another "
        f"reach the network across sockets{_crossing(scene, wanted)}; {advice}",
        f"NICs {names}",
        f"GPUs {', '.join(away)}",
        action=Action.NONE if single else Action.CHECK_HARDWARE,
        level=Level.OK if single else Level.WARN,
    )


def _rate(scene: MachineView, gpu: str, nic: Nic) -> float:
    """GB/s that a GPU and a NIC could exchange: the narrower of their links, and the port's rate."""
    return min((x for x in (scene.to_host(gpu), _own_rate(scene, nic)) if x), default=0.0)


def _own_rate(scene: MachineView, nic: Nic) -> float:
    limits = [scene.to_host(nic.pci), 0.0 if isinstance(nic.rate_gbps, Missing) else nic.rate_gbps / 8]
    return min((x for x in limits if x), default=0.0)


def _crossing(scene: MachineView, rate: float) -> str:
    """What crossing between sockets costs of ``rate`` GB/s, by NCCL's numbers for this processor."""
    if not rate:
        return ""
    if not scene.sockets:
        return f", up to {rate:.1f} GB/s of it"
    if scene.sockets >= rate:
        return f", 0.0 of {rate:.1f} GB/s lost while one GPU does it alone"
    return f", {lost(scene.sockets, rate)}"
