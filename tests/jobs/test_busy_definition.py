"""busy/1: the sums of a period, with bands for what nobody measured. Cost lines that lack a price are left out with why."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET as NOT_SET
from msgspec.structs import replace

from fairlead.jobs.allocations import joined
from fairlead.jobs.busy_definition import Period, ladder, ladders_by, mix, with_capacity
from fairlead.jobs.cost_and_energy import UsageOptions, cost_lines
from fairlead.jobs.node_rows import NodeEvent, NodeGpus
from tests.jobs.made_jobs import BEGIN, HOUR, a_gpu, a_job, a_record, allocations

DAY = Period(BEGIN, BEGIN + 24 * HOUR, "day")


def test_a_whole_job_with_its_record() -> None:
    sums = ladder(allocations(a_job(), a_record()), DAY)
    assert sums.allocated == 8 * HOUR
    assert sums.seen == 8 * HOUR
    assert sums.busy == pytest.approx(7.2 * HOUR)
    assert sums.sm_of_busy == pytest.approx(0.6 / 0.9)
    assert sums.coverage == 1.0
    band = sums.busy_of_allocated
    assert band is not None
    assert band.low == pytest.approx(0.9) == band.high


def test_a_node_without_a_record_is_a_band_and_no_zero() -> None:
    job = a_job(gpus=4, nodes=("n1", "n2"))
    sums = ladder(allocations(job, a_record()), DAY)
    assert sums.allocated == 16 * HOUR
    assert sums.unmeasured == 8 * HOUR
    assert sums.nodes_without_record == 1
    band = sums.busy_of_allocated
    assert band is not None
    assert (band.measured, band.low, band.high) == pytest.approx((0.9, 0.45, 0.95))


def test_without_any_measurement_there_is_no_ratio() -> None:
    sums = ladder(allocations(a_job()), DAY)
    assert sums.busy_of_allocated is None
    assert sums.sm_of_busy is None
    assert sums.coverage == 0.0


def test_a_gpu_without_gpm_lowers_no_sm_ratio() -> None:
    old = a_gpu(1, sm_active_seconds=None, tensor_active_seconds=None, gpm_seconds=0.0)
    sums = ladder(allocations(a_job(), a_record(gpus=(a_gpu(0), old))), DAY)
    assert sums.sm_of_busy == pytest.approx(0.6 / 0.9)
    band = sums.sm_of_allocated
    assert band is not None
    assert (band.low, band.high) == pytest.approx((0.3, 0.8))


def test_a_mig_device_without_utilisation_is_unmeasured() -> None:
    sums = ladder(
        allocations(a_job(gpus=1), a_record(gpus=(a_gpu(0, mig="1/0/1g.10gb", busy_seconds=None, energy_joules=None),))), DAY
    )
    assert sums.unmeasured == 4 * HOUR
    assert sums.energy_seen == 0.0


def test_shared_gpus_are_in_no_figure() -> None:
    shared = tuple(a_gpu(i, shared=True) for i in range(2))
    sums = ladder(allocations(a_job(gpus=0), a_record(gpus=shared)), DAY)
    assert (sums.allocated, sums.busy, sums.shared) == (0.0, 0.0, 8 * HOUR)


def test_a_job_that_lies_partly_in_the_period_is_divided() -> None:
    half = Period(BEGIN + 2 * HOUR, BEGIN + 24 * HOUR, "half")
    sums = ladder(allocations(a_job(), a_record()), half)
    assert sums.allocated == 4 * HOUR == sums.divided
    assert sums.busy == pytest.approx(3.6 * HOUR)


def test_capacity_and_time_out_of_service() -> None:
    sums = ladder(allocations(a_job(), a_record()), DAY)
    nodes = [NodeGpus(node="n1", gpus=2, partitions=("gpu",))]
    events = [NodeEvent(node="n1", begin_unix=BEGIN + 6 * HOUR, end_unix=BEGIN + 12 * HOUR)]
    events += [NodeEvent(node="n1", begin_unix=BEGIN + 10 * HOUR, end_unix=BEGIN + 14 * HOUR)]
    found = with_capacity(sums, nodes, events, DAY)
    assert found.capacity == 48 * HOUR
    assert found.available == 32 * HOUR
    assert found.allocated_of_available == 0.25
    assert with_capacity(sums, None, events, DAY).capacity is None
    assert with_capacity(sums, nodes, None, DAY).available is None


@given(cuts=st.lists(st.floats(min_value=0, max_value=24 * HOUR), max_size=6))
def test_the_parts_of_a_period_are_the_whole(cuts: list[float]) -> None:
    at = sorted({0.0, 24 * HOUR, *cuts})
    found = allocations(a_job(), a_record())
    parts = [ladder(found, Period(BEGIN + a, BEGIN + b)) for a, b in pairwise(at)]
    whole = ladder(found, DAY)
    for name in ("allocated", "seen", "busy", "energy_joules"):
        assert sum(getattr(p, name) for p in parts) == pytest.approx(getattr(whole, name))


@given(seen=st.floats(min_value=0, max_value=4 * HOUR), busy=st.floats(min_value=0, max_value=1))
def test_the_truth_lies_in_the_band(seen: float, busy: float) -> None:
    gpu = a_gpu(0, seen_seconds=seen, gap_seconds=4 * HOUR - seen, busy_seconds=busy * seen, zero_seconds=None)
    band = ladder(allocations(a_job(gpus=1), a_record(gpus=(gpu,))), DAY).busy_of_allocated
    if band is not None:
        assert band.low <= busy * seen / (4 * HOUR) + 1e-9
        assert band.low <= band.high <= 1.0
        assert band.high >= 1 - seen / (4 * HOUR) - 1e-9


def test_rows_by_account_and_the_mix() -> None:
    jobs = [a_job(1), a_job(2, account="chemistry", gpus=2, nodes=("n2",), kind="interactive")]
    found = joined(jobs, [a_record(1), a_record(2, "n2")], BEGIN + 9 * HOUR).allocations
    rows = ladders_by(found, DAY, lambda each: each.job.account)
    assert [name for name, _ in rows] == ["chemistry", "physics"]
    assert mix(found, DAY)["interactive"] == 8 * HOUR == mix(found, DAY)["batch"]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (a_record(99), "a job that Slurm does not know"),
        (a_record(1, "n9"), "a node that the job did not have"),
        (a_record(1, begin_unix=BEGIN + 30 * HOUR), "another time"),
        (a_record(1, begin_unix=BEGIN + 10**8, written_unix=BEGIN + 10**8), "from the future"),
    ],
)
def test_a_record_that_is_of_no_job_is_named(record: Any, why: str) -> None:
    found = joined([a_job()], [record], BEGIN + 40 * HOUR)
    assert found.allocations[0].record is None
    assert why in found.left_out[0][1]


def test_the_runs_of_a_requeued_job_are_told_apart() -> None:
    second = replace(a_job(), begin_unix=BEGIN + 5 * HOUR, end_unix=BEGIN + 9 * HOUR)
    later = a_record(begin_unix=BEGIN + 5 * HOUR + 2, written_unix=BEGIN + 9 * HOUR, end_unix=BEGIN + 9 * HOUR)
    found = joined([a_job(), second], [later, a_record()], BEGIN + 40 * HOUR)
    assert [a.record.begin_unix for a in found.allocations if a.record] == [BEGIN + 2, BEGIN + 5 * HOUR + 2]


# -- cost ---------------------------------------------------------------------------------------------

ALL = UsageOptions(
    currency="EUR", gpu_hour_price=2.0, kwh_price=0.25, pue=1.3, pue_date="2026-09-30",
    grid_low_grams_per_kwh=200.0, grid_high_grams_per_kwh=400.0, grid_name="DE", grid_date="2026-09-30",
)  # fmt: skip


def lines(options: UsageOptions, **changes: Any) -> dict[str, Any]:
    sums = replace(ladder(allocations(a_job(), a_record()), DAY), **changes)
    return {line.name: line for line in cost_lines(sums, options)}


def test_cost_energy_and_carbon() -> None:
    found = lines(ALL)
    assert found["cost"].low == 16.0
    assert found["energy of GPUs"].low == pytest.approx(4.0)
    assert found["energy with the machine room"].low == pytest.approx(5.2)
    assert (found["carbon"].low, found["carbon"].high) == pytest.approx((1.04, 2.08))
    assert "2026-09-30" in found["carbon"].basis


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("gpu_hour_price", {"cost", "cost of idle time"}),
        ("kwh_price", {"price of this energy"}),
        ("pue", {"energy with the machine room", "carbon"}),
        ("grid_low_grams_per_kwh", {"carbon"}),
        ("grid_high_grams_per_kwh", {"carbon"}),
    ],
)
def test_a_missing_price_leaves_its_lines_out_with_why(missing: str, names: set[str]) -> None:
    found = lines(replace(ALL, **{missing: NOT_SET}))
    assert {name for name, line in found.items() if line.left_out} == names
    assert all(missing in line.left_out and line.low is None for line in found.values() if line.left_out)


def test_a_factor_without_a_date_does_not_count() -> None:
    assert lines(replace(ALL, pue_date=""))["carbon"].left_out
    assert lines(replace(ALL, grid_date=""))["carbon"].left_out


def test_unknown_energy_is_no_zero() -> None:
    assert lines(ALL, energy_seen=0.0)["energy of GPUs"].left_out
