"""A figure beside its class and its reference: a table, and what holds whatever the figures are."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.measure.judge_figure import OWN_MIN, Judgement, judge, medians_of_others
from fairlead.measure.tool import MeasuredOutcome, worst

P, W, F, U = MeasuredOutcome.PASS, MeasuredOutcome.WARN, MeasuredOutcome.FAIL, MeasuredOutcome.UNKNOWN


def nodes(*values: float) -> list[list[float]]:
    return [[v] for v in values]


@pytest.mark.parametrize(
    ("value", "siblings", "reference", "outcome", "says"),
    [
        # by the reference alone: fewer than 3 others
        (470, [], 470, P, "1.00 of the reference"),
        (400, nodes(470, 470), 470, P, "0.85 of the reference"),
        (399.4, nodes(470, 470), 470, F, "0.85 of the reference"),
        (0, [], 470, F, "0.00 of the reference"),
        # by the class alone
        (96, nodes(100, 100, 100), None, P, ""),
        (94.9, nodes(100, 100, 100), None, W, "0.95 of the class median 100 (3 other nodes)"),
        (85.1, nodes(100, 100, 100), None, W, "of the class median"),
        (84.9, nodes(100, 100, 100), None, F, "0.85 of the class median"),
        # a node does not vouch for itself: a slow class of two does not hide behind the third
        (100, nodes(100, 100), None, U, "no reference: the profile has no reference, and 2 other nodes"),
        (100, [], None, U, "no other nodes of the class measured, 3 needed"),
        # both: the worse of the two
        (460, nodes(500, 500, 500), 470, W, "0.92 of the class median"),
        (300, nodes(300, 300, 300), 470, F, "0.64 of the reference"),  # the whole class is slow
        (420, nodes(500, 500, 500), 470, F, "0.84 of the class median"),
        # MAD: from 5 figures on; equal figures count as spread by 1 %
        (97.5, nodes(100, 100, 100, 100), None, P, ""),
        (96.9, nodes(100, 100, 100, 100, 100), None, W, "MAD below"),
        (97.1, nodes(100, 100, 100, 100, 100), None, P, ""),
        (96, nodes(98, 99, 100, 101, 102, 97, 103), None, P, ""),  # MAD 2
        # one bad sibling moves neither median nor MAD
        (98, nodes(100, 100, 100, 100, 1), None, P, ""),
        # what is no measurement
        (math.nan, nodes(100, 100, 100), 100, U, "no measurement"),
        (math.inf, nodes(100, 100, 100), 100, U, "no measurement"),
        (-3, nodes(100, 100, 100), 100, U, "no measurement"),
        (100, nodes(math.nan, math.inf, 0, -1), None, U, "no reference"),
    ],
)
def test_judge(value: float, siblings: list[list[float]], reference: float | None, outcome: MeasuredOutcome, says: str) -> None:
    judgement = judge(value, siblings=siblings, reference=reference)
    assert judgement.outcome is outcome, judgement
    assert says in judgement.why


def test_what_alone_judges_is_said() -> None:
    assert "the class alone judges" in judge(100, siblings=nodes(100, 100, 100)).notes[0]
    assert "the reference alone judges" in judge(100, reference=100).notes[0]
    assert not judge(100, siblings=nodes(100, 100, 100), reference=100).notes


def test_a_gpu_beside_the_others_of_its_node() -> None:
    own = [400.0] * 7
    assert judge(370, own=own, reference=400).outcome is W
    assert "of its siblings on the node" in judge(370, own=own, reference=400).why
    assert judge(390, own=own, reference=400).outcome is P
    alone = judge(370, own=own)  # equal GPUs of one node may all be slow
    assert alone.outcome is U and "no reference" in alone.why
    assert judge(370, own=[400.0, 400.0], reference=400).outcome is P  # too few


@given(st.lists(st.one_of(st.integers(-1, 5), st.floats(0.5, 9.5)), max_size=9))
def test_the_median_of_the_others_is_that_of_the_list_without_the_figure(values: list[float]) -> None:
    for at, found in enumerate(medians_of_others(values)):
        others = [v for v in values[:at] + values[at + 1 :] if v > 0]
        assert found == (median(others) if len(others) >= OWN_MIN else None)


def test_faster_is_noted_and_passes() -> None:
    judgement = judge(120, siblings=nodes(100, 100, 100, 100, 100))
    assert judgement.outcome is P and any("above the class" in note for note in judgement.notes)


def test_worst() -> None:
    assert worst(()) is U
    assert worst((P, MeasuredOutcome.ABSENT)) is MeasuredOutcome.ABSENT
    assert worst((P, W, U)) is U and worst((U, F, P)) is F and worst((P, P)) is P


figure = st.floats(min_value=1e-3, max_value=1e6)
others = st.lists(st.lists(figure, min_size=1, max_size=4), max_size=8)
anything = st.floats(allow_nan=True, allow_infinity=True)


@given(anything, st.lists(st.lists(anything, max_size=4), max_size=8), st.lists(anything, max_size=8), st.none() | anything)
def test_never_nan_never_a_pass_by_default(
    value: float, siblings: list[list[float]], own: list[float], reference: float | None
) -> None:
    judgement = judge(value, siblings=siblings, own=own, reference=reference)
    assert "nan" not in judgement.why or not math.isfinite(value)
    for number in (judgement.median, judgement.mad, judgement.reference):
        assert number is None or (math.isfinite(number) and number > 0)
    if judgement.outcome in (P, W):
        assert judgement.median is not None or judgement.reference is not None
        assert math.isfinite(value) and value > 0


@given(figure, others, st.none() | figure, st.integers(-8, 8))
def test_the_unit_does_not_matter(value: float, siblings: list[list[float]], reference: float | None, power: int) -> None:
    scale = 2.0**power  # exact: no rounding moves a figure over a threshold
    scaled = judge(
        value * scale,
        siblings=[[v * scale for v in each] for each in siblings],
        reference=None if reference is None else reference * scale,
    )
    assert scaled.outcome is judge(value, siblings=siblings, reference=reference).outcome


@given(figure, others, st.none() | figure, st.randoms())
def test_the_order_does_not_matter(value: float, siblings: list[list[float]], reference: float | None, random: object) -> None:
    first = judge(value, siblings=siblings, reference=reference)
    again = judge(value, siblings=[each[::-1] for each in siblings[::-1]], reference=reference)
    assert (first.outcome, first.median, first.mad) == (again.outcome, again.median, again.mad)


@given(figure, st.floats(0.1, 1), others, st.none() | figure)
def test_slower_is_never_better(value: float, fraction: float, siblings: list[list[float]], reference: float | None) -> None:
    order = (P, W, U, F)

    def rank(judgement: Judgement) -> int:
        return order.index(judgement.outcome)

    slow, fast = (judge(v, siblings=siblings, reference=reference) for v in (value * fraction, value))
    assert rank(slow) >= rank(fast)
