"""Decides which pairs are measured in the next round, from the rounds that were measured before.

The order is: two rounds inside the leaves, confirmations of the suspects, two rounds across the leaves (three if they name a
part), one crowded round (two if it names the scale or a way), and at the end the single rails of pairs that were too slow. If a
node went down in a round and another pair was slow, the round does not count. The plan is a function of what was measured. So a
run that was killed goes on with the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import cache

from msgspec import Struct

from fairlead.measure.pairs.circle import circle, crowded_across, shuffled, spread_across
from fairlead.measure.pairs.death_rounds import SpoiledFigures, without_spoiled
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, GuiltyPart, PairLimits, PartKind
from fairlead.measure.pairs.pair_judgement import PARTNERS_MIN, judge
from fairlead.measure.pairs.pair_table import Leaves, Pair, PairValue, Stage, pair_of, whole

#: The most rounds of each stage, without those that a node spoiled by going down.
ROUNDS = {Stage.LEAF: 2, Stage.CONFIRM: 2, Stage.ACROSS: 3, Stage.CROWDED: 2, Stage.RAIL: 2}
ACROSS_FIRST = 2  # the rounds across leaves of which each run has so many
CONFIRMED_MIN = 3  # how many nodes of its leaf a suspect is measured with, as far as there are so many
SPOILED_MAX = 2  # the most rounds of a stage that are made again because a node went down
BETWEEN_LEAVES = (PartKind.UPLINK, PartKind.LEAF_PAIR, PartKind.SCALE)


class PlannedRound(Struct, frozen=True, kw_only=True):
    """Describes one round, in which no node is in two pairs. rails: the rails that are measured alone, each as a step of its own,
    or "" for one step with all rails."""

    number: int
    stage: Stage
    pairs: tuple[Pair, ...]
    rails: tuple[str, ...] = ("",)

    @property
    def node_runs(self) -> int:
        """Return how many nodes the round uses."""
        return 2 * len(self.pairs)


class PairPlan(Struct, frozen=True, kw_only=True):
    """Holds what does not change in a run. rails: how many rails each node has. seed: the order of the nodes depends on it."""

    leaves: Leaves
    limits: PairLimits = PairLimits()
    rails: int = 1
    seed: str = ""


def next_round(
    plan: PairPlan, values: Sequence[PairValue], gone: Mapping[str, str], left_out: Collection[str] = ()
) -> PlannedRound | None:
    """Return the round after those in ``values``, or None at the end. ``gone``: nodes that went down, which get no pair.
    ``left_out``: nodes that get no pair, and did not go down: they spoiled nothing."""
    rounds = {v.round: v.stage for v in values}
    table = without_spoiled(values, plan.leaves, plan.limits, gone)
    had = Counter(stage for number, stage in rounds.items() if number not in table.rounds)
    spoiled = Counter(rounds[number] for number in table.rounds)
    order = list(Stage)
    last = rounds[max(rounds)] if rounds else None
    first = 0 if spoiled or last is None else order.index(last)
    verdict = cache(lambda: judge(values, plan.leaves, plan.limits, gone))
    for stage in order[first:]:
        if had[stage] + max(0, spoiled[stage] - SPOILED_MAX) >= ROUNDS[stage]:
            continue
        nodes = frozenset(plan.leaves.of) - frozenset(gone) - frozenset(left_out)
        if pairs := _pairs(plan, stage, values, nodes, had=had[stage], table=table, judged=verdict):
            rails = tuple(str(k) for k in range(plan.rails)) if stage is Stage.RAIL else ("",)
            return PlannedRound(number=max(rounds, default=0) + 1, stage=stage, pairs=tuple(sorted(pairs)), rails=rails)
    return None


def _pairs(
    plan: PairPlan,
    stage: Stage,
    values: Sequence[PairValue],
    nodes: Set[str],
    *,
    had: int,
    table: SpoiledFigures,
    judged: Callable[[], FabricVerdict],
) -> list[Pair]:
    """Return the pairs of the next round of a stage, between these nodes. had: how many rounds of this stage count. judged:
    returns the verdict of ``values``."""
    made = len({v.round for v in values if v.stage is stage})
    done = {v.pair for v in values if not v.rail}
    one_group = len(set(plan.leaves.of.values())) == 1
    if stage is Stage.LEAF:
        return _in_leaf(plan, made, nodes, done)
    if one_group and (stage is Stage.ACROSS or (stage is Stage.CROWDED and had)):
        return []
    if stage is Stage.CROWDED and one_group:
        return _in_leaf(plan, made + len({v.round for v in values if v.stage is Stage.LEAF}), nodes, done)
    if stage is Stage.ACROSS and had < ACROSS_FIRST:
        return spread_across(plan.leaves, nodes, made, done, plan.seed)
    if stage is Stage.CROWDED and not had:
        return crowded_across(plan.leaves, nodes, ACROSS_FIRST + made, done, plan.seed)
    verdict = judged()
    match stage:
        case Stage.CONFIRM:
            return _confirmations(plan, verdict, table.kept, nodes)
        case Stage.ACROSS if any(verdict.named(kind) for kind in BETWEEN_LEAVES):
            return spread_across(plan.leaves, nodes, made, done, plan.seed)
        case Stage.CROWDED if verdict.named(PartKind.SCALE) or verdict.named(PartKind.WAY):
            return crowded_across(plan.leaves, nodes, ACROSS_FIRST + made, done, plan.seed)
        case Stage.RAIL if plan.rails > 1:
            return _slow_pairs(plan, verdict, table.kept, nodes)
    return []


def _in_leaf(plan: PairPlan, round_: int, nodes: Set[str], done: Set[Pair]) -> list[Pair]:
    """Return one round of the circle in each leaf. If a node went down, its partner has no pair. done: all pairs so far, which
    include confirmations if leaves are measured again."""
    found = [pair for names in plan.leaves.nodes().values() for pair in circle(shuffled(names, plan.seed), round_)]
    return [pair for pair in found if set(pair) <= nodes and pair not in done]


def _confirmations(plan: PairPlan, verdict: FabricVerdict, values: Sequence[PairValue], nodes: Set[str]) -> list[Pair]:
    """Return for each suspect a pair with a node of its leaf that is known to be good. A suspect gets one such pair, and another
    one if it was measured with fewer than two good nodes, or with fewer than three nodes, as the node of an odd leaf that had no
    pair in one of its rounds. values: the rows that are not spoiled, so that a spoiled pair can be measured again."""
    done = {v.pair for v in values if not v.rail}
    confirmed = {node for v in values if v.stage is Stage.CONFIRM for node in v.pair}
    slow_leaves = set(verdict.named(PartKind.LEAF))
    free = {
        leaf: [n for n in shuffled(names, plan.seed) if n in verdict.good & nodes] for leaf, names in plan.leaves.nodes().items()
    }
    found = []
    for node in shuffled(nodes - verdict.good, plan.seed):
        leaf = plan.leaves.of[node]
        had = {v.partner(node) for v in whole(values) if node in v.pair and plan.leaves.inside(v)}
        enough = node in confirmed and len(had) >= CONFIRMED_MIN and len(had & verdict.good) >= PARTNERS_MIN
        partner = next((each for each in free[leaf] if pair_of(node, each) not in done), None)
        if partner is not None and not enough and leaf not in slow_leaves:
            free[leaf].remove(partner)
            found.append(pair_of(node, partner))
    return found


def _slow_pairs(plan: PairPlan, verdict: FabricVerdict, values: Sequence[PairValue], nodes: Set[str]) -> list[Pair]:
    """Return for each guilty part a slow pair whose rails were not yet measured alone. No node is in two pairs."""
    had = {v.pair for v in values if v.rail}
    slow = [v for v in whole(values) if v.speed < plan.limits.warn * verdict.expected_gbps and v.pair not in had]
    found: list[Pair] = []
    busy: set[str] = set()
    for part in verdict.parts:
        fitting = (v.pair for v in slow if set(v.pair) <= nodes - busy and _shows(part, v, plan.leaves, verdict))
        if pair := next(fitting, None):
            found.append(pair)
            busy |= set(pair)
    return found


def _shows(part: GuiltyPart, v: PairValue, leaves: Leaves, verdict: FabricVerdict) -> bool:
    """Say whether a slow pair shows this guilty part. Its other nodes must be good."""
    ends = {leaves.of[v.node_a], leaves.of[v.node_b]}
    match part.kind:
        case PartKind.NODE | PartKind.RAIL:
            return part.name in v.pair and len(ends) == 1 and v.partner(part.name) in verdict.good
        case PartKind.LEAF:
            return ends == {part.name}
        case PartKind.UPLINK:
            return part.name in ends and len(ends) == 2 and set(v.pair) <= verdict.good
        case PartKind.LEAF_PAIR:
            return ends == {part.name, *part.others} and set(v.pair) <= verdict.good
    return False
