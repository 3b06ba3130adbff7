"""Makes jobs, records and allocations for tests, each with one good default."""

from __future__ import annotations

from typing import Any

from fairlead.jobs.allocations import Allocation, joined
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import GpuUsage, HostUsage, JobFinding, UsageRecord

BEGIN = 1_790_000_000.0
HOUR = 3600.0
GB = 10**9


def a_gpu(number: int = 0, seconds: float = 4 * HOUR, **changes: Any) -> GpuUsage:
    """A GPU that was measured for the whole time and worked well."""
    values: dict[str, Any] = {
        "uuid": f"GPU-{number}",
        "pci": f"0000:{number:02x}:00.0",
        "gres_index": number,
        "minor": number,
        "seen_seconds": seconds,
        "busy_seconds": 0.9 * seconds,
        "zero_seconds": 0.05 * seconds,
        "first_busy_seconds": 60.0,
        "gpm_seconds": seconds,
        "sm_active_seconds": 0.6 * seconds,
        "tensor_active_seconds": 0.3 * seconds,
        "energy_joules": 500.0 * seconds,
        "memory_total_bytes": 80 * GB,
        "memory_max_bytes": 60 * GB,
        "memory_byte_seconds": 60 * GB * seconds,
        "memory_seconds": seconds,
        "pcie_transmit_bytes": 10**12,
        "pcie_receive_bytes": 10**12,
    }
    return GpuUsage(**{**values, **changes})


def a_record(job: int = 1, node: str = "n1", seconds: float = 4 * HOUR, **changes: Any) -> UsageRecord:
    values: dict[str, Any] = {
        "job": job,
        "node": node,
        "boot_id": "b",
        "begin_unix": BEGIN + 2,
        "begin_boot": 100.0,
        "written_unix": BEGIN + seconds,
        "end_unix": BEGIN + seconds,
        "alloc_seconds": seconds,
        "gpus": (a_gpu(0, seconds), a_gpu(1, seconds)),
        "host": HostUsage(
            cpu_seconds=2 * seconds, cpus=16, memory_max_bytes=100 * GB, memory_limit_bytes=128 * GB, memory_total_bytes=512 * GB
        ),
    }
    return UsageRecord(**{**values, **changes})


def a_job(job: int = 1, seconds: float | None = 4 * HOUR, **changes: Any) -> JobRun:
    values: dict[str, Any] = {
        "job": job,
        "label": str(job),
        "user": "alice",
        "account": "physics",
        "partition": "gpu",
        "state": "COMPLETED",
        "begin_unix": BEGIN,
        "end_unix": None if seconds is None else BEGIN + seconds,
        "gpus": 2,
        "nodes": ("n1",),
        "limit_seconds": 6 * HOUR,
        "kind": "batch",
    }
    return JobRun(**{**values, **changes})


def allocations(job: JobRun, *records: UsageRecord) -> tuple[Allocation, ...]:
    found = joined([job], records, BEGIN + 400 * 24 * HOUR)
    assert not found.left_out, found.left_out
    return found.allocations


def a_finding(check: str, pci: str = "") -> JobFinding:
    return JobFinding(check=check, level="warn", pci=pci)
