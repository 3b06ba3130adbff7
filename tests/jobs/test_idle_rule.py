"""A job is idle only by several signals and full coverage. Innocent classes of a simulated fleet are never told."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.jobs.idle_rule import IdleOptions, JobJudgement, judge_job
from fairlead.jobs.usage_record import GpuUsage, UsageRecord
from tests.jobs.idle_fleet import BEGIN, Played, a_run, fleet, idle_batch
from tests.jobs.made_jobs import a_finding

HOURS = 6
TIMES = range(1200, HOURS * 3600 + 1, 1200)


@cache
def record(number: int, seconds: int) -> UsageRecord:
    return next(each for each in fleet() if each.job.job == number).record(seconds)


def judged(played: Played, end: int) -> JobJudgement:
    window = [t for t in TIMES if end - 3600 <= t <= end]
    records = [record(played.job.job, t) for t in window]
    return judge_job(played.job, {played.job.nodes[0]: records}, BEGIN + end, IdleOptions())


@pytest.mark.parametrize("played", fleet(), ids=lambda p: f"{p.job.job}-{p.load.__name__}")
def test_nobody_innocent_is_told_and_every_idle_job_is_found(played: Played) -> None:
    told = [end for end in TIMES if end >= 4800 and judged(played, end).is_for_notice]
    if played.innocent:
        assert told == []
    else:
        assert told, played.load.__name__
        assert min(told) <= 7200  # work until 1200 s, then a window of an hour


IDLE = Played(a_run(1), idle_batch, False)


def window(**changes: Any) -> list[UsageRecord]:
    """Two records of an idle job, an hour apart. changes: of the last one's GPUs."""
    first, last = (record(1, t) for t in (3600, 7200))
    return [first, replace(last, gpus=tuple(replace(gpu, **changes) for gpu in last.gpus))]


def result(records: list[UsageRecord], **options: Any) -> JobJudgement:
    return judge_job(IDLE.job, {"n1": records}, BEGIN + 7200, IdleOptions(**options))


def test_the_idle_job_is_idle() -> None:
    found = result(window())
    assert (found.word, found.spared, found.idle_gpus, found.idle_seconds) == ("idle", "", 2, 3600.0)
    assert found.possible == ("not_begun",)


FIELDS = ("busy_seconds", "pcie_transmit_bytes", "pcie_receive_bytes", "memory_byte_seconds", "memory_max_bytes",
          "nvlink_transmit_bytes", "sm_active_seconds")  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_each_missing_signal_makes_it_unknown(field: str) -> None:
    assert result(window(**{field: None})).word == "unknown"


@pytest.mark.parametrize("field", ["busy_seconds", "sm_active_seconds"])
def test_each_signal_alone_makes_it_active(field: str) -> None:
    before: GpuUsage = record(1, 3600).gpus[0]
    assert result(window(**{field: getattr(before, field) + 1.0})).word == "active"


@given(missing=st.sets(st.sampled_from(FIELDS), min_size=1), part=st.floats(min_value=0, max_value=0.94))
def test_no_set_of_missing_values_is_idle(missing: set[str], part: float) -> None:
    assert result(window(**dict.fromkeys(missing))).word != "idle"
    assert result(window(seen_seconds=3600.0 + part * 3600)).word == "unknown"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clock_steps": 1}, "clock was set"),
        ({"boot_id": "other"}, "several runs or boots"),
        ({"begin_unix": BEGIN + 5}, "several runs or boots"),
        ({"end_unix": BEGIN + 7200}, "has ended"),
        ({"written_unix": BEGIN + 6000, "alloc_seconds": 6000.0}, "of 60 min"),
        ({"alloc_seconds": 5000.0}, "do not agree"),
        ({"gpus": ()}, "different GPUs"),
    ],
)
def test_records_that_do_not_fit_are_unknown(change: dict[str, Any], why: str) -> None:
    first, last = window()
    found = result([first, replace(last, **change)])
    assert found.word == "unknown"
    assert why in found.why


def test_an_old_record_is_unknown() -> None:
    assert judge_job(IDLE.job, {"n1": window()}, BEGIN + 7200 + 400, IdleOptions()).word == "unknown"


def test_a_node_without_a_record_is_unknown() -> None:
    assert judge_job(replace(IDLE.job, nodes=("n1", "n2")), {"n1": window()}, BEGIN + 7200, IdleOptions()).word == "unknown"


def test_fewer_gpus_than_slurm_allocated_is_unknown() -> None:
    assert judge_job(replace(IDLE.job, gpus=3), {"n1": window()}, BEGIN + 7200, IdleOptions()).word == "unknown"


def test_the_warm_up_is_in_no_window() -> None:
    early = [record(1, 600), record(1, 4200)]
    assert "warm-up" in judge_job(IDLE.job, {"n1": early}, BEGIN + 4200, IdleOptions()).why


def test_a_finding_spares_the_job() -> None:
    first, last = window()
    assert result([first, replace(last, findings=(a_finding("xid"),))]).spared == "hardware"


@pytest.mark.parametrize("key", ["users", "accounts", "partitions", "qos", "reservations"])
def test_exemptions(key: str) -> None:
    job = replace(IDLE.job, user="x", account="x", partition="x", qos="x", reservation="x")
    assert judge_job(job, {"n1": window()}, BEGIN + 7200, IdleOptions(**{f"exempt_{key}": ("x",)})).word == "exempt"


def test_the_classes_of_innocent_reasons_are_named() -> None:
    assert judged(next(p for p in fleet() if p.job.job == 19), 9600).spared == "memory_kept"
    assert judged(next(p for p in fleet() if p.job.job == 18), 9600).spared == "interactive"
    assert judged(next(p for p in fleet() if p.job.job == 21), 9600).spared == "server"
    assert judged(next(p for p in fleet() if p.job.job == 22), 9600).word == "partly"
    assert judged(next(p for p in fleet() if p.job.job == 23), 9600).word == "active"
