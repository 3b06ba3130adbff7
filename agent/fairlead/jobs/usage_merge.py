"""Merges the usage records of one run of a job, one record for each node, into the report of the job.

A record that does not belong to the run is set aside with the reason. A node without a record is named, and its time is not
measured time: it lowers the coverage, and it is never merged as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import GpuUsage, UsageRecord

#: A record begins in the prolog, after Slurm's start of the job. The clocks of node and controller may differ.
CLOCK_SECONDS = 600.0
RunKey = tuple[int, int]  # the raw job id, and Slurm's time of the start


class Sum(Struct, frozen=True):
    """Holds a sum over those GPUs that know the value, and their number. If no GPU knows the value, there is no Sum (None)."""

    value: float
    gpus: int


class TimePart(Struct, frozen=True):
    """Says that the GPUs did something for ``seconds``, of the ``of_seconds`` for which it is known what they did."""

    seconds: float
    of_seconds: float

    @property
    def percent(self) -> float | None:
        return min(100.0, 100 * self.seconds / self.of_seconds) if self.of_seconds > 0 else None


class Totals(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds the sums over all GPUs of a job. GPUs that other jobs could use at the same time (``shared``) are only counted.

    gpus: how many GPUs the records name. shared: how many of them are shared. gpu_seconds: the time of all GPUs that Slurm
    allocated, and seen_seconds: the part of it that is measured. busy: by NVML's utilisation. sm, tensor, dram: by GPM, over
    the time that GPM knows. zero_seconds: not busy at all. longest_zero: the longest such time, with node and GPU.
    cpu_seconds, cpus, memory: over the nodes that know them, and cpu_nodes is the number of these nodes.
    """

    gpus: int = 0
    shared: int = 0
    gpu_seconds: float = 0.0
    seen_seconds: float = 0.0
    busy: TimePart | None = None
    sm: TimePart | None = None
    tensor: TimePart | None = None
    dram: TimePart | None = None
    throttled: TimePart | None = None
    zero_seconds: Sum | None = None
    longest_zero_seconds: float | None = None
    longest_zero_at: str = ""
    energy_joules: Sum | None = None
    memory_max_bytes: int | None = None
    memory_total_bytes: int | None = None
    nvlink_bytes: Sum | None = None
    pcie_bytes: Sum | None = None
    cpu_seconds: float | None = None
    cpus: int | None = None
    cpu_nodes: int = 0


class JobReport(Struct, frozen=True, kw_only=True):
    """Holds what is known about one run of a job. records: in the order of the job's nodes. missing: the nodes that have given no
    record. at_unix: when the records were merged."""

    run: JobRun
    records: tuple[UsageRecord, ...]
    missing: tuple[str, ...]
    totals: Totals
    at_unix: float

    @property
    def coverage_percent(self) -> float | None:
        """Return the measured part of the allocated time, of GPUs if the job has some, otherwise of nodes. None for no time."""
        totals = self.totals
        if totals.gpu_seconds > 0:
            return min(100.0, 100 * totals.seen_seconds / totals.gpu_seconds)
        whole = self.run.seconds(self.at_unix) * len(self.run.nodes)
        seen = sum(max(0.0, record.alloc_seconds - record.gap_seconds) for record in self.records)
        return min(100.0, 100 * seen / whole) if whole > 0 else None

    @property
    def unnamed_gpus(self) -> int:
        """Return how many of the job's GPUs no record names although every node has given one. This happens to a job with GPUs of
        several types, because slurmd shows the prolog only those of the last type (docs/reference/usage-records.md)."""
        return 0 if self.missing else max(0, self.run.gpus - self.totals.gpus)

    @property
    def complete(self) -> bool:
        return not self.missing and all(record.end_unix is not None for record in self.records)


class SetAside(Struct, frozen=True, kw_only=True):
    """Names a record that was not merged, and the reason."""

    job: int
    node: str
    why: str


