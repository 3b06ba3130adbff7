"""Defines the result of judging a table of pairs: the outcome of each node, and the guilty parts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from fairlead.errors import UsageError
from fairlead.measure.pairs.rail_ends import RailEnd
from fairlead.measure.tool import MeasuredOutcome, worst


class PartKind(StrEnum):
    """Names the kind of a guilty part.

    NODE: the node with all its rails. RAIL: one rail of a node, which is the NIC, the cable or the leaf's port. LEAF: a leaf
    switch. UPLINK: what connects a leaf with the others. LEAF_PAIR: the way between two leaves. WAY: the way of one node to other
    leaves. SCALE: only the load of all nodes at once, or the fabric as a whole. GONE: a node that went down in the run.
    """

    NODE = "node"
    RAIL = "rail"
    LEAF = "leaf"
    UPLINK = "uplink"
    LEAF_PAIR = "leaf pair"
    WAY = "way"
    SCALE = "scale"
    GONE = "gone"


class PairLimits(Struct, frozen=True, kw_only=True):
    """Holds the limits. A figure below ``fail`` or ``warn`` times the expected bandwidth fails or warns. reference_gbps: the
    expected bandwidth of a pair, or None to expect the median of the nodes. rail_reference_gbps: the same for one rail."""

    fail: float = 0.85
    warn: float = 0.93
    reference_gbps: float | None = None
    rail_reference_gbps: float | None = None

    def check(self) -> None:
        """Raise UsageError unless 0 < fail <= warn <= 1."""
        if not 0 < self.fail <= self.warn <= 1:
            raise UsageError(f"limits {self.fail:g} and {self.warn:g}: must be 0 < FAIL <= WARN <= 1")


class GuiltyPart(Struct, frozen=True, kw_only=True):
    """Describes one guilty part. name: the node or the leaf. others: the second leaf of a pair of leaves. rails: the guilty
    rails, or () if all rails are alike or were not measured alone. ends: what is known of both ends of each of them."""

    kind: PartKind
    name: str
    outcome: MeasuredOutcome
    summary: str
    others: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    ends: Mapping[str, tuple[RailEnd, ...]] = {}


class JudgedPairNode(Struct, frozen=True, kw_only=True):
    """Holds the outcome of one node. best_gbps: the best figure of its pairs, or None without a figure. partners: how many
    different nodes it was measured with."""

    outcome: MeasuredOutcome
    why: str = ""
    best_gbps: float | None = None
    partners: int = 0


class FabricVerdict(Struct, frozen=True, kw_only=True):
    """Holds a judged table. expected_gbps: the bandwidth that is expected of a pair, from the reference or the median of the
    nodes. good: the nodes that were fast with somebody. spoiled: the rounds whose slow figures were left out, because a node went
    down then."""

    nodes: Mapping[str, JudgedPairNode]
    parts: tuple[GuiltyPart, ...]
    expected_gbps: float
    good: frozenset[str] = frozenset()
    spoiled: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> MeasuredOutcome:
        return worst((*(n.outcome for n in self.nodes.values()), *(f.outcome for f in self.parts)))

    def named(self, kind: PartKind) -> tuple[str, ...]:
        """Return the names of the guilty parts of one kind."""
        return tuple(f.name for f in self.parts if f.kind is kind)
