"""A comparison of two periods is refused for each condition that it does not meet, and says which."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.jobs.allocations import joined
from fairlead.jobs.busy_definition import Period, ladder, mix
from fairlead.jobs.period_comparison import DAY, Comparison, Side, compared, gpus_by_node
from tests.jobs.made_jobs import BEGIN, a_gpu, a_job, a_record

BEFORE = Period(BEGIN, BEGIN + 28 * DAY, "before")
AFTER = Period(BEGIN + 40 * DAY, BEGIN + 68 * DAY, "after")


def side(period: Period, gpus: tuple[int, ...] = (0, 1), **changes: Any) -> tuple[Side, Any]:
    seconds = period.seconds
    job = a_job(job=int(period.begin_unix), begin_unix=period.begin_unix, end_unix=period.begin_unix + seconds)
    record = a_record(
        job.job,
        begin_unix=period.begin_unix,
        written_unix=period.begin_unix + seconds,
        alloc_seconds=seconds,
        gpus=tuple(a_gpu(n, seconds) for n in gpus),
    )
    found = joined([job], [record], BEGIN + 100 * DAY).allocations
    sums = replace(ladder(found, period), **{"capacity": 4 * seconds, **changes})
    return Side(period=period, sums=sums, mix=mix(found, period), gpus=gpus_by_node(found, period)), job


def result(before: Period = BEFORE, after: Period = AFTER, now: float = BEGIN + 100 * DAY, **changes: Any) -> Comparison:
    (one, first), (two, second) = side(before), side(after, **changes)
    return compared(one, two, [first, second], now)


def test_two_good_periods_are_compared() -> None:
    found = result()
    assert found.refused == ()
    assert found.definition == "busy/1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"after": Period(BEGIN + 40 * DAY, BEGIN + 61 * DAY, "after")}, "after has 21.0 days"),
        ({"after": Period(BEGIN + 20 * DAY, BEGIN + 60 * DAY, "after")}, "overlap"),
        ({"now": BEGIN + 50 * DAY}, "after is not over"),
        ({"gpus": (0, 2)}, "not name the same GPUs on n1"),
        ({"seen": 1.0}, "coverage of 0.0%"),
        ({"capacity": None}, "nodes.psv"),
    ],
)
def test_each_condition_is_asked_for(arguments: dict[str, Any], said: str) -> None:
    refused = result(**arguments).refused
    assert len(refused) == 1
    assert said in refused[0]


def test_all_missing_conditions_are_named_at_once() -> None:
    assert (
        len(result(after=Period(BEGIN + 10 * DAY, BEGIN + 20 * DAY, "after"), now=BEGIN + 15 * DAY, capacity=None).refused) == 5
    )


def test_rows_that_do_not_reach_over_the_period_are_noticed() -> None:
    (one, first), (two, _) = side(BEFORE), side(AFTER)
    assert [line for line in compared(one, two, [first], BEGIN + 100 * DAY).refused if "do the rows of sacct" in line]