def merged(run: JobRun, records: Iterable[UsageRecord], now: float) -> tuple[JobReport, tuple[SetAside, ...]]:
    """Return the report of a run and the records that were set aside. Of several records of a node the fitting one counts
    (``_fits_better``)."""
    of_node: dict[str, UsageRecord] = {}
    aside: list[SetAside] = []
    for record in records:
        why = unfit(run, record, now)
        if why:
            aside.append(SetAside(job=run.job, node=record.node, why=why))
        elif record.node not in of_node or _fits_better(run, record, of_node[record.node]):
            of_node[record.node] = record
    return report_of(run, of_node, now), tuple(aside)


def report_of(run: JobRun, of_node: Mapping[str, UsageRecord], now: float) -> JobReport:
    """Return the report of a run from its records by node."""
    kept = tuple(of_node[node] for node in run.nodes if node in of_node)
    return JobReport(
        run=run,
        records=kept,
        missing=tuple(node for node in run.nodes if node not in of_node),
        totals=totals_of(run, kept, now),
        at_unix=now,
    )


def run_key(run: JobRun) -> RunKey:
    """Return what tells a run from the other runs of the same job."""
    return run.job, run.begin_unix


def by_run(
    runs: Sequence[JobRun], records: Iterable[UsageRecord], now: float
) -> tuple[dict[RunKey, dict[str, UsageRecord]], tuple[tuple[UsageRecord, str], ...]]:
    """Return the records of each run by node, and those that belong to no run, each with the reason.

    A job that was requeued has several runs, and a node has a record of each. A record belongs to the run whose begin is nearest.
    """
    of_job: dict[int, list[JobRun]] = {}
    for run in runs:
        of_job.setdefault(run.job, []).append(run)
    found: dict[RunKey, dict[str, UsageRecord]] = {}
    left_out: list[tuple[UsageRecord, str]] = []
    for record in records:
        known = of_job.get(record.job, [])
        whys = [unfit(run, record, now) for run in known]
        fitting = [run for run, why in zip(known, whys, strict=True) if not why]
        if not fitting:
            left_out.append((record, whys[-1] if whys else "is of a job that Slurm does not know"))
            continue
        run = nearest(record, fitting)
        of_node = found.setdefault(run_key(run), {})
        earlier = of_node.get(record.node)
        if earlier is None or _fits_better(run, record, earlier):
            of_node[record.node] = record
        if earlier is not None:
            other = earlier if of_node[record.node] is record else record
            left_out.append((other, "is not the last record of the same job and node"))
    return found, tuple(left_out)


def nearest(record: UsageRecord, runs: Sequence[JobRun]) -> JobRun:
    """Return the run whose begin is nearest to the begin of a record. ``runs``: at least one."""
    return min(runs, key=lambda run: abs(run.begin_unix - record.begin_unix))


def _fits_better(run: JobRun, record: UsageRecord, other: UsageRecord) -> bool:
    """Return whether a record is rather that of this run than another one of the same node: it begins nearer to the begin of the
    run, or begins at the same time and was written later. A requeued job may run on the same node again soon."""
    apart, other_apart = (abs(each.begin_unix - run.begin_unix) for each in (record, other))
    return (apart, -record.written_unix) <= (other_apart, -other.written_unix)


def unfit(run: JobRun, record: UsageRecord, now: float) -> str:
    """Return why a record does not belong to this run, or "" if it does."""
    last = now if run.end_unix is None else run.end_unix
    if record.job != run.job:
        return "is of another job"
    if record.node not in run.nodes:
        return "is of a node that the job did not have"
    if record.uid is not None and run.uid is not None and record.uid != run.uid:
        return "is of another user"
    if max(record.begin_unix, record.written_unix, record.end_unix or 0.0) > now + CLOCK_SECONDS:
        return "is from the future"
    if not run.begin_unix - CLOCK_SECONDS <= record.begin_unix <= last + CLOCK_SECONDS:
        return "is of another time than the job"
    return next((f"GPU {gpu.pci} {why}" for gpu in record.gpus if (why := _impossible(gpu, record.alloc_seconds))), "")


