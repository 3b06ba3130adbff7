"""Finds the guilty part in a table of pairs.

A node is accused only if it was too slow with at least two partners that are known to be good, and fast with nobody. So one slow
pair never accuses both of its nodes, and a node that met only slow partners gets no verdict. A node is known to be good if it was
fast with somebody. Only pairs inside a leaf accuse. A pair across two leaves can show that a node is good, if it is clearly fast,
and never accuses it, because its figure may be that of an uplink. What a node spoiled by going down accuses nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from fairlead.measure.pairs.across_judgement import judge_across
from fairlead.measure.pairs.death_rounds import SpoiledFigures, without_spoiled
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, GuiltyPart, JudgedPairNode, PairLimits, PartKind
from fairlead.measure.pairs.pair_table import (
    NO_TOPOLOGY,
    LeafSource,
    Leaves,
    PairValue,
    expected_speed,
    figure_text,
    median,
    whole,
)
from fairlead.measure.pairs.rail_ends import RailEnds
from fairlead.measure.pairs.rail_judgement import with_rails
from fairlead.measure.tool import MeasuredOutcome
from fairlead.model.nodelist import fold

PARTNERS_MIN = 2  # a node with fewer partners gets no verdict
LEAF_NODES_MIN = 3  # in a smaller leaf, slow nodes cannot be told from a slow leaf switch
CLASS_MIN = 4  # the fewest nodes that make a median without a reference
ACCUSED = frozenset({MeasuredOutcome.FAIL, MeasuredOutcome.WARN})


class _Evidence(Struct, frozen=True, kw_only=True):
    """Holds what the table says. best: the best figure of each node. good: the nodes that were fast with somebody. inside: the
    pairs of nodes of one leaf. partners: the partners of each node. slow_with: of each node that is not good, the good partners
    inside its leaf."""

    best: Mapping[str, float]
    good: Set[str]
    inside: Sequence[PairValue]
    partners: Mapping[str, Set[str]]
    slow_with: Mapping[str, Set[str]]
    expected: float


def judge(
    values: Sequence[PairValue],
    leaves: Leaves,
    limits: PairLimits,
    gone: Mapping[str, str] | None = None,
    ends: RailEnds | None = None,
) -> FabricVerdict:
    """Return the outcome of each node in ``leaves``, and the guilty parts. gone: the nodes that went down in the run, and why.
    ends: what is known of the ends of rails."""
    lost = dict(gone or {})
    table = without_spoiled(values, leaves, limits, lost)
    pairs = whole(table.kept)
    evidence = _evidence(pairs, leaves, limits)
    bad_leaves = _bad_leaves(evidence, leaves, lost)
    nodes = {n: _node(n, evidence, limits, bad_leaves.get(leaf), lost.get(n)) for n, leaf in leaves.of.items()}
    for v in values:  # what was planned and gave no figure says why a node has none
        for name in v.pair:
            if not v.measured and v.why and name in nodes and nodes[name].best_gbps is None and name not in lost:
                nodes[name] = replace(nodes[name], why=f"it was not measured: {v.why}")
    for v in table.left_out:
        for name in v.pair:
            if name in nodes and nodes[name].best_gbps is None and name not in lost:
                nodes[name] = replace(nodes[name], why="no verdict: it was measured only while another node went down")
    parts = [GuiltyPart(kind=PartKind.GONE, name=n, outcome=nodes[n].outcome, summary=nodes[n].why) for n in sorted(lost)]
    for name, node in sorted(nodes.items()):
        if node.outcome in ACCUSED:
            part = GuiltyPart(kind=PartKind.NODE, name=name, outcome=node.outcome, summary=node.why)
            parts.append(named := with_rails(part, table.kept, leaves, limits, ends))
            nodes[name] = replace(node, why=named.summary)
    parts += [with_rails(part, table.kept, leaves, limits) for part in bad_leaves.values()]
    sound = evidence.good - set(lost)
    across = judge_across([v for v in pairs if set(v.pair) <= sound], leaves, evidence.expected, limits)
    parts += [with_rails(part, table.kept, leaves, limits) for part in across]
    return FabricVerdict(
        nodes=nodes,
        parts=tuple(parts),
        expected_gbps=evidence.expected,
        good=frozenset(evidence.good),
        spoiled=frozenset(table.rounds),
        notes=(*_notes(evidence, leaves, limits), *_spoiled_notes(table)),
    )


def _evidence(pairs: Sequence[PairValue], leaves: Leaves, limits: PairLimits) -> _Evidence:
    best: dict[str, float] = {}
    within: dict[str, float] = {}
    partners: dict[str, set[str]] = {}
    inside = [v for v in pairs if leaves.inside(v)]
    for v in pairs:
        for node in v.pair:
            best[node] = max(best.get(node, 0.0), v.speed)
            partners.setdefault(node, set()).add(v.partner(node))
    for v in inside:
        for node in v.pair:
            within[node] = max(within.get(node, 0.0), v.speed)
    expected = limits.reference_gbps or expected_speed(pairs, leaves)
    clear = (1 + limits.warn) / 2  # a node that is slow inside its leaf gets more chances across leaves, and noise helps it
    good = {
        node
        for node, speed in best.items()
        if expected and (within.get(node, speed) >= limits.warn * expected or speed >= clear * expected)
    }
    slow_with: dict[str, set[str]] = {}
    for v in inside:
        for node in set(v.pair) - good:
            slow_with.setdefault(node, set()).update({v.partner(node)} & good)
    return _Evidence(best=best, good=good, inside=inside, partners=partners, slow_with=slow_with, expected=expected)


def _bad_leaves(evidence: _Evidence, leaves: Leaves, lost: Mapping[str, str]) -> dict[str, GuiltyPart]:
    """Return the leaves in which more than half of the nodes are slow with everybody. If there is only one leaf, or the topology
    is unknown, there is no other leaf to compare with."""
    groups = leaves.nodes()
    found = {}
    for leaf, names in sorted(groups.items()):
        tested = [n for n in names if n in evidence.best and n not in lost]
        slow = [n for n in tested if n not in evidence.good]
        if len(groups) > 1 and len(tested) >= LEAF_NODES_MIN and 2 * len(slow) > len(tested):
            figures = figure_text(median([evidence.best[n] for n in slow]))
            words = (
                f"{len(slow)} of its {len(tested)} nodes reach only {figures} inside it, expected {evidence.expected:.4g} GB/s"
            )
            found[leaf] = GuiltyPart(
                kind=PartKind.LEAF, name=leaf, outcome=MeasuredOutcome.WARN, summary=f"{words}: no node is accused"
            )
    return found


def _node(node: str, evidence: _Evidence, limits: PairLimits, bad_leaf: GuiltyPart | None, gone: str | None) -> JudgedPairNode:
    best, partners = evidence.best.get(node), evidence.partners.get(node, set())
    slow_with = evidence.slow_with.get(node, set())
    outcome, why = MeasuredOutcome.UNKNOWN, ""
    if gone is not None:
        why = f"it went down in the run: {gone}"
    elif best is None:
        why = "it was not measured"
    elif len(partners) < PARTNERS_MIN:
        why = f"no verdict: it was measured with {len(partners)} partner, {PARTNERS_MIN} are needed"
    elif node in evidence.good:
        outcome = MeasuredOutcome.PASS
    elif bad_leaf is not None:
        why = f"its leaf {bad_leaf.name} is slow"
    elif len(slow_with) < PARTNERS_MIN:
        why = f"no verdict: it was slow with {len(partners)} partners, of which {len(slow_with)} in its leaf are known to be good"
    else:
        outcome = MeasuredOutcome.FAIL if best < limits.fail * evidence.expected else MeasuredOutcome.WARN
        why = _accusation(node, best, evidence)
    return JudgedPairNode(outcome=outcome, why=why, best_gbps=best, partners=len(partners))


def _accusation(node: str, best: float, evidence: _Evidence) -> str:
    count = len(evidence.partners[node])
    if best:
        return f"at most {figure_text(best)} with {count} of {count} partners, expected {evidence.expected:.4g}"
    why = next((f": {v.why}" for v in evidence.inside if node in v.pair and v.why), "")
    return f"all pairs with {count} partners failed{why}"


def _notes(evidence: _Evidence, leaves: Leaves, limits: PairLimits) -> tuple[str, ...]:
    notes = [NO_TOPOLOGY] if leaves.source is LeafSource.UNKNOWN else []
    if limits.reference_gbps is None:
        notes.append(f"no pair reference: the median of the nodes alone judges ({len(evidence.best)} nodes)")
        if len(evidence.best) < CLASS_MIN:
            notes.append(f"a median of {len(evidence.best)} nodes proves little: give a reference")
    elif 2 * len(evidence.good) < len(evidence.best):
        notes.append(
            f"only {len(evidence.good)} of {len(evidence.best)} nodes reach {limits.warn:g} of the reference"
            f" {limits.reference_gbps:.4g} GB/s: is it the reference of this fabric?"
        )
    return tuple(notes)


def _spoiled_notes(table: SpoiledFigures) -> tuple[str, ...]:
    found = []
    for round_, nodes in table.rounds.items():
        count = sum(v.round == round_ and not set(v.pair) & set(nodes) for v in table.left_out)
        words = f"{count} slow figure{'' if count == 1 else 's'} of round {round_} accuse{'s' if count == 1 else ''} nobody"
        found.append(f"{words}: {fold(nodes)} went down then")
    return tuple(found)
