"""The checkpoint hint: the published examples, what counts as one failure, and when there is no hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.checkpoint_interval import JobEnd, best_interval, distinct_failures, failure_rate, hint, losses_of
from fairlead.fleet.small_group_statistics import poisson_interval

DAY = 86400.0
HOUR = 3600.0


def job(number: int, end: float, failed: str = "", nodes: tuple[str, ...] = ("n1", "n2"), **changes: object) -> JobEnd:
    values: dict[str, object] = {
        "job": number,
        "nodes": nodes,
        "begin_unix": end - DAY,
        "end_unix": end,
        "state": "COMPLETED",
        "failed": failed,
        "failed_nodes": nodes if failed else (),
    }
    return JobEnd(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("mean", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (0.25 * HOUR, 9.1)])
def test_the_interval_is_that_of_dalys_figures(mean: float, minutes: float) -> None:
    assert best_interval(300, mean) / 60 == pytest.approx(minutes, abs=0.5)


def test_a_save_that_takes_longer_than_a_failure_comes() -> None:
    assert best_interval(100, 40) == 40


@pytest.mark.parametrize(("count", "low", "high"), [(0, 0, 3.69), (5, 1.62, 11.67), (10, 4.80, 18.39), (30, 20.24, 42.83)])
def test_the_interval_of_a_count(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == pytest.approx((low, high), abs=0.01)


@given(st.floats(1, 600), st.floats(HOUR, 1000 * DAY), st.floats(0.2, 5))
def test_no_other_interval_is_better(save: float, mean: float, factor: float) -> None:
    def overhead(interval: float) -> float:
        return save / interval + (interval + save) / (2 * mean)

    best = best_interval(save, mean)
    assert overhead(best) <= overhead(best * factor) * 1.02


def days(failures: int, node_days: float) -> list[JobEnd]:
    """Jobs of one node and one day each, a week apart where they fail."""
    return [job(n, (n + 1) * DAY, "NODE_FAIL" if n < failures else "", (f"n{n}",)) for n in range(int(node_days))]


def test_the_example_of_eleven_failures() -> None:
    rate = failure_rate(days(11, 3105), 0, 3105 * DAY)
    found = hint(64, 120, rate)
    assert (rate.failures, rate.node_days) == (11, 3105)
    assert rate.per_thousand == pytest.approx((1.77, 6.34), abs=0.01)
    assert found.mean_seconds == pytest.approx(4.41 * DAY, rel=0.01)
    assert (found.mean_low_seconds, found.mean_high_seconds) == pytest.approx((2.46 * DAY, 8.84 * DAY), rel=0.01)
    assert found.interval_seconds == pytest.approx(2.63 * HOUR, rel=0.01)
    assert (found.interval_low_seconds, found.interval_high_seconds) == pytest.approx((1.97 * HOUR, 3.74 * HOUR), rel=0.01)
    assert found.overhead_percent == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize(
    ("nodes", "save", "failures", "why"),
    [
        (64, 120.0, 4, "too few failures"),
        (64, 120.0, 0, "too few failures"),
        (3, 120.0, 30, "fewer than 4 nodes"),
        (64, None, 30, "the save time is not known"),
    ],
)
def test_no_hint_and_why(nodes: int, save: float | None, failures: int, why: str) -> None:
    found = hint(nodes, save, failure_rate(days(failures, 100), 0, 100 * DAY))
    assert found.interval_seconds is None and why in found.why_none


def test_no_failure_is_an_upper_bound_and_not_never() -> None:
    found = hint(64, 120.0, failure_rate(days(0, 100), 0, 100 * DAY))
    assert found.mean_seconds is None and found.mean_high_seconds is None
    assert found.mean_low_seconds == pytest.approx(100 * DAY / 3.69 / 64, rel=0.01)


def test_nothing_has_run() -> None:
    found = hint(64, 120.0, failure_rate([], 0, DAY))
    assert found.mean_low_seconds is None and "nothing is known" in found.why_none


@pytest.mark.parametrize(
    ("jobs", "count"),
    [
        ([job(1, DAY, "NODE_FAIL"), job(2, DAY + 30, "NODE_FAIL")], 1),  # one node went, and two jobs shared it
        ([job(1, DAY, "NODE_FAIL", ("n1",)), job(2, DAY + 30, "NODE_FAIL", ("n2",))], 2),
        ([job(1, DAY, "NODE_FAIL"), job(2, 2 * DAY, "NODE_FAIL")], 2),
        ([job(1, DAY, "drain xid"), job(2, 3 * DAY, "drain xid")], 1),  # nobody has repaired it
        ([job(1, DAY, "drain xid"), job(2, 3 * DAY, "drain ecc")], 2),
        ([job(1, DAY, "drain xid"), job(2, 20 * DAY, "drain xid")], 2),
        ([job(n, n * 3 * DAY, "drain xid") for n in range(1, 9)], 1),  # it comes again and again
        ([job(1, DAY, "drain xid"), job(2, DAY + 60, "NODE_FAIL")], 1),  # the finding, and the end that it led to
        ([job(1, DAY)], 0),
    ],
)
def test_what_is_one_failure(jobs: list[JobEnd], count: int) -> None:
    assert len(distinct_failures(jobs)) == count


def test_only_time_in_the_window_is_exposure() -> None:
    rate = failure_rate([job(1, 10 * DAY, begin_unix=0.0)], 4 * DAY, 6 * DAY)
    assert rate.node_days == 4 and rate.failures == 0


def test_losses_of_a_partition() -> None:
    jobs = [
        job(1, DAY, state="PREEMPTED", partition="low", begin_unix=DAY - 600),
        job(2, DAY, state="TIMEOUT", partition="low"),
        job(3, DAY, partition="low"),
        job(4, DAY, state="PREEMPTED", partition="high"),
        job(5, DAY, state="RUNNING", partition="low", ended=False),
    ]
    found = losses_of(jobs, "low")
    assert (found.jobs, found.preempted, found.timed_out) == (3, 1, 1)
    assert found.lost_node_hours == pytest.approx(2 * (600 + 1800) / 3600)
    assert losses_of(jobs, "").preempted == 2
