"""Finds the NICs that are nearest to a GPU: the RDMA devices with the best path type in NCCL's sense."""

from __future__ import annotations

from fairlead.model.facts import Nic, Node
from fairlead.topology.distances import path_classes

# HPE Slingshot (Cassini) does RDMA with libfabric, and has no device below /sys/class/infiniband. https://pci-ids.ucw.cz
FABRIC_WITHOUT_VERBS = frozenset({(0x17DB, 0x0501), (0x17DB, 0x0502)})


def candidates(node: Node) -> tuple[Nic, ...]:
    """Return the RDMA devices on PCI in the order of their names, each device once and without virtual functions."""
    seen: dict[str, Nic] = {}
    others = {d.address for d in node.pci if (d.vendor, d.device) in FABRIC_WITHOUT_VERBS}
    for nic in node.nics:
        if (nic.rdma or nic.pci in others) and nic.pci and not nic.virtual_function:
            seen.setdefault(nic.name, nic)
    return tuple(sorted(seen.values(), key=lambda n: natural(n.name)))


def functions(node: Node) -> tuple[Nic, ...]:
    """Return one RDMA device of ``candidates`` for each PCI function, because paths are between PCI functions."""
    seen: dict[str, Nic] = {}
    for nic in candidates(node):
        seen.setdefault(nic.pci, nic)
    return tuple(seen.values())


def natural(name: str) -> tuple[str, int, str]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    digits = name[len(name.rstrip("0123456789")) :]
    return (name.removesuffix(digits), int(digits) if digits else -1, name)


def nearest(node: Node, pci: str) -> tuple[tuple[Nic, ...], str]:
    """Return the NICs with the best NCCL path type to this GPU, and that type.

    Return ((), "DIS") if the node has no NIC, or if the path to every NIC crosses the link between sockets (SYS).
    """
    ranked = [(path_classes.NCCL_ORDER.index(path_classes.nccl(node, pci, nic.pci)), nic) for nic in candidates(node)]
    best = min((rank for rank, _ in ranked), default=path_classes.NCCL_ORDER.index("DIS"))
    if best >= path_classes.NCCL_ORDER.index("SYS"):
        return (), "DIS"
    return tuple(nic for rank, nic in ranked if rank == best), path_classes.NCCL_ORDER[best]
