"""A node that goes down in the run is named, and nobody and nothing else is: for all positions and rounds, with noise.

Nothing here needs Slurm. test_fabric_on_slurm.py lets a real node die over real links.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.errors import DataError
from fairlead.measure.pairs import pair_csv
from fairlead.measure.pairs.death_rounds import without_spoiled
from fairlead.measure.pairs.fabric_text import lines
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, PairLimits
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, Pair, PairValue, Stage
from fairlead.measure.pairs.round_plan import ROUNDS, PairPlan, next_round
from tests.measure.test_pair_judgement import named

GOOD = 47.0
DOWN = "no step starts on it"
ROUND_OF_DEATH_MAX = 6  # a healthy run has five rounds, and six if its crowded round is slow

Speed = Callable[[Pair, int, bool], float]  # of a pair, in a round, and whether a node dies in that round


def fabric(leaves: int, each: int) -> Leaves:
    of = {f"n{k}": f"leaf{(k - 1) // each + 1}" for k in range(1, leaves * each + 1)}
    return Leaves(source=LeafSource.DECLARED, of=of, detail="test")


class Rounds(list[PairValue]):
    """The table of a run, and the nodes that went down in it."""

    gone: dict[str, str]


def run(of: Leaves, dies: str, at_round: int, speed: Speed, *, seed: str = "x", rails: int = 1) -> Rounds:
    """All rounds of a run in which ``dies`` goes down in round ``at_round``. Its pair of that round, or of the next one in
    which it has a pair, is not measured. If it has no pair any more, the run finds it after the last round, and goes on."""
    plan = PairPlan(leaves=of, seed=seed, rails=rails)
    values = Rounds()
    values.gone = gone = {}
    while True:
        planned = next_round(plan, values, gone)
        if planned is None and dies not in gone and max(v.round for v in values) >= at_round:
            gone[dies] = DOWN
            continue
        if planned is None:
            return values
        assert planned.number < 30, "the run does not end"
        dead, found = planned.number >= at_round, False
        for a, b in planned.pairs:
            for rail in planned.rails:
                row = PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, rail=rail)
                if dead and dies in (a, b):
                    found = True
                    values.append(PairValue(**{**_fields(row), "why": f"{dies} went down"}))
                else:
                    gbps = speed((a, b), planned.number, dead and dies not in gone) / len(planned.rails)
                    values.append(PairValue(**{**_fields(row), "gbps": gbps}))
        if found:
            gone[dies] = DOWN


def _fields(row: PairValue) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def judged(of: Leaves, values: Rounds) -> FabricVerdict:
    return judge(values, of, PairLimits(), values.gone)


def noise(chance: random.Random, *, dying: float, slow: float = 0.05) -> Speed:
    """Spread and noise of 1.5 %. A fraction of all pairs (``slow``) is slow by 5 to 25 %, as on the lab's two cores. While a
    node dies, a fraction of ``dying`` is slow by 10 to 60 %."""

    def speed(pair: Pair, round_: int, dies_now: bool) -> float:
        value = GOOD * chance.gauss(1, 0.015)
        if chance.random() < slow:
            value *= 1 - chance.uniform(0.05, 0.25)
        if dies_now and chance.random() < dying:
            value *= 1 - chance.uniform(0.10, 0.60)
        return value

    return speed


def only_the_dead(of: Leaves, values: Rounds, dies: str) -> None:
    verdict = judged(of, values)
    assert [part for part in named(verdict) if part != ("gone", dies)] == [], "\n".join(lines(verdict, of, values))


@pytest.mark.parametrize("at_round", range(1, ROUND_OF_DEATH_MAX + 1))
@pytest.mark.parametrize(("leaves", "each"), [(3, 4), (4, 4), (3, 5)])
def test_whoever_dies_in_whatever_round_nothing_else_is_named(leaves: int, each: int, at_round: int) -> None:
    of = fabric(leaves, each)
    for number, dies in enumerate(of.of):
        for dying in (0.3, 0.6, 1.0):
            chance = random.Random(f"{leaves} {each} {at_round} {number} {dying}")
            values = run(of, dies, at_round, noise(chance, dying=dying), seed=str(number))
            only_the_dead(of, values, dies)


@given(st.integers(0, 11), st.integers(1, ROUND_OF_DEATH_MAX), st.sampled_from([0.2, 0.5, 0.8, 1.0]), st.integers(0, 1 << 32))
def test_no_noise_while_a_node_dies_names_anything_else(at: int, at_round: int, dying: float, seed: int) -> None:
    of = fabric(3, 4)
    dies = list(of.of)[at]
    values = run(of, dies, at_round, noise(random.Random(seed), dying=dying, slow=0), seed=str(seed))
    only_the_dead(of, values, dies)
    verdict = judged(of, values)
    assert all(node.outcome == "pass" for name, node in verdict.nodes.items() if name != dies), verdict.nodes


def test_a_slow_pair_with_a_node_that_goes_down_later_is_no_evidence() -> None:
    """n1 was slow with n2 and with n3. n3 was fast with n4, and went down in round 4. So one good partner is left."""
    of = fabric(1, 5)
    rows = [(1, "n1", "n2", 30.0), (1, "n3", "n4", GOOD), (2, "n1", "n3", 30.0), (2, "n2", "n4", GOOD), (2, "n5", "n4", GOOD)]
    values = [PairValue(round=r, node_a=a, node_b=b, gbps=gbps) for r, a, b, gbps in rows]
    assert named(judge(values, of, PairLimits())) == [("node", "n1")]
    values.append(PairValue(round=4, node_a="n3", node_b="n5", why="n3 went down"))
    verdict = judge(values, of, PairLimits(), {"n3": DOWN})
    assert named(verdict) == [("gone", "n3")]
    assert verdict.nodes["n1"].outcome == "unknown" and "no verdict" in verdict.nodes["n1"].why


def test_the_round_of_a_death_and_the_round_before_clear_and_do_not_accuse() -> None:
    of = fabric(3, 4)
    spoiled = lambda pair, round_, dies_now: GOOD * (0.6 if dies_now and "n1" in pair else 1)  # noqa: E731
    values = run(of, "n7", 2, spoiled)
    verdict = judged(of, values)
    assert named(verdict) == [("gone", "n7")] and verdict.spoiled == {2} and verdict.nodes["n1"].outcome == "pass"
    assert "note: 1 slow figure of round 2 accuses nobody: n7 went down then" in lines(verdict, of, values)
    stages = {v.round: v.stage for v in values}
    assert Counter(stages.values())[Stage.LEAF] == 3, "the round in the leaf is made again"
    assert len({v.pair for v in values}) == len(values), "and no pair of it"
    quiet = run(of, "n7", 2, lambda pair, round_, dies_now: GOOD)
    assert max(v.round for v in quiet) == 5 and not judged(of, quiet).spoiled, "what was fast needs no other round"


def test_a_node_that_was_measured_only_while_another_one_went_down_gets_no_verdict() -> None:
    of = fabric(1, 6)
    rows = [(1, "n1", "n2", 30.0), (1, "n3", "n4", GOOD), (2, "n5", "n3", GOOD), (2, "n5", "n4", GOOD)]
    values = [PairValue(round=r, node_a=a, node_b=b, gbps=gbps) for r, a, b, gbps in rows]
    values.append(PairValue(round=1, node_a="n5", node_b="n6", why="n6 went down"))
    verdict = judge(values, of, PairLimits(), {"n6": DOWN})
    assert verdict.nodes["n1"].why == "no verdict: it was measured only while another node went down"
    assert named(verdict) == [("gone", "n6")] and verdict.expected_gbps == GOOD


def test_a_pair_that_failed_before_its_node_went_down_is_no_last_figure() -> None:
    """n7 gave its last figure in round 2, failed in round 3 while slurmd still answered, and was gone in round 4."""
    of = fabric(3, 4)
    rows = [(1, "n7", "n8", GOOD), (1, "n1", "n2", 30.0), (2, "n6", "n7", GOOD), (2, "n1", "n3", 30.0), (3, "n2", "n9", 30.0)]
    values = [PairValue(round=r, node_a=a, node_b=b, gbps=gbps) for r, a, b, gbps in rows]
    values.append(PairValue(round=3, node_a="n1", node_b="n7", failed=True, why="hung, ended after 240 s"))
    values.append(PairValue(round=4, node_a="n5", node_b="n7", why="n7 went down"))
    table = without_spoiled(values, of, PairLimits(), {"n7": DOWN})
    assert table.rounds == {2: ("n7",), 3: ("n7",)}


def test_a_node_that_was_found_dead_at_the_end_may_have_died_since_its_last_figure() -> None:
    """n7 had no pair after round 2, and no step started on it after the last round."""
    of = fabric(3, 4)
    rows = [(1, "n7", "n8", GOOD), (1, "n1", "n2", 30.0), (2, "n6", "n7", GOOD), (3, "n1", "n3", 30.0), (4, "n2", "n9", 30.0)]
    values = [PairValue(round=r, node_a=a, node_b=b, gbps=gbps) for r, a, b, gbps in rows]
    assert without_spoiled(values, of, PairLimits(), {"n7": DOWN}).rounds == {3: ("n7",), 4: ("n7",)}


def test_a_rail_that_is_slow_while_a_node_goes_down_is_not_named() -> None:
    """n2 is slow with all rails. n9 goes down while single rails are measured, and rail 1 of one pair is slow only then."""
    of = fabric(3, 4)

    def speed(pair: Pair, round_: int, dies_now: bool) -> float:
        return GOOD * (0.7 if "n2" in pair else 1)

    values = run(of, "n9", 99, speed, rails=2)
    single = [v for v in values if v.rail]
    assert single and named(judge(values, of, PairLimits())) == [("node", "n2")]
    slow = [PairValue(**{**_fields(v), "gbps": 5.0}) if v.rail == "1" else v for v in single]
    lost = PairValue(round=max(v.round for v in single), node_a="n9", node_b="n10", why="n9 went down")
    early = [v for v in values if not v.rail]
    assert named(judge([*early, *slow], of, PairLimits())) == [("rail", "n2")]
    assert named(judge([*early, *slow, lost], of, PairLimits(), {"n9": DOWN})) == [("gone", "n9"), ("node", "n2")]


@pytest.mark.parametrize("at_round", range(1, ROUND_OF_DEATH_MAX + 1))
def test_what_is_really_slow_is_named_beside_a_node_that_dies(at_round: int) -> None:
    """A slow uplink, and a slow node: for each position of the node that dies, found all the same."""
    of = fabric(4, 4)
    for number, dies in enumerate(of.of):
        chance = random.Random(f"{at_round} {number}")
        other = noise(chance, dying=0.6, slow=0.02)

        def uplink(pair: Pair, round_: int, dies_now: bool, other: Speed = other) -> float:
            return other(pair, round_, dies_now) * (0.6 if sum(of.of[n] == "leaf1" for n in pair) == 1 else 1)

        values = run(of, dies, at_round, uplink, seed=str(number))
        assert ("uplink", "leaf1") in named(judged(of, values)), (dies, lines(judged(of, values), of, values))
        sick = "n16" if dies != "n16" else "n1"

        def node(pair: Pair, round_: int, dies_now: bool, sick: str = sick, other: Speed = other) -> float:
            return other(pair, round_, dies_now) * (0.6 if sick in pair else 1)

        values = run(of, dies, at_round, node, seed=str(number))
        assert ("node", sick) in named(judged(of, values)), (dies, lines(judged(of, values), of, values))


def test_a_leaf_is_named_only_beside_enough_fast_pairs_of_other_leaves() -> None:
    """All pairs of leaf1 are slow across leaves. Two fast pairs of the other leaves prove little, and three prove it."""
    of = fabric(3, 4)
    inside = [(1, "n1", "n2"), (1, "n3", "n4"), (1, "n5", "n6"), (1, "n7", "n8"), (1, "n9", "n10"), (1, "n11", "n12")]
    inside += [(2, "n1", "n3"), (2, "n2", "n4"), (2, "n5", "n7"), (2, "n6", "n8"), (2, "n9", "n11"), (2, "n10", "n12")]
    slow = [(3, "n1", "n5"), (3, "n2", "n9"), (3, "n3", "n10"), (3, "n4", "n6")]
    fast = [(3, "n7", "n11"), (3, "n8", "n12"), (4, "n7", "n12")]
    for count, part in ((2, ("scale", "")), (3, ("uplink", "leaf1"))):
        rows = [*((row, GOOD) for row in (*inside, *fast[:count])), *((row, 30.0) for row in slow)]
        values = [PairValue(round=r, node_a=a, node_b=b, gbps=gbps) for (r, a, b), gbps in rows]
        assert named(judge(values, of, PairLimits())) == [part]


def test_many_deaths_end_the_run() -> None:
    """A node dies in every round, and all that is measured is slow then: the number of rounds has a bound."""
    of = fabric(4, 8)
    plan, values = PairPlan(leaves=of, seed="x"), []
    gone: dict[str, str] = {}
    while planned := next_round(plan, values, gone):
        assert planned.number <= 2 * sum(ROUNDS.values())
        dies = planned.pairs[0][0]
        for a, b in planned.pairs:
            lost = dies in (a, b)
            words = f"{dies} went down" if lost else ""
            gbps = None if lost else GOOD * (0.6 if planned.number % 2 else 1)
            values.append(PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b, gbps=gbps, why=words))
        gone[dies] = DOWN


def test_a_recorded_table_says_which_node_went_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a death spoiled accuses nobody either if the table is judged again. Without the death, the same figures do."""
    of = fabric(3, 4)
    values = run(of, "n7", 3, lambda pair, round_, dies_now: GOOD * (0.6 if dies_now else 1))
    file, topology = tmp_path / "pairs.csv", tmp_path / "topology"
    topology.write_text("".join(f"leaf{k}: n[{4 * k - 3}-{4 * k}]\n" for k in (1, 2, 3)))
    file.write_text(pair_csv.render(values, {"n7": DOWN}))
    assert ",down:n7,across\n" in file.read_text()
    read = pair_csv.parse(file.read_text(), "t.csv")
    assert pair_csv.went_down(read).keys() == {"n7"}
    assert main(["accept", "--judge", str(file), "--topology", str(topology), "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert [(part["kind"], part["name"]) for part in data["guilty"]] == [("gone", "n7")]
    assert [(v.round, v.pair, v.gbps and round(v.gbps, 3)) for v in read] == [
        (v.round, v.pair, v.gbps and round(v.gbps, 3)) for v in values
    ]
    assert main(["accept", "--judge", str(file), "--topology", str(topology)]) == 3
    assert "n7: unknown: it went down in the run" in capsys.readouterr().out


def test_a_node_that_went_down_is_one_of_its_pair() -> None:
    for figure in ("down:n3", "down:", "down", "down:n1:n3"):
        with pytest.raises(DataError, match=r"line 1: gbps .* is neither"):
            pair_csv.parse(f"1,n1,n2,,{figure}\n", "t.csv")
    both = pair_csv.parse("1,n1,n2,,down:n1:n2\n", "t.csv")
    assert pair_csv.went_down(both).keys() == {"n1", "n2"} and pair_csv.render(both, pair_csv.went_down(both)).endswith(
        "1,n1,n2,,down:n1:n2,\n"
    )
