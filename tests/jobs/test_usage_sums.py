"""Readings add up to what a job used. What was not measured is a gap, and never 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.gpu_usage_sums import GpuReading
from fairlead.jobs.usage_record import BINS, GpuUsage, JobFinding, UsageRecord, decoded, encoded
from fairlead.jobs.usage_sums import (
    HostReading,
    OpenUsage,
    begun,
    continued,
    ended,
    lost,
    passed,
    with_findings,
    with_gpus,
    with_host,
)
from fairlead.model.gpu_activity import GpuActivity

UNIX = 1_790_000_000.0
NEW = UsageRecord(
    job=7, node="n1", boot_id="b", begin_unix=UNIX + 100, begin_boot=100.0, written_unix=UNIX + 100, alloc_seconds=0
)


def start(at: float = 100.0) -> OpenUsage:
    return begun(NEW, agent_boot=at)


def gpu(at: float, **sums: float) -> GpuReading:
    """A reading at a time. ``sums``: fields of GpuActivity, or memory_used_bytes."""
    memory = sums.pop("memory_used_bytes", None)
    sums = {"busy_seconds": 0.0, "measured_seconds": 0.0} | sums
    activity = GpuActivity(**sums)  # type: ignore[arg-type]
    return GpuReading(
        uuid="GPU-1", pci="0000:1b:00.0", at=at, activity=activity, memory_used_bytes=None if memory is None else int(memory)
    )


def read(opened: OpenUsage, *readings: GpuReading) -> OpenUsage:
    for reading in readings:
        opened = with_gpus(passed(opened, boot=reading.at, unix=UNIX + reading.at), [reading])
    return opened


def of(opened: OpenUsage) -> GpuUsage:
    return opened.record.gpus[0]


def test_the_difference_of_two_readings_is_added() -> None:
    opened = read(
        start(),
        gpu(102, measured_seconds=50, busy_seconds=40, energy_joules=1000, memory_used_bytes=10),
        gpu(112, measured_seconds=60, busy_seconds=45, energy_joules=3000, memory_used_bytes=30),
    )
    found = of(opened)
    assert (found.seen_seconds, found.gap_seconds, opened.record.alloc_seconds) == (10, 2, 12)
    assert (found.busy_seconds, found.energy_joules, found.energy_gap_seconds) == (5, 2000, 2)
    assert (found.memory_max_bytes, found.memory_byte_seconds, found.memory_seconds) == (30, 300, 10)
    assert found.histogram_seconds == (0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0)
    assert found.first_busy_seconds == 12
    assert found.zero_seconds == 0


@pytest.mark.parametrize(("busy", "bin_"), [(0.0, 0), (0.001, 1), (1.0, 1), (1.01, 2), (5.0, 5), (9.0, 9), (9.5, 10), (10.0, 10)])
def test_the_bins_of_the_histogram(busy: float, bin_: int) -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10, busy_seconds=busy))
    assert [i for i, seconds in enumerate(of(opened).histogram_seconds) if seconds] == [bin_]
    assert len(of(opened).histogram_seconds) == BINS


def test_what_was_not_read_is_absent() -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10, busy_seconds=5))
    found = of(opened)
    assert found.energy_joules is None and found.sm_active_seconds is None and found.pcie_receive_bytes is None
    assert found.memory_max_bytes is None and found.memory_byte_seconds is None
    assert found.energy_gap_seconds == 10


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_bytes_that_were_once_not_read_are_absent_and_never_0(at: int) -> None:
    """The GPU is measured all the time. A sum that lacks a part would say that the job has moved fewer bytes."""
    readings = []
    for number in range(5):
        sums = {"measured_seconds": 10.0 * number, "pcie_receive_bytes": 500.0 * number, "energy_joules": 50.0 * number}
        if number == at:  # the first reading is only where the sums begin
            del sums["pcie_receive_bytes"]
        readings.append(gpu(102 + 10 * number, **sums))
    usage = of(read(start(), *readings))
    assert usage.pcie_receive_bytes is None
    assert usage.energy_joules == 200


def test_bytes_of_a_gpu_that_did_not_answer_are_known_as_far_as_it_answered() -> None:
    usage = of(
        read(
            start(),
            gpu(102, measured_seconds=10, pcie_receive_bytes=100),
            gpu(112, measured_seconds=20, pcie_receive_bytes=200),
            gpu(122, measured_seconds=20, gap_seconds=10, pcie_receive_bytes=200),
            gpu(132, measured_seconds=30, gap_seconds=10, pcie_receive_bytes=400),
        )
    )
    assert usage.pcie_receive_bytes == 300 and usage.gap_seconds > 10


def test_a_gpu_of_which_nothing_was_measured_has_a_gap_and_no_busy_seconds() -> None:
    found = of(passed(read(start(), gpu(100)), boot=160, unix=UNIX + 160))
    assert (found.busy_seconds, found.zero_seconds, found.seen_seconds, found.gap_seconds) == (None, None, 0, 60)


def test_the_longest_time_without_work() -> None:
    steps = [(0, 0), (10, 0), (20, 0), (30, 5), (40, 5)]  # measured, busy
    opened = read(start(), *(gpu(100 + m, measured_seconds=m, busy_seconds=b) for m, b in steps))
    assert (of(opened).zero_seconds, of(opened).longest_zero_seconds, of(opened).first_busy_seconds) == (30, 20, 30)


def test_a_gap_breaks_the_longest_time_without_work() -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10), gpu(130, measured_seconds=20, gap_seconds=10))
    assert (of(opened).zero_seconds, of(opened).longest_zero_seconds) == (20, 10)


def test_a_driver_that_does_not_answer_is_a_gap() -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10, busy_seconds=10))
    opened = passed(opened, boot=170, unix=UNIX + 170)
    assert (of(opened).seen_seconds, of(opened).gap_seconds, of(opened).busy_seconds) == (10, 60, 10)
    opened = read(opened, gpu(180, measured_seconds=20, busy_seconds=20, gap_seconds=60))
    assert (of(opened).seen_seconds, of(opened).gap_seconds) == (20, 60)


def test_sums_that_went_back_are_a_new_start() -> None:
    opened = read(start(), gpu(100, measured_seconds=900, busy_seconds=900), gpu(110, measured_seconds=3, busy_seconds=3))
    assert (of(opened).busy_seconds, of(opened).gap_seconds) == (None, 10)
    assert of(read(opened, gpu(120, measured_seconds=13, busy_seconds=4))).busy_seconds == 1


def test_an_answer_that_comes_later_adds_only_what_is_known() -> None:
    """Energy that could not be read at the first of two readings may hold what was before the job."""
    opened = read(start(), gpu(100, measured_seconds=50), gpu(110, measured_seconds=60, energy_joules=9e9))
    assert of(opened).energy_joules is None
    opened = read(opened, gpu(120, measured_seconds=70, energy_joules=9e9 + 5))
    assert (of(opened).energy_joules, of(opened).energy_gap_seconds) == (5, 10)


def test_time_after_the_end_is_not_counted() -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10, busy_seconds=10))
    opened = ended(opened, end_boot=115, boot=116, unix=UNIX + 116)
    opened = read(opened, gpu(117, measured_seconds=17, busy_seconds=15, energy_joules=1.0))
    record = opened.record
    assert (record.alloc_seconds, record.end_boot, record.end_unix, record.ended_by) == (15, 115, UNIX + 115, "epilog")
    assert (of(opened).seen_seconds, of(opened).gap_seconds, of(opened).busy_seconds) == (15, 0, 15)


def test_an_end_that_was_noticed_late_cuts_the_record() -> None:
    opened = read(start(), gpu(100), gpu(110, measured_seconds=10, busy_seconds=10))
    opened = ended(opened, end_boot=109, boot=111, unix=UNIX + 111)
    assert sum(of(opened).histogram_seconds) == pytest.approx(9)
    assert (opened.record.alloc_seconds, of(opened).seen_seconds, of(opened).busy_seconds, of(opened).gap_seconds) == (9, 9, 9, 0)


def test_a_job_that_began_before_the_agent_has_a_gap() -> None:
    assert start(130).record.gap_seconds == 30
    assert start(90).record.gap_seconds == 0


def test_a_job_shorter_than_a_sweep_has_a_gap_and_no_sums() -> None:
    opened = with_gpus(start(90), [gpu(103)])
    record = ended(opened, end_boot=102, boot=103, unix=UNIX + 103).record
    assert (record.alloc_seconds, record.gpus[0].gap_seconds, record.gpus[0].busy_seconds) == (2, 2, None)


def test_another_process_continues_the_record() -> None:
    opened = read(start(), gpu(100), gpu(160, measured_seconds=60, busy_seconds=60))
    opened = continued(decoded(encoded(opened.record)), agent_boot=200)
    assert (opened.record.gap_seconds, opened.record.alloc_seconds) == (40, 100)
    opened = read(opened, gpu(201), gpu(211, measured_seconds=10, busy_seconds=10))
    assert (of(opened).busy_seconds, of(opened).seen_seconds, of(opened).gap_seconds) == (70, 70, 41)


def test_a_lost_job_ends_when_it_was_last_written() -> None:
    record = lost(read(start(), gpu(100), gpu(160, measured_seconds=60, busy_seconds=1)).record)
    assert (record.ended_by, record.end_boot, record.end_unix, record.alloc_seconds) == ("lost", 160, UNIX + 160, 60)


def test_a_step_of_the_system_clock_is_counted_and_changes_no_duration() -> None:
    opened = passed(start(), boot=110, unix=UNIX + 110)
    opened = passed(opened, boot=120, unix=UNIX + 120 - 3600)
    opened = passed(opened, boot=130, unix=UNIX + 130 - 3600.4)
    assert (opened.record.clock_steps, opened.record.alloc_seconds, opened.record.written_unix) == (1, 30, UNIX + 130 - 3600.4)


def test_a_gpu_that_two_jobs_have_is_shared_for_good() -> None:
    opened = with_gpus(start(), [gpu(100)], shared=frozenset({"GPU-1"}))
    assert of(read(opened, gpu(110))).shared


@pytest.mark.parametrize(("counters", "seconds"), [([5, 9], 9), ([5, 9, 2], 11), ([5, None, 9], 9), ([None], None), ([0.0], 0.0)])
def test_cpu_seconds_of_control_groups(counters: list[float | None], seconds: float | None) -> None:
    opened = start()
    for counter in counters:
        opened = with_host(opened, HostReading(cpu_seconds=counter))
    assert opened.record.host.cpu_seconds == seconds


def test_cpu_seconds_after_a_restart() -> None:
    first = with_host(start(), HostReading(cpu_seconds=50, memory_bytes=9)).record
    assert with_host(continued(first, agent_boot=1), HostReading(cpu_seconds=60, memory_bytes=3)).record.host.cpu_seconds == 60
    assert with_host(continued(first, agent_boot=1), HostReading(cpu_seconds=6, memory_bytes=3)).record.host.cpu_seconds == 56
    assert with_host(continued(first, agent_boot=1), HostReading(memory_bytes=3)).record.host.memory_max_bytes == 9


def test_a_finding_is_kept_once_with_its_worst_level() -> None:
    opened = start()
    for level in ("warn", "drain", "warn"):
        opened = with_findings(opened, [JobFinding(check="ecc", level=level, pci="0000:1b:00.0", at_unix=1.0)])
    assert [f.level for f in opened.record.findings] == ["drain"]
    many = with_findings(opened, [JobFinding(check=f"c{i}", level="warn") for i in range(200)])
    assert decoded(encoded(many.record)) == many.record


STEPS = st.lists(
    st.tuples(
        st.floats(0.1, 60), st.floats(0, 1), st.floats(0, 1), st.booleans()
    ),  # seconds, share measured, share busy, restart
    min_size=1,
    max_size=30,
)


@given(steps=STEPS, ends=st.floats(-5, 5))
def test_sums_never_fall_and_no_second_is_lost(steps: list[tuple[float, float, float, bool]], ends: float) -> None:
    """Also if the agent is killed between two readings and the next one begins at 0 again."""
    at, opened = 100.0, start()
    sums = {"measured_seconds": 0.0, "gap_seconds": 0.0, "busy_seconds": 0.0, "energy_joules": 0.0}
    opened = read(opened, gpu(at, **sums))
    for seconds, seen, busy, killed in steps:
        before = of(opened)
        at += seconds
        if killed:
            opened = continued(decoded(encoded(opened.record)), agent_boot=at)
            sums = dict.fromkeys(sums, 0.0)
        else:
            measured = seconds * seen
            sums["measured_seconds"] += measured
            sums["gap_seconds"] += seconds - measured
            sums["busy_seconds"] += measured * busy
            sums["energy_joules"] += seconds
        opened = read(opened, gpu(at, **sums))
        now, record = of(opened), opened.record
        assert now.seen_seconds >= before.seen_seconds and (now.busy_seconds or 0) >= (before.busy_seconds or 0)
        assert (now.energy_joules or 0) >= (before.energy_joules or 0)
        assert now.seen_seconds + now.gap_seconds == pytest.approx(record.alloc_seconds, abs=0.01)
        assert sum(now.histogram_seconds) == pytest.approx(now.seen_seconds, abs=0.01)
        assert (now.busy_seconds or 0) <= now.seen_seconds + 0.01
        if killed:
            assert now.gap_seconds == pytest.approx(before.gap_seconds + seconds, abs=0.01)
    record = ended(opened, end_boot=at + ends, boot=at + max(ends, 0), unix=UNIX + at + max(ends, 0)).record
    assert record.gpus[0].seen_seconds + record.gpus[0].gap_seconds == pytest.approx(record.alloc_seconds, abs=0.01)
    assert sum(record.gpus[0].histogram_seconds) == pytest.approx(record.gpus[0].seen_seconds, abs=0.01)
    assert decoded(encoded(record)) == record
