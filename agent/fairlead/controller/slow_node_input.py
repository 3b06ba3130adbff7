"""Turns the usage records of a job into what the judgement of slow nodes compares. A value that is not known is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairlead.fleet.slow_node_rule import NodeSigns
from fairlead.fleet.slow_recurrence import JobSigns
from fairlead.fleet.small_group_statistics import histogram_median
from fairlead.jobs.allocations import Allocation
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import CLOCK_BIN_HERTZ, PERCENT_BIN, POWER_BIN_WATTS, GpuUsage, HostUsage, UsageRecord
from fairlead.model.gpu_load import REASONS
from fairlead.model.plain_text import one_line

#: Reasons that slow the clocks of one GPU and not of its peers. The others are the site's settings.
SLOWING = {name for _, name in REASONS} - {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"}
LINK_ERRORS = (
    *("receive_errors", "transmit_errors", "symbol_error", "link_error_recovery", "port_rcv_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "rx_icrc_encapsulated"),
)
QUEUE_DROPS = ("queue_drops", "transmit_drops")
RETRANSMITS = ("tcp_retransmits", "local_ack_timeout_err", "packet_seq_err")
NO_RECORD = "the node has given no record"


def signs_of(nodes: Sequence[str], records: Iterable[UsageRecord]) -> tuple[NodeSigns, ...]:
    """Return what each node of a job shows, in the order of ``nodes``."""
    of_node = {record.node: record for record in records}
    return tuple(_signs(of_node[n]) if n in of_node else NodeSigns(node=n, lacking=NO_RECORD, readings=0) for n in nodes)


def job_signs(job: int, user: str, end_unix: float, nodes: Sequence[str], records: Iterable[UsageRecord]) -> JobSigns:
    return JobSigns(job=job, user=user, end_unix=end_unix, nodes=signs_of(nodes, records))


def jobs_of(allocations: Iterable[Allocation], begin_unix: float) -> list[JobSigns]:
    """Return the jobs with GPUs that ended since ``begin_unix``."""
    runs: dict[tuple[int, float], list[Allocation]] = {}
    for each in allocations:
        if each.job.gpus and each.end_unix is not None and each.end_unix >= begin_unix:
            runs.setdefault((each.job.job, each.job.begin_unix), []).append(each)
    return [_of_run(found[0].job, found) for found in runs.values()]


def _of_run(job: JobRun, found: Sequence[Allocation]) -> JobSigns:
    return job_signs(job.job, job.user, job.end_unix or 0.0, job.nodes, [a.record for a in found if a.record is not None])


def _signs(record: UsageRecord) -> NodeSigns:
    gpus = record.gpus
    names = sorted({one_line(gpu.name) for gpu in gpus})
    return NodeSigns(
        node=record.node,
        kind=f"{len(gpus)} x {' and '.join(names)}",
        host=_host(record.host),
        gpus={_index(gpu): _gpu(gpu) for gpu in gpus},
        readings=min((gpu.readings for gpu in gpus), default=0),
        lacking=_lacking(record),
    )


def _lacking(record: UsageRecord) -> str:
    if not record.gpus:
        return "its record names no GPU"
    if any(gpu.mig for gpu in record.gpus):
        return "MIG devices are not compared"
    if any(gpu.shared for gpu in record.gpus):
        return "other jobs had the same GPUs"
    if any(not gpu.readings and gpu.seen_seconds for gpu in record.gpus):
        return f"its record has no histograms (fairlead {one_line(record.agent_version, 32) or 'of an older version'} wrote it)"
    return ""


def _index(gpu: GpuUsage) -> str:
    index = gpu.gres_index if gpu.gres_index is not None else gpu.minor
    return gpu.pci if index is None else str(index)


def _gpu(gpu: GpuUsage) -> dict[str, float]:
    clock = histogram_median(gpu.clock_histogram_seconds)
    loaded = sum(gpu.clock_histogram_seconds.values())
    slowed = max((s for reason, s in gpu.throttled_seconds.items() if reason in SLOWING), default=0.0)
    busy = histogram_median(dict(enumerate(gpu.histogram_seconds)))
    found = {
        "clock": None if clock is None else clock * CLOCK_BIN_HERTZ / 1e6,
        "throttle": min(100.0, 100 * slowed / loaded) if loaded else None,
        "utilisation": None if busy is None else min(100.0, max(0.0, 10 * busy - 5)),  # bin 1 is over 0 to 10 %
        "activity": _times(histogram_median(gpu.sm_histogram_seconds), PERCENT_BIN),
        "power": _times(histogram_median(gpu.power_histogram_seconds), POWER_BIN_WATTS),
    }
    return {name: value for name, value in found.items() if value is not None}


def _times(bins: float | None, width: float) -> float | None:
    return None if bins is None else max(0.0, bins * width)


def _host(host: HostUsage) -> dict[str, float]:
    found = {
        f"{name}_pressure": _times(histogram_median(histogram), PERCENT_BIN)
        for name, histogram in host.pressure_histogram_seconds.items()
        if name in ("cpu", "io", "memory")
    }
    if host.node_seconds > 0:
        counters = [host.event_counts, *(nic.error_counts for nic in host.nics)]
        for name, names in (("link_errors", LINK_ERRORS), ("queue_drops", QUEUE_DROPS), ("retransmits", RETRANSMITS)):
            found[name] = _per_hour(counters, names, host.node_seconds)
    return {name: value for name, value in found.items() if value is not None}


def _per_hour(counters: Iterable[Mapping[str, int]], names: Sequence[str], seconds: float) -> float | None:
    known = [each[name] for each in counters for name in names if name in each]
    return 3600 * sum(known) / seconds if known else None
