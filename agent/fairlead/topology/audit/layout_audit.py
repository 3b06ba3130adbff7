"""Audits the layout of a machine: what in its wiring costs bandwidth, how much, and what to move.

WARN is something to correct. OK is a property of the machine that a person should know, such as GPUs that all share their
uplinks alike. Nothing here drains a node.
"""

from __future__ import annotations

from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.topology.audit import gpu_audit, link_audit, peer_audit, placement_audit
from fairlead.topology.audit.machine_view import MachineView


def audit(node: Node) -> tuple[Finding, ...]:
    """Return the findings of the layout audit: about lost GPUs, locality, links, shared uplinks, NICs and peer-to-peer paths."""
    view = MachineView(node)
    return (
        *gpu_audit.unseen(view),
        *placement_audit.unknown_locality(view),
        *placement_audit.memory(view),
        *placement_audit.uneven_nodes(view),
        *link_audit.narrow(view),
        *link_audit.slow(view),
        *link_audit.chipset(view),
        *link_audit.shared_uplinks(view),
        *placement_audit.far_nics(view),
        *peer_audit.redirects(view),
        *peer_audit.nvlinks(view),
    )
