"""Finds the rail of a guilty node or leaf, from the steps in which each rail of a slow pair was measured alone."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.measure.pairs.fabric_verdict import GuiltyPart, PairLimits, PartKind
from fairlead.measure.pairs.pair_table import Leaves, PairValue, figure_text, median
from fairlead.measure.pairs.rail_ends import RailEnds, rail_text

PARTNERS_MIN = 2


def with_rails(
    part: GuiltyPart, values: Sequence[PairValue], leaves: Leaves, limits: PairLimits, ends: RailEnds | None = None
) -> GuiltyPart:
    """Return the part with its guilty rails. A rail is guilty if it was slow in every pair, with two partners or more, and
    other rails were not. ends: what is known of the ends of rails."""
    own = [v for v in values if v.rail and v.measured and _of(part, v, leaves)]
    by_rail: dict[str, list[PairValue]] = {}
    for v in own:
        by_rail.setdefault(v.rail, []).append(v)
    if not by_rail:
        return part
    expected = limits.rail_reference_gbps or _faster_half([v for v in values if v.rail and v.measured])
    slow = sorted(k for k, each in by_rail.items() if all(v.speed < limits.warn * expected for v in each))
    pairs = len({v.pair for v in own})
    if not slow or len(slow) == len(by_rail):
        return replace(part, summary=f"{part.summary}; all {len(by_rail)} rails alike")
    known = {k: (ends or {}).get(part.name, {}).get(k, ()) for k in slow}
    figures = figure_text(median([v.speed for k in slow for v in by_rail[k]]))
    words = f"rail {', '.join(rail_text(k, known[k]) for k in slow)} {figures}"
    if pairs < PARTNERS_MIN:
        return replace(part, summary=f"{part.summary}; {words} in one pair, other rails {expected:.4g}")
    if part.kind is not PartKind.NODE:
        return replace(part, rails=tuple(slow), summary=f"{part.summary}; {words} in {pairs} pairs, other rails {expected:.4g}")
    words += f" with {pairs} of {pairs} partners, other rails {expected:.4g}"
    return replace(part, kind=PartKind.RAIL, rails=tuple(slow), ends=known, summary=words)


def _faster_half(values: Sequence[PairValue]) -> float:
    """Return the median of the faster half of the figures. Of two rails, half of the figures may be slow."""
    speeds = sorted(v.speed for v in values)
    return median(speeds[len(speeds) // 2 :])


def _of(part: GuiltyPart, v: PairValue, leaves: Leaves) -> bool:
    """Say whether a pair was measured for this part."""
    ends = {leaves.of[v.node_a], leaves.of[v.node_b]}
    match part.kind:
        case PartKind.NODE:
            return part.name in v.pair and len(ends) == 1
        case PartKind.LEAF:
            return ends == {part.name}
        case PartKind.UPLINK:
            return part.name in ends and len(ends) == 2
        case PartKind.LEAF_PAIR:
            return ends == {part.name, *part.others}
    return False
