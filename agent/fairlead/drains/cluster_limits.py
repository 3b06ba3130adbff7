"""Decides by the drain limits, which are rules over several nodes (``policy.drain_limits``), whether this node may be drained or
may stay drained.

``ClusterLimits`` remembers slurmctld's topology, which is read once, and since when a limit has delayed an order. Only one
thread may use it. Other threads may read only ``topology`` and ``crowd``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fairlead.errors import FairleadError
from fairlead.host import log
from fairlead.policy import drain_limits
from fairlead.policy.decision_rules import Rules
from fairlead.policy.drain_limits import DrainCause, DrainLimit, Group, LimitKind, ListedNode, NodeList
from fairlead.policy.ownership import Token
from fairlead.slurm.client import NodeState
from fairlead.slurm.node_groups import NodeGroup

RETRY_SECONDS, RETRY_MAX_SECONDS = 30.0, 3600.0
FORGET_SECONDS = 900.0  # an order that comes again after this time is a new order

CROWD_UNKNOWN = 100  # before the first list of nodes and without a topology

Topology = Callable[[], tuple[NodeGroup, ...]]


class ClusterLimits:
    """Holds the input of the drain limits. ``topology``: one line on the topology for the status. ``due``: when to read the
    topology next (CLOCK_MONOTONIC seconds), or inf for never.

    read_topology: asks slurmctld for its topology (one RPC). If it is None, there are no limits per switch or block.
    """

    def __init__(
        self, rules: Rules, read_topology: Topology | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules = rules
        self.topology = "unknown: not asked yet" if read_topology else "not asked: no limits per switch or block"
        self.due = clock() if read_topology else float("inf")
        self._read_topology = read_topology
        self._clock = clock
        self._failures = 0
        self._groups: tuple[Group, ...] = ()
        # by check and job of an order: when the order was first delayed, and when it was last delayed
        self._waiting: dict[tuple[str, int | None], tuple[float, float]] = {}
        self._certain = ""  # the token of a drain whose device is certainly gone
        self.crowd = CROWD_UNKNOWN  # how many agents may have a drained node and ask slurmctld about it, as this agent does
        self._contested = ""  # the token of a drain that has waited for other nodes to undo their drains
        self._behind = 0.0  # by how many seconds this node's clock is behind slurmctld's, as far as a drain has shown

    def refresh(self) -> None:
        """Read the topology (one RPC). If it cannot be read, there are no limits per switch or block. The log and the status then
        report that, and a later call tries again."""
        if self._read_topology is None:
            return
        try:
            self._groups = tuple(Group(LimitKind(g.kind), g.name, g.nodes) for g in self._read_topology())
        except FairleadError as e:
            self.topology = f"unknown: {e}"
            self.due = self._clock() + min(RETRY_MAX_SECONDS, RETRY_SECONDS * 2.0**self._failures)
            self._failures = min(self._failures + 1, 10)
            log.line(log.NOTICE, "topology unknown: no limits per switch or block", error=e)
            return
        self._failures = 0
        self.crowd = max(self.crowd, len({name for group in self._groups for name in group.nodes}) // 10)
        self.due = float("inf")
        kinds = ", ".join(
            f"{sum(g.kind is kind for g in self._groups)} {kind.value}" for kind in (LimitKind.SWITCH, LimitKind.BLOCK)
        )
        self.topology = kinds if self._groups else "none: slurmctld knows no switch and no block"

    def take_over(self, before: ClusterLimits) -> None:
        """Copy from ``before`` since when orders have been delayed. This is called after the document was loaded again."""
        self._waiting, self._certain, self._contested = before._waiting, before._certain, before._contested
        self.crowd, self._behind = before.crowd, before._behind

    def why_no_room(self, me: str, token: Token, listed: Sequence[NodeState], *, certain: bool = False) -> DrainLimit | None:
        """Return the limit that forbids to drain this node now, or None when it may be drained."""
        self._certain = token.token if certain else ""
        fault = self._fault(token)
        hold = drain_limits.room(self._poll(me, listed), fault, self.rules, time.time() + self._behind)
        self._note(fault, hold)
        return hold

    def why_not_keep(self, me: str, token: Token, listed: Sequence[NodeState]) -> DrainLimit | None:
        """Return the limit because of which fairlead's drain may not stay, or None if the drain may stay."""
        fault = self._fault(token)
        waited = self._contested == token.token
        seen = self._poll(me, listed)
        behind = seen.mine.time - time.time() if seen.mine else 0.0
        self._behind = behind if behind > 1.0 else 0.0  # reason times are whole seconds
        hold = drain_limits.overshoot(seen, fault, self.rules, waited=waited)
        self._contested = token.token if hold is not None and hold.wait else ""
        self._note(fault, hold)
        if hold is None:
            self._waiting.pop((fault.check, fault.job), None)
        return hold

    def _fault(self, token: Token) -> DrainCause:
        job = drain_limits.job_of(token.summary)
        first, last = self._waiting.get((token.check, job), (0.0, 0.0))
        now = self._clock()
        waited = now - first if last and now - last < FORGET_SECONDS else 0.0
        return DrainCause(check=token.check, job=job, certain=token.token == self._certain, waited=waited)

    def _note(self, fault: DrainCause, hold: DrainLimit | None) -> None:
        """Remember since when the common cause or a suspect job has delayed this order."""
        now = self._clock()
        self._waiting = {order: times for order, times in self._waiting.items() if now - times[1] < FORGET_SECONDS}
        if fault.waited or (hold is not None and hold.kind.suspicion):
            self._waiting[fault.check, fault.job] = (now - fault.waited, now)

    def _poll(self, me: str, listed: Sequence[NodeState]) -> NodeList:
        # at least a tenth of the nodes, because more nodes may be drained until all nodes are listed again
        self.crowd = max(sum(n.drained for n in listed), len(listed) // 10)
        return NodeList(me=me, nodes=tuple(_seen(n) for n in listed), groups=self._groups)


def _seen(n: NodeState) -> ListedNode:
    time = float(n.reason_time)
    return ListedNode(name=n.name, available=n.available, drained=n.drained, reason=n.reason, time=time, partitions=n.partitions)
