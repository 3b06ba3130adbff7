"""Computes what advice and reports say of one job from its allocations: parts of the time, peaks and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.jobs.allocations import Allocation
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import GpuUsage, JobFinding, UsageRecord


class GpuMeasures(Struct, frozen=True, kw_only=True):
    """Holds one GPU of a job. Parts are from 0 to 1 of the measured time. None: not known. findings: those on this GPU,
    or on its node, while the job ran."""

    node: str
    uuid: str
    pci: str
    index: int | None
    mig: bool
    shared: bool
    busy: float | None
    sm: float | None
    tensor: float | None
    memory_max_bytes: int | None
    memory_total_bytes: int | None
    first_busy_seconds: float | None
    longest_zero_seconds: float | None
    zero_seconds: float | None
    findings: tuple[JobFinding, ...]


class JobMeasures(Struct, frozen=True, kw_only=True):
    """Holds one job. coverage: measured GPU time over allocated GPU time. cpu_cores: the mean number of busy CPU cores on each
    node, by node. host_memory_*: in bytes, by node. node_gpus: how many GPUs each node has in all; empty if it is not known."""

    job: JobRun
    run_seconds: float
    coverage: float
    gpus: tuple[GpuMeasures, ...]
    nodes_without_record: tuple[str, ...]
    cpu_cores: dict[str, float]
    host_memory_max_bytes: dict[str, int]
    host_memory_limit_bytes: dict[str, int]
    host_memory_total_bytes: dict[str, int]
    node_gpus: dict[str, int]


def measures(allocations: Sequence[Allocation], node_gpus: Mapping[str, int] | None = None) -> JobMeasures:
    """Return the measures of one job from all of its allocations. Raises ValueError without an allocation."""
    if not allocations:
        raise ValueError("a job has at least one node")
    job = allocations[0].job
    records = {a.node: a.record for a in allocations if a.record is not None}
    seconds = max([r.alloc_seconds for r in records.values()], default=0.0)
    if job.end_unix is not None:
        seconds = job.end_unix - job.begin_unix
    allocated = seconds * sum(a.gpus for a in allocations)
    seen = sum(min(seconds, g.seen_seconds) for r in records.values() for g in r.gpus if g.busy_seconds is not None)
    return JobMeasures(
        job=job,
        run_seconds=seconds,
        coverage=min(1.0, seen / allocated) if allocated else 0.0,
        gpus=tuple(_gpu(node, g, _findings(node, g, records)) for node, r in records.items() for g in r.gpus),
        nodes_without_record=tuple(a.node for a in allocations if a.record is None),
        cpu_cores={n: r.host.cpu_seconds / seconds for n, r in records.items() if r.host.cpu_seconds is not None and seconds},
        host_memory_max_bytes=_of_hosts(records, "memory_max_bytes"),
        host_memory_limit_bytes=_of_hosts(records, "memory_limit_bytes"),
        host_memory_total_bytes=_of_hosts(records, "memory_total_bytes"),
        node_gpus={a.node: node_gpus[a.node] for a in allocations if node_gpus and a.node in node_gpus},
    )


def _of_hosts(records: dict[str, UsageRecord], name: str) -> dict[str, int]:
    found = {node: getattr(record.host, name) for node, record in records.items()}
    return {node: value for node, value in found.items() if value is not None}


def _findings(node: str, gpu: GpuUsage, records: dict[str, UsageRecord]) -> tuple[JobFinding, ...]:
    return tuple(finding for finding in records[node].findings if finding.pci in ("", gpu.pci))


def _gpu(node: str, gpu: GpuUsage, findings: tuple[JobFinding, ...]) -> GpuMeasures:
    return GpuMeasures(
        node=node,
        uuid=gpu.uuid,
        pci=gpu.pci,
        index=gpu.gres_index,
        mig=bool(gpu.mig),
        shared=gpu.shared,
        busy=part(gpu.busy_seconds, gpu.seen_seconds),
        sm=part(gpu.sm_active_seconds, gpu.gpm_seconds),
        tensor=part(gpu.tensor_active_seconds, gpu.gpm_seconds),
        memory_max_bytes=gpu.memory_max_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        first_busy_seconds=gpu.first_busy_seconds,
        longest_zero_seconds=gpu.longest_zero_seconds,
        zero_seconds=gpu.zero_seconds,
        findings=findings,
    )


def part(value: float | None, of: float) -> float | None:
    """Return value / of, at most 1, or None if either is not known."""
    return None if value is None or not of else min(1.0, value / of)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if one value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle values. Raises IndexError without a value."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
