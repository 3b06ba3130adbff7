"""The busy seconds of a GPU are the integral of its samples; time without samples is marked, and lost time is a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host.busy_time import BusyTime, Sample

SECOND = 1_000_000_000
UNIX = 1_700_000_000 * SECOND  # CLOCK_REALTIME - CLOCK_MONOTONIC


def stamps(first: float, last: float, percent: int, *, apart: float = 0.2, offset: int = UNIX) -> list[Sample]:
    """Samples from ``first`` to ``last``, seconds of CLOCK_MONOTONIC."""
    count = round((last - first) / apart)
    return [((offset + round((first + (i + 1) * apart) * SECOND)) // 1000, percent) for i in range(count)]


def at(seconds: float) -> int:
    return round(seconds * SECOND)


def add(sums: BusyTime, samples: list[Sample], now: float, *, wait: bool = True, step: int = 0) -> None:
    sums.add(samples, at(now), UNIX + step + at(now), wait=wait)


def said(sums: BusyTime) -> tuple[float, float, float, float]:
    """Until, measured, busy and spot in seconds."""
    return tuple(round(v / SECOND, 3) for v in (sums.until, sums.measured, sums.busy, sums.spot))  # type: ignore[return-value]


@pytest.mark.parametrize("offset", [UNIX, 0], ids=["unix time", "time since boot"])
def test_the_integral_of_the_samples(offset: int) -> None:
    sums = BusyTime(at(100))
    add(sums, stamps(90, 100, 100, offset=offset), 100)
    assert said(sums) == (100, 0, 0, 0), "samples of the time before the agent began do not count"
    add(sums, stamps(100, 107, 100, offset=offset) + stamps(107, 114, 25, offset=offset), 114.1)
    assert said(sums) == (114, 14, 8.75, 0)


def test_samples_that_come_unsorted_or_twice_count_once() -> None:
    sums = BusyTime(at(100))
    samples = stamps(100, 110, 50)
    add(sums, samples[::-1] + samples[:20] + [(0, 0), (5, 100)], 110)
    assert said(sums) == (110, 10, 5, 0)
    add(sums, samples, 110.1)
    assert said(sums) == (110, 10, 5, 0)


@pytest.mark.parametrize("wrong", [101, 4_294_967_295])
def test_a_value_that_is_no_percentage_is_no_sample(wrong: int) -> None:
    sums = BusyTime(at(100))
    add(sums, stamps(100, 105, 40) + stamps(105, 114, wrong), 105.1)
    assert said(sums) == (105, 5, 2, 0)


def test_a_buffer_that_is_too_short_loses_time_and_that_is_a_gap() -> None:
    sums = BusyTime(at(100))
    add(sums, stamps(96, 100, 0), 100)  # the driver keeps four seconds
    for now in (114, 128):
        for spot in range(now - 13, now + 1):
            sums.look(at(spot), 100)
        add(sums, stamps(now - 4, now, 100), now)
    until, measured, busy, spot = said(sums)
    assert (until, spot) == (128, 0) and measured == busy == pytest.approx(8, abs=0.5)
    assert sums.lost_samples


def test_a_driver_that_takes_no_samples_while_idle_leaves_time_to_the_spot_values() -> None:
    sums = BusyTime(at(100))
    add(sums, stamps(76, 100, 100), 100)
    for now in range(101, 115):
        sums.look(at(now), 0)
    add(sums, [], 114)
    assert said(sums) == (114, 14, 0, 14)
    for now in range(115, 129):
        sums.look(at(now), 0 if now < 125 else 100)
    add(sums, stamps(124, 128, 100), 128)
    until, measured, busy, spot = said(sums)
    assert (until, measured) == (128, 28) and busy == pytest.approx(4, abs=0.3) and spot == pytest.approx(24, abs=0.3)
    assert not sums.lost_samples


def test_without_samples_each_spot_value_stands_for_the_time_before_it() -> None:
    sums = BusyTime(at(100))
    sums.look(at(100), 0)
    for now, percent in ((101, 50), (102, 100), (103, None), (104, 100)):
        sums.look(at(now), percent)
    add(sums, [], 104, wait=False)
    assert said(sums) == (104, 3, 2.5, 3), "the value at 103 s could not be read, so one second is a gap"
    sums.look(at(204), 100)
    add(sums, [], 204, wait=False)
    assert said(sums) == (204, 3, 2.5, 3), "one reading does not stand for 100 s"


def test_a_step_of_the_clock_moves_no_sample_to_another_time() -> None:
    sums = BusyTime(at(100))
    sums.look(at(100), 0)
    add(sums, stamps(80, 100, 0), 100)
    sums.look(at(114), 30)
    forward = 3600 * SECOND
    add(sums, stamps(100, 114, 100), 114, step=forward)  # the samples' stamps are of the clock before the step
    until, measured, busy, spot = said(sums)
    assert (until, measured, spot) == (114, 14, 14) and busy == pytest.approx(4.2)


def test_after_an_outage_the_sums_begin_anew_where_the_gpu_answers_again() -> None:
    sums = BusyTime(at(100))
    add(sums, stamps(100, 110, 100), 110)
    sums.restart(at(120))
    add(sums, stamps(100, 124, 100), 124)
    assert said(sums) == (124, 14, 14, 0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 100),
            st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 200)), max_size=40),
            st.none() | st.integers(0, 100),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_whatever_a_driver_says_sums_never_fall_and_nothing_is_counted_twice(
    readings: list[tuple[float, list[tuple[float, int]], int | None, bool]],
) -> None:
    now = 1000.0
    sums = BusyTime(at(now))
    before = said(sums)
    for passed, samples, spot, wait in readings:
        now += passed
        sums.look(at(now), spot)
        add(sums, [((UNIX + at(now + ago)) // 1000, percent) for ago, percent in samples], now, wait=wait)
        after = said(sums)
        assert all(b >= a for a, b in zip(before, after, strict=True))
        assert sums.measured <= sums.until - sums.began <= at(now) - sums.began
        assert 0 <= sums.busy <= sums.measured and 0 <= sums.spot <= sums.measured
        before = after
