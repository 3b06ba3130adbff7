"""Defines the table of pairs: which two nodes were measured together in which round, and with which figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

Pair = tuple[str, str]  # two nodes, the smaller name first


class Stage(StrEnum):
    """Names what the rounds of a run are for.

    LEAF: pairs of nodes of one leaf. CONFIRM: suspects with partners that are known to be good, and no other traffic. ACROSS:
    pairs of nodes of two leaves, where each leaf has several partner leaves. CROWDED: all nodes of a leaf with the nodes of one
    other leaf at once. RAIL: one step for each rail of a pair that was too slow.
    """

    LEAF = "leaf"
    CONFIRM = "confirm"
    ACROSS = "across"
    CROWDED = "crowded"
    RAIL = "rail"


class PairValue(Struct, frozen=True, kw_only=True):
    """Holds one measurement of a pair. rail: the rail that was measured alone, or "" for all rails together. gbps: the bandwidth
    in 10^9 byte/s, or None without a figure. failed: the measurement was made and failed. Without ``gbps`` and ``failed`` nothing
    was measured, and the row says nothing about its nodes. stage: None if a recorded table does not say it."""

    round: int
    node_a: str
    node_b: str
    rail: str = ""
    gbps: float | None = None
    failed: bool = False
    stage: Stage | None = None
    why: str = ""

    @property
    def pair(self) -> Pair:
        return pair_of(self.node_a, self.node_b)

    @property
    def measured(self) -> bool:
        return self.failed or self.gbps is not None

    @property
    def speed(self) -> float:
        """Return the bandwidth. A failed measurement counts as 0."""
        return self.gbps or 0.0

    def partner(self, node: str) -> str:
        return self.node_b if node == self.node_a else self.node_a


def pair_of(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)


class LeafSource(StrEnum):
    """Names where the leaf of each node comes from. With UNKNOWN, all nodes count as one group."""

    DECLARED = "declared"
    DISCOVERED = "discovered"
    UNKNOWN = "unknown"


NO_TOPOLOGY = "no topology: a bad uplink would look like bad nodes"


class Leaves(Struct, frozen=True, kw_only=True):
    """Says on which leaf each node is. On a rail-optimised fabric a leaf is the group of nodes that are connected to the same
    leaf switches. detail: the file or command that the leaves come from."""

    source: LeafSource
    of: Mapping[str, str]
    detail: str = ""

    def nodes(self) -> dict[str, list[str]]:
        """Return the nodes by leaf."""
        found: dict[str, list[str]] = {}
        for node, leaf in self.of.items():
            found.setdefault(leaf, []).append(node)
        return found

    def inside(self, value: PairValue) -> bool:
        """Say whether both nodes of a pair are on the same leaf."""
        return self.of[value.node_a] == self.of[value.node_b]


def unknown_leaves(nodes: Iterable[str]) -> Leaves:
    """Return the leaves of a fabric whose topology nobody knows: one group with all nodes."""
    return Leaves(source=LeafSource.UNKNOWN, of=dict.fromkeys(nodes, ""))


def whole(values: Iterable[PairValue]) -> list[PairValue]:
    """Return the measurements of pairs with all rails together."""
    return [v for v in values if v.measured and not v.rail]


def median(values: Sequence[float]) -> float:
    """Return the median, or 0 without values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def expected_speed(pairs: Sequence[PairValue], leaves: Leaves) -> float:
    """Return the median of the best figures of the nodes, or 0. Pairs across leaves count only if there are no pairs inside."""
    best: dict[str, float] = {}
    for v in [v for v in pairs if leaves.inside(v)] or pairs:
        for node in v.pair:
            best[node] = max(best.get(node, 0.0), v.speed)
    return median([speed for speed in best.values() if speed])


def figure_text(gbps: float) -> str:
    """Return a bandwidth as text. 0 is the bandwidth of a pair whose measurement failed."""
    return f"{gbps:.4g} GB/s" if gbps else "failed"
