"""Tables of pairs and the part that each of them accuses; and what no table may lead to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.errors import UsageError
from fairlead.measure.pairs.circle import circle, crowded_across, spread_across
from fairlead.measure.pairs.fabric_text import lines, sums
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, PairLimits, PartKind
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, Pair, PairValue, Stage, unknown_leaves, whole
from fairlead.measure.pairs.round_plan import PairPlan, next_round

GOOD = 47.0


def leaves(*sizes: int) -> Leaves:
    """Leaf a has the nodes a1, a2, ...; leaf b has b1, ..."""
    names = "abcdefgh"
    of = {f"{names[at]}{k}": names[at] for at, size in enumerate(sizes) for k in range(1, size + 1)}
    return Leaves(source=LeafSource.DECLARED, of=of, detail="test")


def table(*rows: tuple[str, str, float | None], stage: Stage | None = None, rail: str = "") -> list[PairValue]:
    """Rows of node, node, GB/s (None: failed), each in a round of its own."""
    return [
        PairValue(round=k, node_a=a, node_b=b, rail=rail, gbps=gbps, failed=gbps is None, stage=stage)
        for k, (a, b, gbps) in enumerate(rows, 1)
    ]


def inside(size: int, leaf: str = "a", slow: dict[str, float] | None = None) -> list[PairValue]:
    """All pairs inside a leaf; a pair is as slow as its slower node."""
    names = [f"{leaf}{k}" for k in range(1, size + 1)]
    speed = dict.fromkeys(names, GOOD) | (slow or {})
    return table(*((a, b, min(speed[a], speed[b]) or None) for at, a in enumerate(names) for b in names[at + 1 :]))


def across(one: str, other: str, count: int, gbps: float, stage: Stage | None = None) -> list[PairValue]:
    return table(*((f"{one}{k}", f"{other}{k}", gbps) for k in range(1, count + 1)), stage=stage)


def named(verdict: FabricVerdict) -> list[tuple[str, str]]:
    return [(part.kind.value, part.name) for part in verdict.parts]


FOUR = leaves(4, 4, 4, 4)
HEALTHY = [v for leaf in "abcd" for v in inside(4, leaf)]
UP = {("a", "b"): 30.0, ("a", "c"): 30.0, ("a", "d"): 30.0}


def crossing(slow: dict[tuple[str, str], float] | None = None, stage: Stage | None = None) -> list[PairValue]:
    pairs = [(x, y) for at, x in enumerate("abcd") for y in "abcd"[at + 1 :]]
    return [v for x, y in pairs for v in across(x, y, 4, (slow or {}).get((x, y), GOOD), stage)]


def slow_in(leaf: str, *, slow: dict[str, float]) -> list[PairValue]:
    """All pairs inside the four leaves, with slow nodes in one of them."""
    return [v for each in "abcd" for v in inside(4, each, slow if each == leaf else None)]


def without(values: list[PairValue], node: str) -> list[PairValue]:
    return [v for v in values if node not in v.pair]


def slow_with(values: list[PairValue], node: str) -> list[PairValue]:
    return [replace(v, gbps=30.0) if node in v.pair else v for v in values]


ALL_SLOW = {(x, y): 30.0 for x in "abc" for y in "bcd"}
MET_ONE = table(("a1", "a2", 20.0), ("a3", "a4", GOOD), ("a3", "a5", GOOD), ("a4", "a6", GOOD))
MET_EACH_OTHER = table(("a1", "a2", 20.0), ("a1", "a3", 20.0), ("a3", "a4", GOOD), ("a2", "a4", 20.0), ("a4", "a5", GOOD))
TABLES = {
    "all is fast": (inside(4), leaves(4), []),
    "a slow node": (inside(4, slow={"a2": 30.0}), leaves(4), [("node", "a2")]),
    "a node whose pairs fail": (inside(4, slow={"a2": 0.0}), leaves(4), [("node", "a2")]),
    "two slow nodes": (inside(6, slow={"a2": 30.0, "a5": 35.0}), leaves(6), [("node", "a2"), ("node", "a5")]),
    "one slow pair, and both are fast with others": (inside(4)[1:] + table(("a1", "a2", 20.0)), leaves(4), []),
    "a slow pair, and neither met anybody else": (MET_ONE, leaves(6), []),
    "a slow pair, and each met one good node": (MET_EACH_OTHER, leaves(5), []),
    "four leaves": (HEALTHY + crossing(), FOUR, []),
    "an uplink": (HEALTHY + crossing(UP), FOUR, [("uplink", "a")]),
    "a pair of leaves": (HEALTHY + crossing({("a", "b"): 30.0}), FOUR, [("leaf pair", "a")]),
    "two pairs of leaves": (
        HEALTHY + crossing({("a", "b"): 30.0, ("c", "d"): 30.0}),
        FOUR,
        [("leaf pair", "a"), ("leaf pair", "c")],
    ),
    "all that leaves a leaf is slow": (HEALTHY + crossing(ALL_SLOW), FOUR, [("scale", "")]),
    "slow only in the crowded round": (HEALTHY + crossing() + crossing(ALL_SLOW, Stage.CROWDED), FOUR, [("scale", "")]),
    "a slow node beside the slow uplink of another leaf": (
        slow_in("a", slow={"a2": 30.0}) + without(crossing({("b", "c"): 30.0, ("b", "d"): 30.0, ("a", "b"): 30.0}), "a2"),
        FOUR,
        [("node", "a2"), ("uplink", "b")],
    ),
    "most nodes of a leaf are slow inside it": (
        slow_in("a", slow=dict.fromkeys(("a1", "a2", "a3"), 30.0)),
        FOUR,
        [("leaf", "a")],
    ),
    "two leaves": (inside(4) + inside(4, "b") + across("a", "b", 4, 30.0), leaves(4, 4), [("leaf pair", "a")]),
    "the way of one node": (HEALTHY + slow_with(crossing(), "a1"), FOUR, [("way", "a1")]),
}


def in_round(number: int, values: list[PairValue], stage: Stage) -> list[PairValue]:
    return [replace(v, round=number, stage=stage) for v in values]


def rounds_across(*speeds: float) -> list[PairValue]:
    """Two rounds and crowded rounds, in which all pairs that leave leaf a have these figures. b4 meets c4, and so on."""
    found = []
    for number, speed in enumerate(speeds, 10):
        slow = dict.fromkeys(UP, speed)
        found += in_round(number, crossing(slow), Stage.ACROSS if number < 12 else Stage.CROWDED)
    return found


@pytest.mark.parametrize(
    ("speeds", "parts"),
    [
        ((30.0, 30.0, 30.0), [("uplink", "a")]),
        ((GOOD, 30.0, GOOD), []),
        ((30.0, 30.0, GOOD), []),
        ((GOOD, GOOD, 30.0), []),
    ],
)
def test_what_was_slow_in_one_round_and_fast_in_another_is_no_part(
    speeds: tuple[float, ...], parts: list[tuple[str, str]]
) -> None:
    assert named(judge(HEALTHY + rounds_across(*speeds), FOUR, PairLimits())) == parts


def test_a_crowd_is_named_if_it_was_slow_in_each_crowded_round() -> None:
    calm = in_round(10, crossing(), Stage.ACROSS)
    crowds = [in_round(number, crossing(ALL_SLOW), Stage.CROWDED) for number in (12, 13)]
    assert named(judge([*HEALTHY, *calm, *crowds[0], *crowds[1]], FOUR, PairLimits())) == [("scale", "")]
    fast = in_round(13, crossing(), Stage.CROWDED)
    assert named(judge([*HEALTHY, *calm, *crowds[0], *fast], FOUR, PairLimits())) == []


@pytest.mark.parametrize(("values", "of", "parts"), TABLES.values(), ids=TABLES)
def test_what_a_table_accuses(values: list[PairValue], of: Leaves, parts: list[tuple[str, str]]) -> None:
    verdict = judge(values, of, PairLimits())
    assert named(verdict) == parts
    accused = {name for name, node in verdict.nodes.items() if node.outcome in ("fail", "warn")}
    assert accused == {name for kind, name in parts if kind in ("node", "rail")}


def test_outcomes_follow_the_limits_and_the_reference() -> None:
    values = inside(5, slow={"a2": 0.9 * GOOD, "a3": 0.8 * GOOD})
    assert [judge(values, leaves(5), PairLimits()).nodes[f"a{k}"].outcome for k in (1, 2, 3)] == ["pass", "warn", "fail"]
    loose = PairLimits(fail=0.5, warn=0.6)
    assert judge(values, leaves(5), loose).outcome == "pass"
    strict = judge(values, leaves(5), PairLimits(reference_gbps=60.0))
    assert strict.outcome == "unknown" and "0 of 5 nodes reach 0.93 of the reference" in strict.notes[0]
    with pytest.raises(UsageError, match="FAIL <= WARN"):
        PairLimits(fail=0.95, warn=0.9).check()


def test_what_was_not_measured_is_neither_good_nor_bad() -> None:
    absent = PairValue(round=9, node_a="a1", node_b="a9", why="not installed")
    verdict = judge([*inside(4), absent], leaves(9), PairLimits())
    assert verdict.nodes["a9"].outcome == "unknown" and verdict.nodes["a9"].why == "it was not measured: not installed"
    assert verdict.nodes["a8"].why == "it was not measured" and verdict.nodes["a1"].outcome == "pass"
    assert judge([], leaves(3), PairLimits()).outcome == "unknown"


def test_a_node_that_went_down_is_named_and_its_partners_are_not() -> None:
    values = [*inside(4)[3:], PairValue(round=1, node_a="a1", node_b="a2", why="a1 went down")]
    verdict = judge(values, leaves(4), PairLimits(), {"a1": "DOWN"})
    assert named(verdict) == [("gone", "a1")] and verdict.nodes["a1"].outcome == "unknown"
    assert {verdict.nodes[f"a{k}"].outcome for k in (2, 3, 4)} == {"pass"}


def rails(slow: dict[str, float], pairs: Sequence[tuple[str, str]], count: int = 8) -> list[PairValue]:
    return [
        PairValue(round=20 + at, node_a=a, node_b=b, rail=str(k), gbps=slow.get(str(k), 5.9), stage=Stage.RAIL)
        for at, (a, b) in enumerate(pairs)
        for k in range(count)
    ]


def test_the_rail_is_named_when_it_is_slow_with_two_partners_and_the_others_are_not() -> None:
    values = inside(4, slow={"a2": 24.0})
    two = [("a1", "a2"), ("a2", "a3")]
    verdict = judge([*values, *rails({"3": 2.9}, two)], leaves(4), PairLimits())
    assert named(verdict) == [("rail", "a2")] and verdict.parts[0].rails == ("3",)
    assert verdict.parts[0].summary == "rail 3 2.9 GB/s with 2 of 2 partners, other rails 5.9"
    one = judge([*values, *rails({"3": 2.9}, two[:1])], leaves(4), PairLimits())
    assert named(one) == [("node", "a2")] and "rail 3 2.9 GB/s in one pair" in one.parts[0].summary
    alike = judge([*values, *rails({}, two)], leaves(4), PairLimits())
    assert named(alike) == [("node", "a2")] and alike.parts[0].summary.endswith("all 8 rails alike")
    half = judge([*values, *rails({"1": 5.2}, two, count=2)], leaves(4), PairLimits())
    assert half.parts[0].rails == ("1",) and half.parts[0].summary.endswith("other rails 5.9"), "half of the rails are slow"
    uplink = judge(HEALTHY + crossing(UP) + rails({"5": 3.0}, [("a1", "b1"), ("a2", "c2")]), FOUR, PairLimits())
    assert named(uplink) == [("uplink", "a")] and uplink.parts[0].rails == ("5",)


def test_an_unknown_topology_is_said() -> None:
    unknown = unknown_leaves(["a1", "a2", "a3", "a4"])
    verdict = judge(inside(4), unknown, PairLimits())
    said = lines(verdict, unknown, inside(4))
    assert "note: no topology: a bad uplink would look like bad nodes" in said
    assert sums(verdict, unknown, inside(4))[-1] == "topology unknown. 6 rounds (6 no stage), 12 node-runs."


# -- what no table may lead to --------------------------------------------------------------------

NODES = [f"{leaf}{k}" for leaf in "abc" for k in range(1, 5)]


@st.composite
def tables(draw: st.DrawFn) -> list[PairValue]:
    count = draw(st.integers(0, 40))
    found: dict[tuple[Pair, int], PairValue] = {}
    for at in range(count):
        a, b = draw(st.lists(st.sampled_from(NODES), min_size=2, max_size=2, unique=True))
        gbps = draw(st.one_of(st.none(), st.sampled_from([47.0, 46.0, 43.0, 38.0, 20.0])))
        stage = draw(st.sampled_from([None, *Stage]))
        v = PairValue(round=at + 1, node_a=min(a, b), node_b=max(a, b), gbps=gbps, failed=gbps is None, stage=stage)
        found[v.pair, at] = v
    return list(found.values())


@given(tables())
def test_no_table_accuses_a_node_for_one_pair(values: list[PairValue]) -> None:
    of = leaves(4, 4, 4)
    verdict = judge(values, of, PairLimits())
    accused = {name for name, node in verdict.nodes.items() if node.outcome in ("fail", "warn")}
    assert accused == set(verdict.named(PartKind.NODE))
    for name in accused:
        own = [v for v in whole(values) if name in v.pair]
        good = {v.partner(name) for v in own if of.inside(v)} & verdict.good
        assert len(good) >= 2 and not good & accused
        # a pair across leaves clears a node only in the upper half between the limit and the expected bandwidth (decision 49)
        assert all(v.speed < (0.93 if of.inside(v) else 0.965) * verdict.expected_gbps for v in own)
    for v in whole(values):
        if set(v.pair) <= accused:
            others = [o for o in whole(values) if o is not v and set(o.pair) & set(v.pair)]
            assert others, "never both ends for one pair"
    for node in verdict.nodes.values():
        if node.partners < 2:
            assert node.outcome == "unknown"


# -- rounds ---------------------------------------------------------------------------------------


@given(st.integers(2, 33))
def test_the_circle_pairs_everybody_with_everybody_once(count: int) -> None:
    names = [f"n{k}" for k in range(count)]
    pairs = [pair for round_ in range(count) for pair in circle(names, round_)]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    for round_ in range(count - 1 + count % 2):
        busy = [node for pair in circle(names, round_) for node in pair]
        assert len(busy) == len(set(busy)) == count - count % 2


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.sets(st.integers(0, 40), max_size=6), st.text("abc", max_size=3))
def test_pairs_across_leaves_never_repeat_and_leave_nobody_out_for_long(sizes: list[int], without: set[int], seed: str) -> None:
    of = leaves(*sizes)
    nodes = frozenset(name for at, name in enumerate(of.of) if at not in without)
    done: set[Pair] = set()
    for round_, make in enumerate((spread_across, spread_across, crowded_across)):
        pairs = make(of, nodes, round_, frozenset(done), seed)
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) and set(busy) <= nodes
        assert all(of.of[a] != of.of[b] for a, b in pairs) and not done & set(pairs)
        done |= set(pairs)
        left = nodes - set(busy)
        free = [(a, b) for a in left for b in left if a < b and of.of[a] != of.of[b] and (a, b) not in done]
        assert not free, "two nodes that could be a pair were left out"


@given(st.integers(3, 20), st.booleans(), st.integers(0, 3))
def test_an_odd_node_rotates_and_everybody_gets_two_partners(count: int, known: bool, gone: int) -> None:
    of = leaves(count) if known else unknown_leaves([f"a{k}" for k in range(1, count + 1)])
    values: list[PairValue] = []
    lost = {f"a{k}": "DOWN" for k in range(1, min(gone, count - 3) + 1)}
    rounds = 0
    while planned := next_round(PairPlan(leaves=of, seed="x"), values, lost):
        rounds += 1
        assert rounds < 20
        assert not {node for pair in planned.pairs for node in pair} & set(lost)
        values += [PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, gbps=GOOD) for a, b in planned.pairs]
    partners = {name: {v.partner(name) for v in values if name in v.pair} for name in of.of}
    if not lost:
        assert all(len(found) >= 2 for found in partners.values()), partners
    assert len({v.pair for v in values}) == len(values)


@pytest.mark.parametrize("count", [5, 7, 9, 11])
def test_a_node_without_a_pair_in_one_round_of_its_leaf_is_measured_three_times(count: int) -> None:
    """With an odd number of nodes, one has no pair in each round. Two slow pairs by chance are then no accusation either."""
    of = leaves(count)
    for seed in map(str, range(60)):
        plan, values = PairPlan(leaves=of, seed=seed), list[PairValue]()
        alone: set[str] = set()
        while planned := next_round(plan, values, {}):
            if planned.number <= 2:
                alone |= set(of.of) - {node for pair in planned.pairs for node in pair}
            had = {node: sum(node in v.pair for v in values) for node in alone}
            for a, b in planned.pairs:
                slow = any(had.get(node, 2) < 2 for node in (a, b))
                gbps = 30.0 if slow else GOOD
                values.append(PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, gbps=gbps))
        verdict = judge(values, of, PairLimits())
        assert named(verdict) == [], (seed, [(v.round, v.stage, v.pair, v.gbps) for v in values if v.gbps != GOOD])


def test_a_killed_run_plans_the_same_round_again() -> None:
    plan = PairPlan(leaves=FOUR, seed="run")
    values: list[PairValue] = []
    while planned := next_round(plan, values, {}):
        assert next_round(plan, list(reversed(values)), {}) == planned
        values += [PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, gbps=GOOD) for a, b in planned.pairs]
    assert list(dict.fromkeys(v.stage for v in values)) == [Stage.LEAF, Stage.ACROSS, Stage.CROWDED]
