"""Computes drain budgets: how many nodes of a partition, switch or block may be unavailable at once.

``policy.drain_limits`` says which nodes count and which node has to undo its drain.
"""

from __future__ import annotations


def allowed(percent: int, nodes: int, total: int) -> int:
    """Return how many of ``total`` nodes may be unavailable: the smaller of ``percent`` of them and ``nodes`` (0: no such
    limit), but at least one. Returns 0 where there are no nodes."""
    if total <= 0:
        return 0
    limit = total * percent // 100
    if nodes:
        limit = min(limit, nodes)
    return min(total, max(1, limit))


def seats(allowed: int, others: int) -> int:
    """Return how many drains of fairlead's the budget still has room for. Nodes that are unavailable for ``others`` reasons
    count first, because fairlead cannot give them back."""
    return max(0, allowed - others)
