"""When the loop's own work is due."""

from __future__ import annotations

import time

import pytest

from fairlead.daemon.loop import schedule
from fairlead.daemon.loop.schedule import REQUESTS_SECONDS, TICK_SECONDS, Schedule


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that counts, CLOCK_MONOTONIC in seconds."""
    moment = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    return moment


def begun(now: list[float], interval: float = 10.0) -> Schedule:
    """One whose first tick and sweep have been."""
    made = Schedule()
    assert made.tick_due() and made.sweep_due()
    made.begin_sweep()
    assert made.requests_due()
    made.set_next_sweep(interval)
    assert not made.tick_due() and not made.sweep_due()
    return made


def test_a_sweep_and_the_ticks_between_are_due_in_their_time(now: list[float]) -> None:
    made = begun(now)
    assert made.next() == 1000.0 + TICK_SECONDS
    now[0] += TICK_SECONDS
    assert made.tick_due() and not made.sweep_due()
    now[0] = 1010.5  # an interval is between 0.95 and 1.05 of what the site says
    assert made.tick_due() and made.sweep_due()


def test_a_sweep_that_is_due_brings_a_tick_with_it(now: list[float]) -> None:
    made = begun(now, interval=0.5)
    now[0] += 0.6
    assert made.tick_due() and made.sweep_due(), "though a tick alone would have waited"


def test_what_a_tick_finds_may_have_a_sweep_at_once(now: list[float]) -> None:
    made = begun(now)
    made.sweep_now()
    assert made.next() == 0.0 and made.sweep_due()
    made.begin_sweep()
    assert not made.requests_due(), "they were read a moment ago"


def test_requests_are_read_with_a_sweep_at_most_so_often_and_at_once_when_asked(now: list[float]) -> None:
    made = begun(now, interval=1.0)
    now[0] += REQUESTS_SECONDS / 2
    made.begin_sweep()
    assert not made.requests_due()
    made.read_requests_now()
    assert made.sweep_due() and made.requests_due()
    now[0] += REQUESTS_SECONDS
    made.begin_sweep()
    assert made.requests_due()


def test_a_suspend_is_noticed_once(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = [5.0]
    monkeypatch.setattr(schedule, "asleep", lambda: asleep[0])
    made = Schedule()
    assert made.suspended_seconds() == 0.0
    asleep[0] += 0.5  # two clocks that are read one after the other
    assert made.suspended_seconds() == 0.0
    asleep[0] += 60
    assert made.suspended_seconds() == 60.5
    assert made.suspended_seconds() == 0.0
