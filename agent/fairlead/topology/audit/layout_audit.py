"""The layout audit: what in a machine's wiring costs bandwidth, with how much, and what to move.

WARN is something to put right; OK is a property of the board that a person should know of, such as GPUs that all share
their uplinks alike. Nothing here drains a node.
"""

from __future__ import annotations

from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.topology.audit import link_audit, peer_audit, placement_audit
from fairlead.topology.audit.machine_view import MachineView


def audit(node: Node) -> tuple[Finding, ...]:
    """Everything the layout audit finds: places, links, shared uplinks, NICs, peers."""
    scene = MachineView(node)
    return (
        *placement_audit.unknown_places(scene),
        *placement_audit.memory(scene),
        *placement_audit.uneven_nodes(scene),
        *link_audit.narrow(scene),
        *link_audit.slow(scene),
        *link_audit.chipset(scene),
        *link_audit.shared_uplinks(scene),
        *placement_audit.far_nics(scene),
        *peer_audit.redirects(scene),
        *peer_audit.nvlinks(scene),
    )