def _impossible(gpu: GpuUsage, alloc_seconds: float) -> str:
    """Return why the values of a GPU cannot be right, or ""."""
    if gpu.seen_seconds > alloc_seconds * 1.05 + 60:
        return "was seen for longer than the job had it"
    if (gpu.busy_seconds or 0.0) > gpu.seen_seconds * 1.01 + 1 or (gpu.zero_seconds or 0.0) > gpu.seen_seconds * 1.01 + 1:
        return "was busy or idle for longer than it was seen"
    if max(gpu.sm_active_seconds or 0.0, gpu.tensor_active_seconds or 0.0, gpu.dram_active_seconds or 0.0) > gpu.gpm_seconds + 1:
        return "was active for longer than GPM was read"
    if gpu.memory_total_bytes is not None and (gpu.memory_max_bytes or 0) > gpu.memory_total_bytes:
        return "used more memory than it has"
    return ""


def totals_of(run: JobRun, records: tuple[UsageRecord, ...], now: float) -> Totals:
    """Return the sums over the records. The allocated time is Slurm's, also for nodes without a record."""
    named = [(record, gpu) for record in records for gpu in record.gpus]
    own = [(record, gpu) for record, gpu in named if not gpu.shared]
    gpus = [gpu for _, gpu in own]
    longest = max(
        ((gpu.longest_zero_seconds, f"{record.node}/{gpu_label(gpu)}") for record, gpu in own if gpu.longest_zero_seconds),
        default=(None, ""),
    )
    hosts = [record.host for record in records]
    spent = [host.cpu_seconds for host in hosts if host.cpu_seconds is not None]
    return Totals(
        gpus=len(named),
        shared=len(named) - len(own),
        gpu_seconds=max(run.gpus, len(named)) * run.seconds(now),
        seen_seconds=sum(gpu.seen_seconds for _, gpu in named),
        busy=_time_part(gpus, lambda gpu: gpu.busy_seconds, lambda gpu: gpu.seen_seconds),
        sm=_time_part(gpus, lambda gpu: gpu.sm_active_seconds, lambda gpu: gpu.gpm_seconds),
        tensor=_time_part(gpus, lambda gpu: gpu.tensor_active_seconds, lambda gpu: gpu.gpm_seconds),
        dram=_time_part(gpus, lambda gpu: gpu.dram_active_seconds, lambda gpu: gpu.gpm_seconds),
        throttled=_time_part(gpus, _throttled, lambda gpu: gpu.seen_seconds),
        zero_seconds=_sum(gpu.zero_seconds for gpu in gpus),
        longest_zero_seconds=longest[0],
        longest_zero_at=longest[1],
        energy_joules=_sum(gpu.energy_joules for gpu in gpus),
        memory_max_bytes=max((gpu.memory_max_bytes for gpu in gpus if gpu.memory_max_bytes is not None), default=None),
        memory_total_bytes=max((gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None), default=None),
        nvlink_bytes=_sum(_both(gpu.nvlink_transmit_bytes, gpu.nvlink_receive_bytes) for gpu in gpus),
        pcie_bytes=_sum(_both(gpu.pcie_transmit_bytes, gpu.pcie_receive_bytes) for gpu in gpus),
        cpu_seconds=sum(spent) if spent else None,
        cpus=sum(host.cpus for host in hosts if host.cpus is not None) or None,
        cpu_nodes=len(spent),
    )


def gpu_label(gpu: GpuUsage) -> str:
    """Return how a GPU is named in a report: its minor number, with the place of a MIG device, otherwise its PCI address."""
    name = str(gpu.minor) if gpu.minor is not None else gpu.pci
    return f"{name} MIG {gpu.mig}" if gpu.mig else name


def _throttled(gpu: GpuUsage) -> float | None:
    """Return the largest of the times by reason. Reasons may overlap, so that their sum may be longer than the job."""
    return max(gpu.throttled_seconds.values()) if gpu.throttled_seconds else None


def _both(sent: int | None, received: int | None) -> float | None:
    return None if sent is None or received is None else float(sent + received)


def _sum(values: Iterator[float | None]) -> Sum | None:
    known = [value for value in values if value is not None]
    return Sum(float(sum(known)), len(known)) if known else None


def _time_part(
    gpus: list[GpuUsage], part: Callable[[GpuUsage], float | None], whole: Callable[[GpuUsage], float]
) -> TimePart | None:
    known = [(seconds, whole(gpu)) for gpu in gpus if (seconds := part(gpu)) is not None]
    return TimePart(sum(s for s, _ in known), sum(w for _, w in known)) if known else None
