"""model.trend: growth of a counter over a window, by hand and against a plain model; daemon.series keeps what it needs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.history.samples import KEEP_SECONDS, SAMPLE_SECONDS, Series
from fairlead.model.check_definition import Past, Sample
from fairlead.model.trend import growth, series


def points(*pairs: tuple[float, float]) -> tuple[Sample, ...]:
    return tuple(Sample(device="1", name="x", seconds=s, value=v) for s, v in pairs)


@pytest.mark.parametrize(
    ("known", "value", "amount", "seconds"),
    [
        (((9000, 10),), 15, 5, 1000),
        (((7000, 0), (9000, 10)), 15, 5, 1000),  # what was at the window's start is not known: only what is sure
        (((7000, 10), (9000, 10)), 15, 5, 2000),  # it is: the counter did not move
        (((100, 10),), 10, 0, 2000),
        (((9000, 10), (9500, 3)), 5, 5, 1000),  # began again at zero: three, then two
        (((9000, 10), (9500, 0), (9600, 4)), 4, 4, 1000),
    ],
)
def test_growth(known: tuple[tuple[float, float], ...], value: float, amount: float, seconds: float) -> None:
    found = growth(points(*known), value, 10000.0, window_seconds=2000, least_seconds=300)
    assert found is not None and (found.amount, found.seconds) == (amount, seconds)
    assert found.per_hour == pytest.approx(3600 * amount / seconds) == pytest.approx(60 * found.per_minute)


@pytest.mark.parametrize("known", [(), ((9800, 0),), ((100, 0),), ((100, 0), (9900, 5))])
def test_no_growth_without_samples_that_reach_back(known: tuple[tuple[float, float], ...]) -> None:
    assert growth(points(*known), 7, 10000.0, window_seconds=2000, least_seconds=300) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 5, -1]), min_size=2, max_size=200))
def test_series_of_runs_say_the_same_as_all_samples(steps: list[int]) -> None:
    """-1 is a reset. One sample a minute, none dropped but inside runs: the growth is that of all samples."""
    runs, every, value = Series(), [], 0
    for minute, step in enumerate(steps):
        value = 0 if step < 0 else value + step
        runs.add(minute * SAMPLE_SECONDS, [("1", "x", float(value))])
        every.append(Sample(device="1", name="x", seconds=minute * SAMPLE_SECONDS, value=float(value)))
    now = len(steps) * SAMPLE_SECONDS
    kept = series(Past(samples=runs.all()))["1", "x"]
    assert len(kept) <= len(every)
    wanted = growth([s for s in every if now - s.seconds <= 3600], value, now, window_seconds=3600, least_seconds=60)
    found = growth(kept, value, now, window_seconds=3600, least_seconds=60)
    assert wanted is not None and found is not None
    assert found.amount == wanted.amount and abs(found.seconds - wanted.seconds) < SAMPLE_SECONDS


def test_a_counter_at_rest_takes_two_samples_and_is_stored_seldom() -> None:
    runs = Series()
    stored = 0
    for second in range(0, 20000, 10):
        runs.add(float(second), [("1", "x", 0.0)])
        stored += len(runs.unsaved())
    assert len(runs.all()) == 2 and stored < 10
    runs.add(30000.0, [("1", "x", 1.0)])
    assert [s.value for s in runs.all()] == [0.0, 1.0]
    assert runs.all()[0].seconds >= 30000 - 2 * KEEP_SECONDS


def test_what_was_stored_is_taken_in_before_what_is_here() -> None:
    runs = Series()
    runs.add(300.0, [("1", "x", 2.0)])
    runs.merge(points((100, 0), (200, 1), (300, 9)))
    assert [(s.seconds, s.value) for s in runs.all()] == [(100, 0), (200, 1), (300, 2)]
    assert not runs.add(330.0, [("1", "x", 3.0)]) and runs.add(361.0, [("1", "x", 3.0)])


def test_series_are_built_once_for_the_same_samples() -> None:
    past = Past(samples=points((200, 1), (100, 0)))
    assert series(past) is series(past)
    assert [s.seconds for s in series(past)["1", "x"]] == [100, 200]
