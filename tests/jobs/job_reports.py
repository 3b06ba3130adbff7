"""Makes runs of jobs and usage records for tests."""

from __future__ import annotations

from typing import Any

from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import GpuUsage, HostUsage, UsageRecord

BEGIN = 1_790_000_000
GIB = 1 << 30


def run_of(nodes: int = 1, seconds: int | None = 3600, **changes: Any) -> JobRun:
    values: dict[str, Any] = {
        "job": 17,
        "label": "17",
        "uid": 1001,
        "user": "alice",
        "account": "research",
        "partition": "gpu",
        "state": "COMPLETED" if seconds is not None else "RUNNING",
        "nodes": tuple(f"gpu{n:03d}" for n in range(1, nodes + 1)),
        "begin_unix": BEGIN,
        "end_unix": BEGIN + seconds if seconds is not None else None,
        "gpus": 8 * nodes,
        "cpus": 64 * nodes,
        "limit_seconds": 7200,
    }
    return JobRun(**{**values, **changes})


def gpu_of(minor: int, seconds: float = 3600.0, percent: float = 70.0, /, **changes: Any) -> GpuUsage:
    values: dict[str, Any] = {
        "uuid": f"GPU-{minor}",
        "pci": f"0000:{0x1B + minor:02x}:00.0",
        "minor": minor,
        "name": "NVIDIA H100 80GB HBM3",
        "seen_seconds": seconds,
        "busy_seconds": seconds * percent / 100,
        "zero_seconds": seconds * 0.1,
        "longest_zero_seconds": seconds * 0.05,
        "gpm_seconds": seconds,
        "sm_active_seconds": seconds * 0.45,
        "tensor_active_seconds": seconds * 0.22,
        "dram_active_seconds": seconds * 0.30,
        "energy_joules": seconds * 500,
        "memory_total_bytes": 80 * GIB,
        "memory_max_bytes": 61 * GIB,
        "nvlink_transmit_bytes": int(seconds * 1e11),
        "nvlink_receive_bytes": int(seconds * 1e11),
        "throttled_seconds": {"sw_power_cap": seconds * 0.004},
    }
    return GpuUsage(**{**values, **changes})


def record_of(node: str = "gpu001", seconds: float = 3600.0, count: int = 8, /, **changes: Any) -> UsageRecord:
    values: dict[str, Any] = {
        "job": 17,
        "node": node,
        "boot_id": "5f0c7a3e-0000-4000-8000-000000000001",
        "uid": 1001,
        "begin_unix": BEGIN + 1.0,
        "begin_boot": 100.0,
        "written_unix": BEGIN + 1.0 + seconds,
        "end_unix": BEGIN + 1.0 + seconds,
        "end_boot": 100.0 + seconds,
        "ended_by": "epilog",
        "alloc_seconds": seconds,
        "gpus": tuple(gpu_of(n, seconds) for n in range(count)),
        "host": HostUsage(
            cpu_seconds=seconds * 32,
            cpus=64,
            memory_max_bytes=100 * GIB,
            memory_limit_bytes=500 * GIB,
            memory_total_bytes=1000 * GIB,
        ),
        "agent_version": "0.1.0",
    }
    return UsageRecord(**{**values, **changes})
