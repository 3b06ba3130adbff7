"""Judges the pairs of nodes of two leaves. Their nodes are known to be good, so a slow pair shows a slow way.

All pairs of a round run at once. So a passing disturbance, such as another job, makes many pairs of one round slow. A part is
named only if half of its pairs or more were slow in every round that has enough of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.measure.pairs.fabric_verdict import GuiltyPart, PairLimits, PartKind
from fairlead.measure.pairs.pair_table import Leaves, PairValue, Stage, figure_text, median
from fairlead.measure.tool import MeasuredOutcome

LOW_MIN = 3  # the fewest slow pairs that name anything, because a pair may be slow by a passing disturbance
ALL_LOW = 0.9  # above this fraction of slow pairs, the fabric between the leaves is slow as a whole
FAST_MIN = 3  # the fewest fast pairs of other leaves that show that only this leaf's uplink is slow
LEAVES_MIN = 3  # with fewer leaves, an uplink cannot be told from the uplink of the other leaf

Low = Callable[[PairValue], bool]
Lasting = Callable[[Sequence[PairValue]], bool]


def judge_across(values: Sequence[PairValue], leaves: Leaves, expected: float, limits: PairLimits) -> list[GuiltyPart]:
    """Return the guilty parts between leaves. A guilty part between leaves never fails, because no node is at fault."""

    def low(v: PairValue) -> bool:
        return v.speed < limits.warn * expected

    def lasting(own: Sequence[PairValue]) -> bool:
        by_round: dict[int, list[PairValue]] = {}
        for v in own:
            by_round.setdefault(v.round, []).append(v)
        return all(2 * sum(map(low, each)) >= len(each) for each in by_round.values() if len(each) >= LOW_MIN)

    across = [v for v in values if not leaves.inside(v)]
    spread = [v for v in across if v.stage is not Stage.CROWDED]
    crowded = [v for v in across if v.stage is Stage.CROWDED]
    count = len({leaf for v in across for leaf in _ends(v, leaves)})
    slow = [v for v in spread if low(v)]
    if count >= LEAVES_MIN and len(slow) > ALL_LOW * len(spread) and lasting(across):
        words = _figures(slow, len(spread), expected)
        return [
            _part(
                PartKind.SCALE, "", f"pairs of all leaves are slow across leaves, {words}: uplinks, oversubscription or routing"
            )
        ]
    inside = median([v.speed for v in values if leaves.inside(v)])
    found: list[GuiltyPart] = []
    if count >= LEAVES_MIN:
        found, alone = _uplinks(across, leaves, low, lasting, expected=expected, inside=inside)
        if not alone and not found:
            words = f"{_figures(slow, len(spread), expected)}, and too few of the others were fast to say which part is slow"
            return [_part(PartKind.SCALE, "", f"pairs across leaves are slow, {words}")]
    named = {f.name for f in found}
    rest = [v for v in across if not named & _ends(v, leaves)]
    crowd = [v for v in crowded if not named & _ends(v, leaves)]
    calm = [v for v in rest if v.stage is not Stage.CROWDED]
    slow = [v for v in crowd if low(v)]
    if len(slow) >= LOW_MIN and lasting(crowd) and _most(crowd, low) and calm and not _most(calm, low) and count >= LEAVES_MIN:
        words = _figures(slow, len(crowd), expected)
        return [
            *found,
            _part(PartKind.SCALE, "", f"pairs are slow only when all nodes of a leaf send to one other leaf, {words}"),
        ]
    edges = _leaf_pairs(rest, leaves, low, lasting, expected)
    pairs = {frozenset((f.name, *f.others)) for f in edges}
    rest = [v for v in rest if _ends(v, leaves) not in pairs]
    return [*found, *edges, *_ways(rest, leaves, low, expected)]


def _ends(v: PairValue, leaves: Leaves) -> frozenset[str]:
    return frozenset({leaves.of[v.node_a], leaves.of[v.node_b]})


def _most(values: Sequence[PairValue], low: Low) -> bool:
    return 2 * sum(map(low, values)) > len(values)


def _part(kind: PartKind, name: str, summary: str, others: tuple[str, ...] = ()) -> GuiltyPart:
    return GuiltyPart(kind=kind, name=name, outcome=MeasuredOutcome.WARN, summary=summary, others=others)


def _figures(slow: Sequence[PairValue], count: int, expected: float) -> str:
    return f"{figure_text(median([v.speed for v in slow]))} of {expected:.4g} ({len(slow)} of {count} pairs)"


def _uplinks(
    across: Sequence[PairValue], leaves: Leaves, low: Low, lasting: Lasting, *, expected: float, inside: float
) -> tuple[list[GuiltyPart], bool]:
    """Name the leaf of whose pairs most are slow, leave its pairs out, and begin again. A leaf is named only if it was slow with
    two partner leaves, and enough pairs without it were fast. Pairs of a crowded round that are slow only say whether that lasts,
    because the crowd may be what makes them slow. The second result is False if a leaf is slow, and too few pairs without it were
    fast to name it."""
    rest = [v for v in across if v.stage is not Stage.CROWDED]
    found: list[GuiltyPart] = []
    named: set[str] = set()
    while True:
        by_leaf: dict[str, list[PairValue]] = {}
        for v in rest:
            for leaf in _ends(v, leaves):
                by_leaf.setdefault(leaf, []).append(v)
        slow = {leaf: [v for v in own if low(v)] for leaf, own in by_leaf.items()}
        fitting = [
            leaf
            for leaf, own in by_leaf.items()
            if len(slow[leaf]) >= LOW_MIN
            and _most(own, low)
            and lasting([v for v in across if leaf in _ends(v, leaves) and not named & _ends(v, leaves)])
            and len({end for v in slow[leaf] for end in _ends(v, leaves) - {leaf}}) >= 2
        ]
        told = [leaf for leaf in fitting if sum(leaf not in _ends(v, leaves) and not low(v) for v in across) >= FAST_MIN]
        if not told:
            return found, not fitting
        worst = max(told, key=lambda leaf: (len(slow[leaf]) / len(by_leaf[leaf]), len(slow[leaf]), leaf))
        words = f"pairs leaving it {_figures(slow[worst], len(by_leaf[worst]), expected)}"
        within = f", inside it {inside:.4g}" if inside else ""
        found.append(_part(PartKind.UPLINK, worst, f"{words}{within}: no node is accused"))
        named.add(worst)
        rest = [v for v in rest if worst not in _ends(v, leaves)]


def _leaf_pairs(values: Sequence[PairValue], leaves: Leaves, low: Low, lasting: Lasting, expected: float) -> list[GuiltyPart]:
    edges: dict[tuple[str, ...], list[PairValue]] = {}
    for v in values:
        edges.setdefault(tuple(sorted(_ends(v, leaves))), []).append(v)
    found = []
    for (one, other), own in sorted(edges.items()):
        slow = [v for v in own if low(v)]
        if len(slow) >= LOW_MIN and _most(own, low) and lasting(own):
            words = f"pairs between it and {other} {_figures(slow, len(own), expected)}: no node is accused"
            found.append(_part(PartKind.LEAF_PAIR, one, words, (other,)))
    return found


def _ways(values: Sequence[PairValue], leaves: Leaves, low: Low, expected: float) -> list[GuiltyPart]:
    """Return the nodes whose pairs across leaves are all slow, while the other nodes of the leaf are fast."""
    by_node: dict[str, list[PairValue]] = {}
    for v in values:
        for node in v.pair:
            by_node.setdefault(node, []).append(v)
    slow = {n for n, own in by_node.items() if len({v.partner(n) for v in own}) >= LOW_MIN and all(map(low, own))}
    found = []
    for node in sorted(slow):
        if not any(v.partner(node) in slow for v in by_node[node]):
            words = f"its pairs across leaves {_figures(by_node[node], len(by_node[node]), expected)}, inside its leaf it is fast"
            found.append(_part(PartKind.WAY, node, f"{words}: a path or the adaptive routing of its port"))
    return found
