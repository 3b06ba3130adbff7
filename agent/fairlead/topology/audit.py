"""The layout audit: what in a machine's wiring costs bandwidth, with how much, and what to move.

WARN is something to put right; OK is a property of the board that a person should know of, such as GPUs that all share
their uplinks alike. Nothing here drains a node.
"""

from __future__ import annotations

from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.topology import audit_links, audit_peers, audit_places
from fairlead.topology.scene import Scene


def audit(node: Node) -> tuple[Finding, ...]:
    """Everything the layout audit finds: places, links, shared uplinks, NICs, peers."""
    scene = Scene(node)
    return (
        *audit_places.unknown_places(scene),
        *audit_places.memory(scene),
        *audit_places.uneven_nodes(scene),
        *audit_links.narrow(scene),
        *audit_links.slow(scene),
        *audit_links.chipset(scene),
        *audit_links.shared_uplinks(scene),
        *audit_places.far_nics(scene),
        *audit_peers.redirects(scene),
        *audit_peers.nvlinks(scene),
    )
