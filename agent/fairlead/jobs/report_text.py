"""Writes a job's report as text. Percentages are computed here. What is not known is said to be not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.jobs.usage_merge import JobReport, Sum, TimePart, Totals, gpu_label
from fairlead.jobs.usage_record import GpuUsage, UsageRecord
from fairlead.model.nodelist import fold
from fairlead.model.plain_text import one_line

NODES_SHOWN = 32  # the most nodes that a report shows one by one
DIFFERS_PERCENT = 20  # a GPU this far from the median of the job's GPUs is marked
FINDINGS_SHOWN = 16


def report_text(report: JobReport, notes: Iterable[str] = ()) -> str:
    """Return the report of a job. notes: further lines, such as advice."""
    return "\n".join((*_head(report), *_gpu_lines(report), *_host_line(report), *_nodes(report), *_gaps(report), *notes))


def span_text(seconds: float) -> str:
    """Return a time as Slurm writes it: ``1-02:03:04`` or ``02:03:04``."""
    days, rest = divmod(round(seconds), 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def bytes_text(count: float) -> str:
    """Return a number of bytes in powers of 1024: ``61 GiB``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.{0 if count >= 10 * size else 1}f} {unit}"
    return f"{count:.0f} B"


def energy_text(joules: float) -> str:
    """Return an energy in kWh, or in kJ below 0.1 kWh."""
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e5 else f"{joules / 1000:.3g} kJ"


