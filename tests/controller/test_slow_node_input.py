"""What the comparison takes from usage records: medians, rates, and the reason why a node cannot be compared."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.controller.slow_node_input import NO_RECORD, signs_of
from fairlead.fleet.slow_node_rule import NodeSigns
from fairlead.jobs.usage_record import GpuUsage, HostUsage, NicUsage, UsageRecord
from tests.jobs.job_reports import gpu_of, record_of


def gpu(number: int = 0, **changes: Any) -> GpuUsage:
    values: dict[str, Any] = {
        "readings": 20,
        "gres_index": number,
        "histogram_seconds": (0.0,) * 10 + (3600.0,),
        "clock_histogram_seconds": {132: 3600.0},
        "sm_histogram_seconds": {12: 3600.0},
        "power_histogram_seconds": {30: 3600.0},
        "throttled_seconds": {"sw_power_cap": 36.0, "sync_boost": 3000.0},
    }
    return gpu_of(number, **(values | changes))


def signs(*gpus: GpuUsage, **changes: Any) -> NodeSigns:
    return signs_of(["gpu001"], [record_of("gpu001", 3600.0, 0, gpus=gpus, **changes)])[0]


def test_medians_of_a_gpu() -> None:
    found = signs(gpu(), gpu(1))
    assert found.kind == "2 x NVIDIA H100 80GB HBM3" and found.readings == 20 and found.lacking == ""
    assert found.gpus["0"] == pytest.approx(
        {"clock": 1980.0, "throttle": 1.0, "utilisation": 95.0, "activity": 60.0, "power": 600.0}
    )


def test_rates_of_a_node() -> None:
    nics = (
        NicUsage(name="eth0", error_counts={"queue_drops": 5, "receive_errors": 1}),
        NicUsage(name="mlx5_0/1", error_counts={"symbol_error": 3, "packet_seq_err": 7, "link_downed": 9, "port_xmit_wait": 99}),
    )
    host = HostUsage(
        node_seconds=1800.0,
        pressure_histogram_seconds={"cpu": {0: 100.0}, "io": {10: 1800.0}, "other": {3: 1.0}},
        event_counts={"tcp_retransmits": 4},
        nics=nics,
    )
    found = signs(gpu(), host=host)
    assert found.host == pytest.approx(
        {"cpu_pressure": 0.0, "io_pressure": 50.0, "link_errors": 8.0, "queue_drops": 10.0, "retransmits": 22.0}
    )


def test_what_is_not_known_is_not_there() -> None:
    bare = gpu(histogram_seconds=(), clock_histogram_seconds={}, sm_histogram_seconds={}, power_histogram_seconds={})
    found = signs(bare, host=HostUsage(cpu_seconds=7.0))
    assert found.gpus == {"0": {}} and found.host == {}


@pytest.mark.parametrize(
    ("gpus", "lacking"),
    [
        ((), "its record names no GPU"),
        ((gpu_of(0),), "its record has no histograms (fairlead 0.1.0 wrote it)"),
        ((gpu(), gpu(1, shared=True)), "other jobs had the same GPUs"),
        ((gpu(mig="7/0/1g.10gb"),), "MIG devices are not compared"),
    ],
)
def test_why_a_node_is_not_compared(gpus: tuple[GpuUsage, ...], lacking: str) -> None:
    assert signs(*gpus).lacking == lacking


def test_a_node_without_a_record_is_named() -> None:
    record: UsageRecord = record_of("gpu001", 3600.0, 1)
    assert [s.lacking for s in signs_of(["gpu001", "gpu002"], [record])][1] == NO_RECORD
