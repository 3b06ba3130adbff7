"""The drain budget: how many nodes of a partition may be unavailable before fairlead stops draining more.

Agents decide alone and at the same time, so the budget is kept in two steps: look before draining (``room``), and look
again after it (``over``): agents ranked past the budget by (time, name) undo their own drain. All see the same list, so
all agree on who goes; until they have, the budget is overshot (DESIGN 3: at most 5 s).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.policy.rules import Rules


class Unavailable(Struct, frozen=True, order=True):
    """A node out of service. ``time``: reason time in slurmctld, whole seconds. ``ours``: drained by a fairlead agent."""

    time: float
    name: str
    ours: bool = True


class Partition(Struct, frozen=True, kw_only=True):
    """A partition as slurmctld lists it now. Drains by ``fairlead maintain`` are left out by the caller."""

    name: str
    total: int
    unavailable: tuple[Unavailable, ...] = ()


def allowed(rules: Rules, total: int) -> int:
    """How many of ``total`` nodes may be unavailable: the stricter limit, but at least one node (0 for no nodes)."""
    if total <= 0:
        return 0
    limit = total * rules.budget_percent // 100
    if rules.budget_nodes:
        limit = min(limit, rules.budget_nodes)
    return min(total, max(1, limit))


def over(my_name: str, my_time: float, drained: Iterable[tuple[float, str]], allowed: int, others: int = 0) -> bool:
    """Is my drain past the budget? ``drained``: (time, name) of all nodes that fairlead drained, mine among them or not.

    ``others``: nodes unavailable for other reasons; they stay, so they use the budget first.
    """
    ahead = sum(1 for time, name in set(drained) if name != my_name and (time, name) < (my_time, my_name))
    return ahead >= allowed - others


def room(my_name: str, partitions: Sequence[Partition], rules: Rules) -> str:
    """Before draining: "" when every partition of this node has room for one more, else the name of one that has not."""
    for partition in partitions:
        gone = {u.name for u in partition.unavailable} - {my_name}
        if len(gone) >= allowed(rules, partition.total):
            return partition.name
    return ""


def overshoot(my_name: str, my_time: float, partitions: Sequence[Partition], rules: Rules) -> str:
    """After draining: "" when this drain may stand, else the partition in which it is past the budget."""
    for partition in partitions:
        ours = {(u.time, u.name) for u in partition.unavailable if u.ours}
        others = {u.name for u in partition.unavailable if not u.ours} - {my_name}
        if over(my_name, my_time, ours, allowed(rules, partition.total), len(others)):
            return partition.name
    return ""
