"""Records of one run are merged by node; what does not belong to the run is named, and a missing node is never a zero."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.jobs.usage_merge import Sum, TimePart, by_run, merged, run_key
from tests.jobs.job_reports import BEGIN, gpu_of, record_of, run_of

NOW = BEGIN + 4000.0


def test_sums_over_nodes() -> None:
    report, aside = merged(run_of(2), [record_of("gpu001"), record_of("gpu002")], NOW)
    totals = report.totals
    assert not aside and report.complete
    assert totals.busy == TimePart(pytest.approx(16 * 2520), pytest.approx(16 * 3600))
    assert totals.energy_joules == Sum(pytest.approx(16 * 1.8e6), 16)
    assert totals.cpu_seconds == 2 * 3600 * 32
    assert report.coverage_percent == pytest.approx(100)


def test_a_missing_node_lowers_the_coverage_and_is_no_zero() -> None:
    report, _ = merged(run_of(2), [record_of("gpu002")], NOW)
    assert report.missing == ("gpu001",)
    assert not report.complete
    assert report.coverage_percent == pytest.approx(50)
    assert report.totals.busy is not None and report.totals.busy.percent == pytest.approx(70)


def test_what_no_record_knows_is_not_known() -> None:
    bare = gpu_of(0, busy_seconds=None, energy_joules=None, gpm_seconds=0.0, sm_active_seconds=None, zero_seconds=None)
    totals = merged(run_of(gpus=1), [record_of("gpu001", 3600.0, 0)], NOW)[0].totals
    assert totals.busy is None and totals.energy_joules is None and totals.gpus == 0
    totals = merged(run_of(gpus=1), [record_of("gpu001", 3600.0, 0)], NOW)[0].totals
    assert totals.zero_seconds is None
    record = msgspec.structs.replace(record_of("gpu001", 3600.0, 0), gpus=(bare,))
    totals = merged(run_of(gpus=1), [record], NOW)[0].totals
    assert totals.busy is None and totals.sm is None and totals.energy_joules is None and totals.zero_seconds is None


def test_a_shared_gpu_counts_but_is_not_summed() -> None:
    record = msgspec.structs.replace(record_of("gpu001", 3600.0, 1), gpus=(gpu_of(0), gpu_of(1, shared=True)))
    totals = merged(run_of(gpus=2), [record], NOW)[0].totals
    assert (totals.gpus, totals.shared) == (2, 1)
    assert totals.energy_joules == Sum(pytest.approx(1.8e6), 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"job": 18}, "another job"),
        ({"node": "gpu009"}, "a node that the job did not have"),
        ({"uid": 1002}, "another user"),
        ({"written_unix": NOW + 86400}, "future"),
        ({"begin_unix": BEGIN + 86400.0, "written_unix": NOW}, "future"),
        ({"begin_unix": BEGIN - 7200.0}, "another time"),
        ({"gpus": (gpu_of(0, 36000.0),)}, "longer than the job had it"),
        ({"gpus": (gpu_of(0, busy_seconds=4000.0),)}, "longer than it was seen"),
        ({"gpus": (gpu_of(0, gpm_seconds=10.0),)}, "longer than GPM"),
        ({"gpus": (gpu_of(0, memory_max_bytes=1 << 60),)}, "more memory"),
    ],
)
def test_a_record_that_does_not_belong_is_set_aside(changes: dict[str, Any], why: str) -> None:
    report, (aside,) = merged(run_of(), [record_of(**changes)], NOW)
    assert why in aside.why
    assert report.records == () and report.missing == ("gpu001",)


def test_of_two_records_of_a_node_the_later_counts() -> None:
    early = record_of("gpu001", 1800.0, end_unix=None, ended_by="")
    for records in ([early, record_of()], [record_of(), early]):
        assert merged(run_of(), records, NOW)[0].records == (record_of(),)


def test_a_job_without_gpus_is_covered_by_its_nodes_time() -> None:
    report, _ = merged(run_of(2, gpus=0), [record_of("gpu001", 3600.0, 0, gap_seconds=360.0)], NOW)
    assert report.coverage_percent == pytest.approx(45)


def test_a_job_that_is_requeued_at_once_has_a_record_for_each_run() -> None:
    first, second = run_of(seconds=300, state="REQUEUED"), run_of(begin_unix=BEGIN + 430, end_unix=BEGIN + 3600)
    begin = BEGIN + 431.0
    own, later = record_of("gpu001", 300.0), record_of("gpu001", 3169.0, begin_unix=begin, begin_boot=531.0)
    later = msgspec.structs.replace(later, written_unix=BEGIN + 3600.0, end_unix=BEGIN + 3600.0)
    for records in ([own, later], [later, own]):
        assert merged(first, records, NOW)[0].records == (own,)
        assert merged(second, records, NOW)[0].records == (later,)
        of_run, left_out = by_run([first, second], records, NOW)
        assert of_run == {run_key(first): {"gpu001": own}, run_key(second): {"gpu001": later}} and left_out == ()
    of_run, left_out = by_run([first, second], [later], NOW)
    assert of_run == {run_key(second): {"gpu001": later}} and left_out == (), "the first run never reached its node"


def test_what_belongs_to_no_run_is_named() -> None:
    early = record_of("gpu001", 1800.0, end_unix=None, ended_by="")
    of_run, left_out = by_run([run_of()], [early, record_of(), record_of(job=9), record_of("gpu009")], NOW)
    assert of_run == {run_key(run_of()): {"gpu001": record_of()}}
    assert [(record.job, record.node, why) for record, why in left_out] == [
        (17, "gpu001", "is not the last record of the same job and node"),
        (9, "gpu001", "is of a job that Slurm does not know"),
        (17, "gpu009", "is of a node that the job did not have"),
    ]
