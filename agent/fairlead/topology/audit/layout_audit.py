"""Audits the layout of a machine: finds wiring that costs bandwidth, with the bandwidth that is lost and the card to move.

A finding with WARN should be corrected. A finding with OK is a property of the machine that a person should know, for example
that all GPUs share their uplinks equally. No finding of the audit drains a node.
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
