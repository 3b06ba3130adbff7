"""Counters by the day: over boots, a damaged clock, and in little room."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.history.daily_values import DAY_SECONDS, KEEP_DAYS, SERIES_MAX, Days
from fairlead.history.memory import History


def points(days: Days, today: int) -> list[tuple[int, float]]:
    return [(d.days_ago, d.value) for d in days.past(today * DAY_SECONDS + 5.0)]


def test_one_value_a_day_and_runs_by_their_ends() -> None:
    days = Days()
    for day in range(100, 110):
        for second in (0, 3600):
            days.add(day * DAY_SECONDS + second, [("1", "x", 0.0 if day < 105 else 3.0)])
    assert points(days, 110) == [(10, 0.0), (6, 0.0), (5, 3.0), (1, 3.0)]


def test_the_last_value_of_a_day_counts_and_equal_ones_are_no_news() -> None:
    days = Days()
    assert days.add(100.0, [("1", "x", 0.0)]) and not days.add(200.0, [("1", "x", 0.0)])
    assert days.add(300.0, [("1", "x", 2.0)])
    assert points(days, 0) == [(0, 2.0)]


def test_old_days_and_days_to_come_are_no_past() -> None:
    days = Days()
    days.add(5 * DAY_SECONDS, [("1", "x", 0.0)])
    days.add(900 * DAY_SECONDS, [("1", "x", 1.0)])
    assert points(days, 900) == [(0, 1.0)]
    days.add(600 * DAY_SECONDS, [("1", "x", 2.0)])
    assert points(days, 600) == [(0, 2.0)]


@pytest.mark.parametrize("wrong", [1000 - 365, 1000 + 365, 0], ids=["a year back", "a year ahead", "1970"])
def test_a_clock_that_is_wrong_for_a_while_loses_no_day(wrong: int) -> None:
    """A node whose battery is empty boots in 1970, and its agent starts before the clock is set."""
    days = Days()
    for day in range(701, 1001):
        days.add(day * DAY_SECONDS, [("1", "x", float(day))])
    before = set(points(days, 1000))
    assert len(before) == 300
    for second in (0, 3600):
        assert days.add(wrong * DAY_SECONDS + second, [("1", "x", 1000.0)]) is (second == 0), "it is saved once"
        assert all(0 <= ago <= KEEP_DAYS for ago, _ in points(days, wrong))
    again = Days()
    again.merge(days.saved())
    again.add(1001 * DAY_SECONDS, [("1", "x", 1001.0)])
    assert {(ago + 1, value) for ago, value in before} <= set(points(again, 1001)), "and all days are there again"


def test_a_full_series_keeps_its_newest_days() -> None:
    days = Days()
    for day in range(1000, 1001 + KEEP_DAYS):
        days.add(day * DAY_SECONDS, [("1", "x", float(day))])
    assert not days.add(5 * DAY_SECONDS, [("1", "x", 7.0)]), "there is no room before the oldest"
    kept = points(days, 1000 + KEEP_DAYS)
    assert len(kept) == KEEP_DAYS and kept[-1] == (0, 1000.0 + KEEP_DAYS)


def test_what_was_saved_fills_up_what_is_in_memory() -> None:
    """A disk that answers late: what is in memory is of a clock that was a year behind."""
    saved, days = Days(), Days()
    for day in (990, 1000):
        saved.add(day * DAY_SECONDS, [("1", "x", float(day))])
    days.add(635 * DAY_SECONDS, [("1", "x", 1000.0)])
    days.merge(saved.saved())
    assert points(days, 1000) == [(365, 1000.0), (10, 990.0), (0, 1000.0)]


@given(st.lists(st.tuples(st.integers(0, 2 * KEEP_DAYS), st.integers(0, 3)), max_size=60))
def test_it_stays_in_order_and_bounds(steps: list[tuple[int, int]]) -> None:
    days = Days()
    for day, value in steps:
        days.add(day * DAY_SECONDS, [("1", "x", float(value))])
    found = [d for d, _ in points(days, 3 * KEEP_DAYS)]
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)
    again = Days()
    again.merge(days.saved())
    assert points(again, 900) == points(days, 900)


def test_boards_come_and_go() -> None:
    days = Days()
    days.add(1.0, ((str(n), "x", 0.0) for n in range(SERIES_MAX + 7)))
    assert len(days.past(1.0)) == SERIES_MAX


def test_history_keeps_it_over_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000 * float(DAY_SECONDS)
    monkeypatch.setattr("fairlead.history.memory.time.time", lambda: moment)
    history = History(str(tmp_path), "b")
    history.add_daily([("1", "x", 2.0)])
    history.close()
    moment += 3 * DAY_SECONDS
    other = History(str(tmp_path), "next boot")
    (one,) = other.past().daily
    assert (one.device, one.name, one.days_ago, one.value) == ("1", "x", 3, 2.0)
    other.add_daily([("1", "x", 5.0)])
    other.close()
    assert [d.value for d in History(str(tmp_path), "b").past().daily] == [2.0, 5.0]
