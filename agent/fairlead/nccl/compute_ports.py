"""Compares the compute ports of the nodes of a class: their number, rate, MTU, and which rail is beside which GPU.

The names of ports may differ between nodes, because each node has its own /etc/nccl.conf. Their order may not differ: NCCL
numbers ports in the order of their PCI addresses and connects ports with equal numbers (NCCL 2.30.7 src/transport/net_ib). So
rail N must be the same network on all nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.model.facts import Missing, Nic, Node
from fairlead.nccl.hca import choose, gpu_paths
from fairlead.nccl.route import Route, parse_routes


class Port(Struct, frozen=True, kw_only=True):
    """Describes one compute port, up or not. rate_gbps, mtu_bytes: 0 if the value is not known.

    gpus: the GPUs below the same PCIe switch, each by its number in the order of PCI addresses. network: for RoCE, the network
    that the port's interface is connected to, or "" if it has no route.
    """

    name: str
    up: bool
    link_layer: str
    rate_gbps: float
    mtu_bytes: int
    gpus: tuple[int, ...] = ()
    network: str = ""


class PortDifference(Struct, frozen=True, kw_only=True):
    """Names the nodes that differ from most of their class: these nodes have ``said``, and the ``others`` have ``usual``."""

    nodes: tuple[str, ...]
    aspect: str
    said: str
    usual: str
    others: int


def ports(node: Node, *, exclude: tuple[str, ...] = (), routes: str = "") -> tuple[Port, ...]:
    """Return the node's compute ports in NCCL's order."""
    choice = choose(node.nics, node.pci, expected=None, exclude=exclude)
    down = set(choice.down)
    several = Counter(n.name for n in node.nics if n.rdma)
    waiting = [n for n in node.nics if n.rdma and (n.name in down or f"{n.name}:{n.port}" in down)]
    paths = {d.address: d.path for d in node.pci}
    gpus = sorted(gpu_paths(node.pci), key=lambda path: path[-1])
    networks = {r.interface: _text(r) for r in parse_routes(routes) if not r.gateway and r.mask}
    found = []
    for nic in sorted([*choice.ports, *waiting], key=lambda n: (n.pci, n.port)):
        path = paths.get(nic.pci, ())
        found.append(
            Port(
                name=f"{nic.name}:{nic.port}" if several[nic.name] > 1 else nic.name,
                up=nic in choice.ports,
                link_layer=nic.link_layer,
                rate_gbps=_known(nic.rate_gbps),
                mtu_bytes=int(_known(nic.mtu_bytes)),
                gpus=tuple(i for i, g in enumerate(gpus) if len(path) > 2 and len(g) > 2 and g[:2] == path[:2]),
                network=_network(nic, networks),
            )
        )
    return tuple(found)


def _known(value: float | Missing) -> float:
    return 0 if isinstance(value, Missing) else value


def _network(nic: Nic, networks: Mapping[str, str]) -> str:
    return next((networks[i] for i in nic.interfaces if i in networks), "") if nic.link_layer == "Ethernet" else ""


def _text(route: Route) -> str:
    dots = ".".join(str(route.destination >> shift & 255) for shift in (24, 16, 8, 0))
    return f"{dots}/{route.mask.bit_count()}"


def compare(nodes: Mapping[str, Sequence[Port]]) -> tuple[PortDifference, ...]:
    """Return the differences by aspect. A node with another number of ports is not compared further."""
    found: list[PortDifference] = []
    rest = dict(nodes)
    for aspect, value_of in (("ports", _count), ("rate", _rates), ("MTU", _mtus), ("rails", _rails)):
        values = {name: value_of(some) for name, some in rest.items()}
        if not values:
            break
        counts = Counter(values.values())
        usual = min(counts, key=lambda v: (-counts[v], min(n for n in values if values[n] == v)))
        for value in dict.fromkeys(values.values()):
            if value != usual:
                unlike = tuple(n for n in values if values[n] == value)
                found.append(_difference(aspect, unlike, value, usual, counts[usual]))
                if aspect == "ports":
                    rest = {n: p for n, p in rest.items() if n not in unlike}
    return tuple(found)


def _difference(
    aspect: str, nodes: tuple[str, ...], value: tuple[str, ...], usual: tuple[str, ...], others: int
) -> PortDifference:
    if aspect == "ports":
        return PortDifference(nodes=nodes, aspect=aspect, said=value[0], usual=usual[0], others=others)
    at = [i for i, (a, b) in enumerate(zip(value, usual, strict=True)) if a != b]  # both have the same number of ports
    said = ", ".join(f"{value[i]} on rail {i}" for i in at)
    wanted = tuple(dict.fromkeys(usual[i] for i in at))
    return PortDifference(nodes=nodes, aspect=aspect, said=said, usual=", ".join(wanted), others=others)


def _count(some: Sequence[Port]) -> tuple[str, ...]:
    """Return how many ports are up, and which ports are down."""
    layers = Counter(p.link_layer for p in some if p.up)
    up = " and ".join(f"{n} {layer}" for layer, n in sorted(layers.items())) or "none"
    return (", ".join([f"{up} up", *(f"{p.name} down" for p in some if not p.up)]),)


def _rates(some: Sequence[Port]) -> tuple[str, ...]:
    return tuple(f"{p.rate_gbps:g} Gb/s" if p.rate_gbps else "unknown" for p in some if p.up)


def _mtus(some: Sequence[Port]) -> tuple[str, ...]:
    return tuple(str(p.mtu_bytes) if p.mtu_bytes else "unknown" for p in some if p.up)


def _rails(some: Sequence[Port]) -> tuple[str, ...]:
    """Return for each rail that is up the GPUs beside it, and its network."""
    said = []
    for port in some:
        if port.up:
            beside = f"beside GPU {','.join(map(str, port.gpus))}" if port.gpus else "beside no GPU"
            said.append(f"{beside} on {port.network}" if port.network else beside)
    return tuple(said)
