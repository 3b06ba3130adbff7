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


def test_old_days_and_days_of_a_wrong_clock_go() -> None:
    days = Days()
    days.add(5 * DAY_SECONDS, [("1", "x", 0.0)])
    days.add(900 * DAY_SECONDS, [("1", "x", 1.0)])
    assert points(days, 900) == [(0, 1.0)]
    days.add(600 * DAY_SECONDS, [("1", "x", 2.0)])
    assert points(days, 600) == [(0, 2.0)]


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
