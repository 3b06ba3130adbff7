"""Names both ends of a rail: the HCA of the node, and the switch and port to which it is connected.

``$RAIL`` chooses a GPU by its number, and CUDA numbers equal GPUs by their PCI addresses. So rail k is the way of the HCAs that
are nearest to GPU k by PCI address. A recorded table may also name a rail by its HCA or its interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.measure.pairs.pair_table import PairValue


class NodeRails(Struct, frozen=True, kw_only=True):
    """Holds what a node says about its rails. hcas: the nearest HCAs of each GPU, separated by commas, or "", in the order of the
    GPUs' PCI addresses. interfaces: the network interface by HCA. cables: the serial number of the cable by HCA and port, such as
    ``mlx5_0/1``."""

    hcas: tuple[str, ...] = ()
    interfaces: Mapping[str, str] = {}
    cables: Mapping[str, str] = {}


class RailEnd(Struct, frozen=True, kw_only=True):
    """Describes one way of a rail. hca: the node's end. switch_port: the other end, such as ``leaf1 port 4``. Each is "" if it is
    not known."""

    hca: str = ""
    switch_port: str = ""
    cable: str = ""


RailEnds = Mapping[str, Mapping[str, tuple[RailEnd, ...]]]  # by node and rail


def rail_ends(
    values: Iterable[PairValue], rails: Mapping[str, NodeRails], switch_ports: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, tuple[RailEnd, ...]]]:
    """Return the ends of each rail that was measured alone. switch_ports: by node, and by HCA or interface."""
    found: dict[str, dict[str, tuple[RailEnd, ...]]] = {}
    for v in values:
        for node in v.pair if v.rail else ():
            ends = _ends(v.rail, rails.get(node, NodeRails()), switch_ports.get(node, {}))
            found.setdefault(node, {})[v.rail] = ends
    return found


def _ends(rail: str, own: NodeRails, switch_ports: Mapping[str, str]) -> tuple[RailEnd, ...]:
    numbered = rail.isdecimal()
    hcas = own.hcas[int(rail)] if numbered and int(rail) < len(own.hcas) else "" if numbered else rail
    found = []
    for hca in filter(None, hcas.split(",")):
        port = switch_ports.get(hca) or switch_ports.get(own.interfaces.get(hca, ""), "")
        cable = next((serial for name, serial in sorted(own.cables.items()) if name.partition("/")[0] == hca), "")
        if numbered or port or cable:
            found.append(RailEnd(hca=hca, switch_port=port, cable=cable))
    return tuple(found)


def rail_text(rail: str, ends: Sequence[RailEnd]) -> str:
    """Return a rail with its ends, such as ``3 (mlx5_3, leaf1 port 4, cable MT2301)``."""
    known = [[end.hca, end.switch_port, f"cable {end.cable}" if end.cable else ""] for end in ends]
    words = "; ".join(", ".join(filter(None, each)) for each in known)
    return f"{rail} ({words})" if words else rail