def hours_text(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _head(report: JobReport) -> Iterator[str]:
    run, totals = report.run, report.totals
    names = sorted({gpu.name for record in report.records for gpu in record.gpus if gpu.name})
    count = f"{len(run.nodes)} node{'s' if len(run.nodes) != 1 else ''}"
    if run.gpus or totals.gpus:
        count += f", {max(run.gpus, totals.gpus)} x {' and '.join(map(one_line, names)) or 'GPU'}"
    limit = f" of {span_text(run.limit_seconds)}" if run.limit_seconds is not None else ""
    percent = report.coverage_percent
    coverage = f"coverage {percent:.1f} %" if percent is not None else "coverage not known"
    yield f"job {run.label}  {run.state}  {count}  {span_text(run.seconds(report.at_unix))}{limit}  {coverage}"


def _gpu_lines(report: JobReport) -> Iterator[str]:
    totals = report.totals
    if not totals.gpus:
        if report.run.gpus:
            yield "  GPUs: not known"
        return
    own = totals.gpus - totals.shared
    if totals.shared:
        yield f"  {totals.shared} of {totals.gpus} GPUs were shared with other jobs: what they did is not of this job alone"
    if not own:
        return
    used, whole = totals.memory_max_bytes, totals.memory_total_bytes
    memory = f"{bytes_text(used)} of {bytes_text(whole)}" if used is not None and whole else "not known"
    energy = (
        f"{energy_text(totals.energy_joules.value)} ({_of(totals.energy_joules, own)})" if totals.energy_joules else "not known"
    )
    yield _line(
        f"busy {_percent(totals.busy)}",
        f"SM active {_percent(totals.sm)}",
        f"tensor {_percent(totals.tensor)}",
        f"DRAM {_percent(totals.dram)}",
        f"memory peak {memory}",
        f"energy {energy}",
    )
    yield _line(_zero(totals, own), f"throttled {_percent(totals.throttled, 1)}", *_rates(totals))


def _zero(totals: Totals, own: int) -> str:
    zero = totals.zero_seconds
    if zero is None:
        return "time at 0 %: not known"
    partly = f" ({zero.gpus} of {own} GPUs)" if zero.gpus < own else ""
    longest = (
        f", longest {hours_text(totals.longest_zero_seconds)} ({totals.longest_zero_at})" if totals.longest_zero_seconds else ""
    )
    return f"0 % for {zero.value / 3600:.1f} GPU-h{partly}{longest}"


def _of(sum_: Sum, own: int) -> str:
    return "GPUs; node not measured" if sum_.gpus == own else f"{sum_.gpus} of {own} GPUs; node not measured"


def _rates(totals: Totals) -> Iterator[str]:
    seconds = totals.seen_seconds
    for name, sum_ in (("NVLink", totals.nvlink_bytes), ("PCIe", totals.pcie_bytes)):
        if sum_ is not None and seconds > 0:
            yield f"{name} {bytes_text(sum_.value / seconds)}/s per GPU"


def _host_line(report: JobReport) -> Iterator[str]:
    totals = report.totals
    seconds = report.run.seconds(report.at_unix)
    if totals.cpu_seconds is None or not totals.cpus or seconds <= 0:
        yield "  CPUs: not known"
        return
    partly = f" ({totals.cpu_nodes} of {len(report.run.nodes)} nodes)" if totals.cpu_nodes < len(report.run.nodes) else ""
    percent = min(100.0, 100 * totals.cpu_seconds / (totals.cpus * seconds))
    peaks = [r.host.memory_max_bytes for r in report.records if r.host.memory_max_bytes is not None]
    memory = f"  memory peak of a node {bytes_text(max(peaks))}" if peaks else ""
    yield f"  {totals.cpus} CPUs busy {percent:.0f} %{partly}{memory}"


def _nodes(report: JobReport) -> Iterator[str]:
    values = sorted(p for record in report.records for gpu in record.gpus if (p := _busy(gpu)) is not None)
    median = values[len(values) // 2] if len(values) > 2 else None
    shown = report.records[:NODES_SHOWN]
    for record in shown:
        if record.gpus:
            yield _line(record.node, *(_gpu(gpu, median) for gpu in record.gpus))
        for finding in record.findings[:FINDINGS_SHOWN]:
            where = f" {finding.pci}" if finding.pci else ""
            yield f"  {record.node}{where}: {finding.check} ({finding.level}) while the job ran: not counted against you"
    if len(report.records) > len(shown):
        yield f"  and {len(report.records) - len(shown)} more nodes (--json has each)"


def _gpu(gpu: GpuUsage, median: float | None) -> str:
    percent = _busy(gpu)
    if percent is None:
        return f"{gpu_label(gpu)}: {'shared' if gpu.shared else 'not known'}"
    differs = median is not None and abs(percent - median) > DIFFERS_PERCENT
    longest = f": {hours_text(gpu.longest_zero_seconds)} at 0 %" if differs and gpu.longest_zero_seconds else ""
    return f"{gpu_label(gpu)}: {percent:.0f} %{f' <- differs{longest}' if differs else ''}"


def _busy(gpu: GpuUsage) -> float | None:
    if gpu.shared or gpu.busy_seconds is None or gpu.seen_seconds <= 0:
        return None
    return min(100.0, 100 * gpu.busy_seconds / gpu.seen_seconds)


def _gaps(report: JobReport) -> Iterator[str]:
    if report.missing:
        yield f"  no record yet from {len(report.missing)} of {len(report.run.nodes)} nodes: {fold(report.missing)}"
    if report.unnamed_gpus and report.totals.gpus:
        yield (
            f"  the records name {report.totals.gpus} of the {report.run.gpus} GPUs: of a job with several types of GPUs they"
            " have only one type, and the rest is not measured"
        )
    lost = [record.node for record in report.records if record.ended_by == "lost"]
    if lost:
        yield f"  the record was not ended by an epilog on {fold(lost)}: the node was booted again, or the record was lost"
    if report.run.end_unix is not None and (open_ := [r.node for r in report.records if _is_open(r)]):
        yield f"  the record is not ended yet on {fold(open_)}"


def _is_open(record: UsageRecord) -> bool:
    return record.end_unix is None and not record.ended_by


def _percent(part: TimePart | None, digits: int = 0) -> str:
    percent = part.percent if part is not None else None
    return f"{percent:.{digits}f} %" if percent is not None else "not known"


def _line(*parts: str) -> str:
    return "  " + "   ".join(part for part in parts if part)
