"""The arithmetic of a drain budget: how many nodes of a partition, switch or block may be unavailable at once.

Who counts and who goes is in ``policy.drain_limits``.
"""

from __future__ import annotations


def allowed(percent: int, nodes: int, total: int) -> int:
    """How many of ``total`` nodes may be unavailable: the stricter of ``percent`` and ``nodes`` (0: no such limit), but
    at least one node (0 for no nodes)."""
    if total <= 0:
        return 0
    limit = total * percent // 100
    if nodes:
        limit = min(limit, nodes)
    return min(total, max(1, limit))


def seats(allowed: int, others: int) -> int:
    """How much of the budget is left for fairlead's drains: nodes unavailable for ``others`` reasons stay, so they come first."""
    return max(0, allowed - others)
