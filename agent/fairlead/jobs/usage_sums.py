"""Adds up what one job used on one node: begins a usage record, adds one reading after the other, and ends the record.

All functions are pure. A record can be written to a file after any reading, and continued by another agent process. The time
between the two processes is a gap: nothing is added for that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.jobs import gpu_usage_sums, node_usage_sums
from fairlead.jobs.gpu_usage_sums import GpuReading, LastReading
from fairlead.jobs.node_usage_sums import NodeCountersReading
from fairlead.jobs.usage_record import FINDINGS_MAX, GPUS_MAX, JobFinding, UsageRecord

CLOCK_STEP_SECONDS = 1.0  # a smaller change of the system clock against CLOCK_BOOTTIME is slewing, such as by NTP
_RANK = {"warn": 1, "unknown": 2, "drain": 3}  # a higher number is worse


class HostReading(Struct, frozen=True, kw_only=True):
    """Holds what was read of the job's control group. A value that could not be read is None.

    cpu_seconds: the counter of the control group. Slurm may remove the group between two steps. A new group begins at 0.
    memory_bytes: the most memory that the group has used, or the used memory where the kernel does not record the most.
    """

    cpu_seconds: float | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_total_bytes: int | None = None


class OpenUsage(Struct, frozen=True, kw_only=True):
    """Holds a record that readings are added to, with what this process must know for the next reading.

    last: the last reading of each GPU by UUID. cpu_counter: the control group's CPU seconds at the last reading. clock: the
    difference of system clock and CLOCK_BOOTTIME in seconds at the last reading. node: the last reading of the whole node. All
    three are None before the first reading.
    """

    record: UsageRecord
    last: Mapping[str, LastReading] = field(default_factory=dict)
    cpu_counter: float | None = None
    clock: float | None = None
    node: NodeCountersReading | None = None


def begun(record: UsageRecord, *, agent_boot: float) -> OpenUsage:
    """Return the new record of a job, ready for readings. ``agent_boot``: when this agent process began to read the node
    (CLOCK_BOOTTIME)."""
    return _away(OpenUsage(record=record), agent_boot)


def continued(record: UsageRecord, *, agent_boot: float) -> OpenUsage:
    """Return a record that an earlier agent process of the same boot has written, ready for readings. ``agent_boot``: when this
    agent process began to read the node (CLOCK_BOOTTIME). The time from the last write to ``agent_boot`` is a gap."""
    return _away(OpenUsage(record=record), agent_boot)


def passed(opened: OpenUsage, *, boot: float, unix: float) -> OpenUsage:
    """Return the record at a later time, without new readings. ``boot``: seconds of CLOCK_BOOTTIME. ``unix``: the system clock at
    that time. After ``ended``, the job lasts no longer."""
    record, clock = opened.record, unix - boot
    stepped = opened.clock is not None and abs(clock - opened.clock) > CLOCK_STEP_SECONDS
    opened = _last_until(opened, boot if record.end_boot is None else record.end_boot)
    written = replace(opened.record, written_unix=max(0.0, unix), clock_steps=record.clock_steps + stepped)
    return replace(opened, record=written, clock=clock)


def with_listed(opened: OpenUsage, gpus: Iterable[GpuReading]) -> OpenUsage:
    """Return the record with these GPUs of the job. A GPU that is new in the record has no measured time."""
    record = opened.record
    usages = {gpu.uuid: gpu for gpu in record.gpus}
    for gpu in gpus:
        if gpu.uuid not in usages and len(usages) < GPUS_MAX:
            usages[gpu.uuid] = gpu_usage_sums.unmeasured(gpu, record.alloc_seconds)
    return opened if len(usages) == len(record.gpus) else replace(opened, record=replace(record, gpus=tuple(usages.values())))


def with_gpus(opened: OpenUsage, readings: Iterable[GpuReading], *, shared: frozenset[str] = frozenset()) -> OpenUsage:
    """Return the record with new readings of the job's GPUs. ``passed`` must have been called for their time. ``shared``: the
    UUIDs of the GPUs that another job has at the same time."""
    readings = tuple(readings)
    record = with_listed(opened, readings).record
    usages, last = {gpu.uuid: gpu for gpu in record.gpus}, dict(opened.last)
    begin, end = record.begin_boot, record.begin_boot + record.alloc_seconds
    for reading in readings:
        if (usage := usages.get(reading.uuid)) is not None:
            usage, last[reading.uuid] = gpu_usage_sums.added(usage, last.get(reading.uuid), reading, begin=begin, end=end)
            usages[reading.uuid] = replace(usage, shared=usage.shared or reading.uuid in shared)
    return replace(opened, record=replace(record, gpus=tuple(usages.values())), last=last)


def with_host(opened: OpenUsage, reading: HostReading) -> OpenUsage:
    """Return the record with a new reading of the job's control group.

    The counter of CPU seconds went back if the group is new. This process does not know the counter at the last write of an
    earlier process. It then takes a counter that is lower than the record's sum as one of a new group.
    """
    host, now = opened.record.host, reading.cpu_seconds
    if now is not None:
        before = opened.cpu_counter if opened.cpu_counter is not None else (host.cpu_seconds or 0.0)
        host = replace(host, cpu_seconds=(host.cpu_seconds or 0.0) + (now - before if now >= before else now))
    if reading.memory_bytes is not None:
        host = replace(host, memory_max_bytes=max(reading.memory_bytes, host.memory_max_bytes or 0))
    for name in ("cpus", "memory_limit_bytes", "memory_total_bytes"):
        if (value := getattr(reading, name)) is not None:
            host = replace(host, **{name: value})
    counter = opened.cpu_counter if now is None else now
    return replace(opened, record=replace(opened.record, host=host), cpu_counter=counter)


def with_node(opened: OpenUsage, reading: NodeCountersReading) -> OpenUsage:
    """Return the record with a new reading of the whole node. ``passed`` must have been called for its time."""
    record = opened.record
    end = record.begin_boot + record.alloc_seconds
    host = record.host if opened.node is None else node_usage_sums.added(record.host, opened.node, reading, end=end)
    return replace(opened, record=replace(record, host=host), node=reading)


def with_findings(opened: OpenUsage, findings: Iterable[JobFinding]) -> OpenUsage:
    """Return the record with new findings. A finding of the same check on the same GPU stays, with the worse of both levels."""
    kept = {(f.check, f.pci): f for f in opened.record.findings}
    for finding in findings:
        key = finding.check, finding.pci
        known = kept.get(key)
        if known is None:
            if len(kept) < FINDINGS_MAX:
                kept[key] = finding
        elif _RANK.get(finding.level, 0) > _RANK.get(known.level, 0):
            kept[key] = replace(known, level=finding.level)
    return replace(opened, record=replace(opened.record, findings=tuple(kept.values())))


def ended(opened: OpenUsage, *, end_boot: float, boot: float, unix: float) -> OpenUsage:
    """Return the record of a job whose epilog has run. One more reading of the GPUs may follow.

    ``end_boot``: when the epilog ran (CLOCK_BOOTTIME). ``boot``, ``unix``: the present time on both clocks.
    """
    end = max(end_boot, opened.record.begin_boot)
    record = _last_until(opened, end).record
    seconds = end - record.begin_boot  # the last reading may be from a moment after the end
    gpus = tuple(gpu_usage_sums.cut(gpu, seconds, record.alloc_seconds - seconds) for gpu in record.gpus)
    unix_end = max(0.0, unix - (boot - end))
    record = replace(record, end_boot=end, end_unix=unix_end, ended_by="epilog", alloc_seconds=seconds, gpus=gpus)
    return replace(opened, record=replace(record, gap_seconds=min(record.gap_seconds, seconds)))


def lost(record: UsageRecord) -> UsageRecord:
    """Return the record of a job that no epilog has ended. The record ends with what was known when it was last written."""
    end = record.begin_boot + record.alloc_seconds
    return replace(record, end_boot=end, end_unix=record.written_unix, ended_by="lost")


def _away(opened: OpenUsage, agent_boot: float) -> OpenUsage:
    """Return the record at ``agent_boot``. No agent read the node from the record's last write until then."""
    before = opened.record.alloc_seconds
    opened = _last_until(opened, agent_boot)
    record = opened.record
    return replace(opened, record=replace(record, gap_seconds=record.gap_seconds + record.alloc_seconds - before))


def _last_until(opened: OpenUsage, boot: float) -> OpenUsage:
    """Return the record of a job that lasts at least until ``boot``. The new time is a gap of each GPU until a reading covers the
    time."""
    record = opened.record
    seconds = max(record.alloc_seconds, boot - record.begin_boot)
    more = seconds - record.alloc_seconds
    if not more:
        return opened
    gpus = tuple(gpu_usage_sums.lasted(gpu, seconds, more) for gpu in record.gpus)
    return replace(opened, record=replace(record, alloc_seconds=seconds, gpus=gpus))
