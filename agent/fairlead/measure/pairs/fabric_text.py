"""Describes a judged run in lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from fairlead.measure.pairs.fabric_verdict import FabricVerdict, GuiltyPart, PartKind
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, PairValue, Stage
from fairlead.measure.tool import MeasuredOutcome
from fairlead.model.nodelist import fold


class RunSize(Struct, frozen=True, kw_only=True):
    """Holds how much was measured. node_runs: the sum over the rounds of the nodes in them. rail_runs: how many rounds measured
    single rails."""

    rounds: int
    node_runs: int
    by_stage: tuple[tuple[str, int], ...]


def size_of(values: Sequence[PairValue]) -> RunSize:
    """Return how much was measured. The rails of a pair that were measured at the same time count once."""
    pairs = {(v.round, v.pair): v.stage for v in values if v.measured}
    stages = {number: stage for (number, _), stage in pairs.items()}
    names = Counter(stage.value if stage is not None else "no stage" for stage in stages.values())
    order = [stage.value for stage in Stage] + ["no stage"]
    by_stage = tuple((name, names[name]) for name in order if names[name])
    return RunSize(rounds=len(stages), node_runs=2 * len(pairs), by_stage=by_stage)


def lines(verdict: FabricVerdict, leaves: Leaves, values: Sequence[PairValue]) -> list[str]:
    """Return one line for each guilty part, for each node without a verdict, and for each note, and a line with the sums."""
    found = [part_line(part) for part in verdict.parts]
    by_why: dict[str, list[str]] = {}
    for name, node in verdict.nodes.items():
        if node.outcome is MeasuredOutcome.UNKNOWN and name not in verdict.named(PartKind.GONE):
            by_why.setdefault(node.why, []).append(name)
    found += [f"{fold(names)}: unknown: {why}" for why, names in by_why.items()]
    found += [f"note: {note}" for note in verdict.notes]
    return [*found, *sums(verdict, leaves, values)]


def part_line(part: GuiltyPart) -> str:
    """Return a guilty part in one line."""
    match part.kind:
        case PartKind.NODE | PartKind.RAIL | PartKind.GONE:
            return f"{part.name}: {part.outcome}: {part.summary}"
        case PartKind.SCALE:
            return f"scale: {part.outcome}: {part.summary}"
        case PartKind.LEAF_PAIR:
            return f"leaves {part.name} and {', '.join(part.others)}: {part.outcome}: {part.summary}"
        case PartKind.WAY:
            return f"way of {part.name}: {part.outcome}: {part.summary}"
    return f"{part.kind} {part.name}: {part.outcome}: {part.summary}".replace("leaf leaf", "leaf", 1)


def sums(verdict: FabricVerdict, leaves: Leaves, values: Sequence[PairValue]) -> list[str]:
    """Return the numbers of nodes by outcome, and of rounds and node-runs."""
    counts = Counter(node.outcome for node in verdict.nodes.values())
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in MeasuredOutcome if counts[outcome])
    size = size_of(values)
    stages = ", ".join(f"{count} {name}" for name, count in size.by_stage)
    return [
        f"nodes: {words}; expected {verdict.expected_gbps:.4g} GB/s a pair",
        f"{_leaves_text(leaves)}. {size.rounds} rounds ({stages}), {size.node_runs} node-runs.",
    ]


def _leaves_text(leaves: Leaves) -> str:
    count = len(set(leaves.of.values()))
    if leaves.source is LeafSource.UNKNOWN:
        return "topology unknown"
    return f"topology {leaves.source} ({leaves.detail}): {count} lea{'f' if count == 1 else 'ves'}"


def compared(before: FabricVerdict, after: FabricVerdict, old: Iterable[PairValue], new: Iterable[PairValue]) -> list[str]:
    """Return what differs between two runs: outcomes, guilty parts, and the best figure of each node by more than 5 percent."""
    found = []
    for name in dict.fromkeys((*before.nodes, *after.nodes)):
        one, other = before.nodes.get(name), after.nodes.get(name)
        if one is None or other is None:
            found.append(f"{name}: only in the {'second' if one is None else 'first'} run")
            continue
        if one.outcome is not other.outcome:
            found.append(f"{name}: {one.outcome} -> {other.outcome}{f': {other.why}' if other.why else ''}")
        elif one.best_gbps and other.best_gbps and abs(other.best_gbps / one.best_gbps - 1) > CHANGED:
            found.append(
                f"{name}: {one.best_gbps:.4g} -> {other.best_gbps:.4g} GB/s ({other.best_gbps / one.best_gbps - 1:+.0%})"
            )
    keys = {(p.kind, p.name, p.others, p.rails) for p in before.parts}, {(p.kind, p.name, p.others, p.rails) for p in after.parts}
    found += [f"no longer: {part_line(p)}" for p in before.parts if (p.kind, p.name, p.others, p.rails) not in keys[1]]
    found += [f"new: {part_line(p)}" for p in after.parts if (p.kind, p.name, p.others, p.rails) not in keys[0]]
    if before.expected_gbps and after.expected_gbps:
        change = after.expected_gbps / before.expected_gbps - 1
        found.append(f"expected: {before.expected_gbps:.4g} -> {after.expected_gbps:.4g} GB/s ({change:+.1%})")
    first, second = size_of(list(old)), size_of(list(new))
    found.append(f"rounds: {first.rounds} -> {second.rounds}; node-runs: {first.node_runs} -> {second.node_runs}")
    return found


CHANGED = 0.05  # a smaller change of a node's best figure is not printed


class GuiltyPartData(TypedDict):
    """A part of the fabric or a node that failed. ends: of each guilty rail, the ends of its link. why: in words."""

    kind: str
    name: str
    others: Sequence[str]
    rails: Sequence[str]
    ends: dict[str, list[dict[str, Any]]]
    outcome: str
    why: str


class NodeInPairs(TypedDict):
    """What the pairs of one node show. leaf: null if it is not known."""

    node: str
    leaf: str | None
    outcome: str
    why: str
    best_gbps: float | None
    partners: int


class MeasuredPair(TypedDict):
    """One measurement. rail: null for all rails. gbps: null where the step failed."""

    round: int
    stage: Stage | None
    node_a: str
    node_b: str
    rail: str | None
    gbps: float | None
    failed: bool
    why: str


class JudgedFabric(TypedDict):
    """A judged table of pairs."""

    outcome: str
    expected_gbps: float | None
    topology: str
    guilty: list[GuiltyPartData]
    nodes: list[NodeInPairs]
    pairs: list[MeasuredPair]
    notes: Sequence[str]
    rounds: int
    node_runs: int


def as_data(verdict: FabricVerdict, leaves: Leaves, values: Sequence[PairValue]) -> JudgedFabric:
    """Return a judged run as data for JSON."""
    size = size_of(values)
    return {
        "outcome": verdict.outcome,
        "expected_gbps": verdict.expected_gbps,
        "topology": leaves.source,
        "guilty": [
            {
                "kind": part.kind,
                "name": part.name,
                "others": part.others,
                "rails": part.rails,
                "ends": {rail: [msgspec.structs.asdict(end) for end in ends] for rail, ends in part.ends.items()},
                "outcome": part.outcome,
                "why": part.summary,
            }
            for part in verdict.parts
        ],
        "nodes": [
            {
                "node": name,
                "leaf": leaves.of[name] or None,
                "outcome": node.outcome,
                "why": node.why,
                "best_gbps": node.best_gbps,
                "partners": node.partners,
            }
            for name, node in verdict.nodes.items()
        ],
        "pairs": [
            {
                "round": v.round,
                "stage": v.stage,
                "node_a": v.node_a,
                "node_b": v.node_b,
                "rail": v.rail or None,
                "gbps": v.gbps,
                "failed": v.failed,
                "why": v.why,
            }
            for v in values
        ],
        "notes": verdict.notes,
        "rounds": size.rounds,
        "node_runs": size.node_runs,
    }
