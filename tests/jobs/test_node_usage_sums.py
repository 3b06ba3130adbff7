"""Histograms and sums for the comparison of nodes: what is known is added, and what is not known is absent and never 0."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.gpu_usage_sums import GpuReading, with_bin, with_counts
from fairlead.jobs.node_usage_sums import NicReading, NodeCountersReading, added
from fairlead.jobs.usage_record import GpuUsage, HostUsage, UsageRecord, decoded, encoded
from fairlead.jobs.usage_sums import OpenUsage, begun, passed, with_gpus, with_node
from fairlead.model.gpu_activity import GpuActivity

UNIX = 1_790_000_000.0
NEW = UsageRecord(job=7, node="n1", boot_id="b", begin_unix=UNIX, begin_boot=100.0, written_unix=UNIX, alloc_seconds=0)
#: As an agent wrote it before there were histograms.
OLD = (
    b'{"schema":"job-record/1","job":7,"node":"n1","boot_id":"b","begin_unix":1790000000.0,"begin_boot":100.0,'
    b'"written_unix":1790000060.0,"alloc_seconds":60.0,"gpus":[{"uuid":"GPU-1","pci":"0000:1b:00.0","seen_seconds":58.0,'
    b'"busy_seconds":50.0,"throttled_seconds":{"sw_power_cap":3.0}}],"host":{"cpu_seconds":40.0,"cpus":8}}\n'
)


def reading(at: float, clock: int | None = None, errors: dict[str, int] | None = None, **sums: float) -> GpuReading:
    activity = GpuActivity(**{"busy_seconds": 0.0, "measured_seconds": at - 100, **sums})  # type: ignore[arg-type]
    return GpuReading(uuid="GPU-1", pci="0000:1b:00.0", at=at, activity=activity, clock_hertz=clock, errors=errors or {})


def gpu(*readings: GpuReading) -> GpuUsage:
    opened = begun(NEW, agent_boot=100.0)
    for each in readings:
        opened = with_gpus(passed(opened, boot=each.at, unix=UNIX + each.at), [each])
    return opened.record.gpus[0]


def test_a_gpu_has_histograms_of_clock_activity_and_power() -> None:
    found = gpu(
        reading(100, 1_980_000_000, gpm_seconds=0.0, sm_active_seconds=0.0, energy_joules=0.0),
        reading(110, 1_980_000_000, gpm_seconds=10.0, sm_active_seconds=8.0, energy_joules=6000.0),
        reading(120, 1_200_000_000, gpm_seconds=20.0, sm_active_seconds=12.0, energy_joules=9000.0),
        reading(130, None, gpm_seconds=30.0, sm_active_seconds=12.0, energy_joules=10000.0),
    )
    assert found.readings == 3
    assert found.clock_histogram_seconds == {132: 10, 80: 10}, "a GPU without load has no clock"
    assert found.sm_histogram_seconds == {16: 10, 8: 10, 0: 10}
    assert found.power_histogram_seconds == {30: 10, 15: 10, 5: 10}


def test_what_was_not_read_of_a_gpu_is_absent() -> None:
    found = gpu(reading(100), reading(110))
    assert found.readings == 1
    assert not (
        found.clock_histogram_seconds or found.sm_histogram_seconds or found.power_histogram_seconds or found.error_counts
    )


def test_an_energy_counter_that_began_again_gives_no_power() -> None:
    found = gpu(reading(100, energy_joules=9.0), reading(110, energy_joules=9.0, energy_gap_seconds=10.0))
    assert not found.power_histogram_seconds


@pytest.mark.parametrize(
    ("readings", "counts"),
    [
        ([{"a": 5}, {"a": 7}, {"a": 7}], {"a": 2}),
        ([{"a": 5}, {"a": 5}], {"a": 0}),  # known, and nothing happened
        ([{}, {"a": 7}], {}),  # nobody knows how many of them are the job's
        ([{"a": 5}, {}, {"a": 9}], {}),
        ([{"a": 5}, {"a": 1}, {"a": 4}], {"a": 3}),  # the driver was loaded again
    ],
)
def test_the_growth_of_counters(readings: list[dict[str, int]], counts: dict[str, int]) -> None:
    assert gpu(*(reading(100 + 10 * n, errors=each) for n, each in enumerate(readings))).error_counts == counts


def node(at: float, cpu: int | None = None, **more: object) -> NodeCountersReading:
    return NodeCountersReading(at=at, stalled_microseconds={} if cpu is None else {"cpu": cpu}, **more)  # type: ignore[arg-type]


def host(*readings: NodeCountersReading, end: float = 1e9) -> HostUsage:
    found = HostUsage()
    for last, now in pairwise(readings):
        found = added(found, last, now, end=end)
    return found


def test_pressure_is_a_histogram_of_the_part_of_time() -> None:
    found = host(node(100, 0), node(110, 0), node(120, 5_000_000), node(130, 15_000_000))
    assert found.pressure_histogram_seconds == {"cpu": {0: 10, 10: 10, 20: 10}}
    assert found.node_seconds == 30


def test_a_kernel_without_psi_has_no_pressure() -> None:
    assert host(node(100), node(110)).pressure_histogram_seconds == {}


def test_time_after_the_end_is_not_counted() -> None:
    found = host(node(100, 0), node(110, 10_000_000), end=104)
    assert found.pressure_histogram_seconds == {"cpu": {20: 4}} and found.node_seconds == 4


def test_bytes_and_errors_of_interfaces() -> None:
    def nic(received: int | None, drops: int) -> tuple[NicReading, ...]:
        return (NicReading(name="eth0", receive_bytes=received, transmit_bytes=received, errors={"queue_drops": drops}),)

    found = host(node(100, nics=nic(5, 1)), node(110, nics=nic(25, 4)), node(120, nics=nic(None, 4)))
    (usage,) = found.nics
    assert (usage.receive_bytes, usage.transmit_bytes, usage.error_counts) == (20, 20, {"queue_drops": 3})
    (unknown,) = host(node(100, nics=nic(None, 1)), node(110, nics=nic(None, 1))).nics
    assert unknown.receive_bytes is None and unknown.error_counts == {"queue_drops": 0}


def test_the_first_reading_of_a_process_is_only_a_beginning() -> None:
    opened = with_node(OpenUsage(record=NEW), node(100, 77_000_000, events={"tcp_retransmits": 900}))
    assert opened.record.host == HostUsage()


def test_an_old_record_is_read_and_has_no_histograms() -> None:
    record = decoded(OLD)
    assert record.gpus[0].readings == 0 and not record.gpus[0].clock_histogram_seconds
    assert record.host.pressure_histogram_seconds == {} and record.host.nics == ()
    assert decoded(encoded(record)) == record and b"histogram" not in encoded(record)


@given(st.lists(st.tuples(st.floats(-10, 2000), st.floats(0, 1e6)), max_size=400))
def test_a_histogram_never_grows_beyond_what_a_record_may_hold(values: list[tuple[float, float]]) -> None:
    histogram: dict[int, float] = {}
    for bins, seconds in values:
        histogram = with_bin(histogram, bins, seconds)
    record = UsageRecord(
        **{name: getattr(NEW, name) for name in NEW.__struct_fields__ if name != "gpus"},
        gpus=(GpuUsage(uuid="GPU-1", pci="0000:1b:00.0", clock_histogram_seconds=histogram),),
    )
    assert decoded(encoded(record)) == record


COUNTERS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 61))


@given(COUNTERS, COUNTERS)
def test_a_count_is_known_only_if_both_readings_know_it(before: dict[str, int], after: dict[str, int]) -> None:
    found = with_counts({}, before, after)
    assert set(found) == before.keys() & after.keys() and all(value >= 0 for value in found.values())
