"""Computes drain budgets: how many nodes of a partition, switch or block may be unavailable at once.

``policy.drain_limits`` decides which nodes count, and which node has to undo its drain.
"""

from __future__ import annotations


def allowed(percent: int, nodes: int, total: int) -> int:
    """Return how many of ``total`` nodes may be unavailable. This is the smaller of ``percent`` of them and ``nodes`` (0: no such
    limit), but at least one. Return 0 if ``total`` is 0."""
    if total <= 0:
        return 0
    limit = total * percent // 100
    if nodes:
        limit = min(limit, nodes)
    return min(total, max(1, limit))


def seats(allowed: int, others: int) -> int:
    """Return how many nodes fairlead may drain within the budget. ``allowed`` nodes may be unavailable, and ``others`` nodes
    already are for reasons other than fairlead's drains. fairlead cannot resume those, so they are subtracted first."""
    return max(0, allowed - others)
