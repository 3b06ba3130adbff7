"""Finds the figures that a node spoiled by going down in the run.

A node that dies takes the measurement of its partner with it, and what it disturbs makes other pairs slow, too. So a slow figure
accuses nobody if a node of its pair went down in the run, or if it is from a round in which a node may have gone down. A fast
figure still shows that both of its nodes are good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_table import Leaves, PairValue, expected_speed, whole


class SpoiledFigures(Struct, frozen=True, kw_only=True):
    """Holds the table without its spoiled figures. kept: the other rows. left_out: the spoiled figures. rounds: the rounds with a
    spoiled figure of two nodes that did not go down, and the nodes that went down then."""

    kept: tuple[PairValue, ...]
    left_out: tuple[PairValue, ...]
    rounds: Mapping[int, tuple[str, ...]]


def without_spoiled(
    values: Sequence[PairValue], leaves: Leaves, limits: PairLimits, gone: Mapping[str, str] | None
) -> SpoiledFigures:
    """Return the table without the slow figures that a node may have spoiled by going down. gone: the nodes that went down. Each
    figure of a single rail counts as slow, because it can be told only beside the other rails."""
    lost = frozenset(gone or {})
    dying = _dying(values, lost)
    kept, left_out = list(values), []
    while lost:  # without its spoiled figures, the table expects more
        slow = limits.warn * (limits.reference_gbps or expected_speed(whole(kept), leaves))
        doubtful = [v for v in kept if v.measured and (v.round in dying or set(v.pair) & lost)]
        spoiled = {v for v in doubtful if v.rail or v.speed < slow}
        if not spoiled:
            break
        left_out += [v for v in kept if v in spoiled]
        kept = [v for v in kept if v not in spoiled]
    rounds = {v.round: dying[v.round] for v in left_out if v.round in dying and not set(v.pair) & lost}
    return SpoiledFigures(kept=tuple(kept), left_out=tuple(left_out), rounds=dict(sorted(rounds.items())))


def _dying(values: Sequence[PairValue], gone: Set[str]) -> dict[int, tuple[str, ...]]:
    """Return the rounds in which each node may have gone down: from its last figure to the last round in which it gave none, or
    to the end if it had no pair any more. A measurement that failed is no figure, because the node may have failed it while it
    went down."""
    found: dict[int, tuple[str, ...]] = {}
    end = max((v.round for v in values), default=0)
    for node in sorted(gone):
        own = [v for v in values if node in v.pair]
        last = max((v.round for v in own if v.gbps is not None), default=0)
        noticed = max((v.round for v in own if v.gbps is None), default=end)
        for round_ in range(max(last, 1), max(last, noticed) + 1):
            found[round_] = (*found.get(round_, ()), node)
    return found
