"""Defines ``busy/1``: what of the GPUs' capacity was allocated, busy and SM-active in a period. The definition is frozen.

All figures are GPU-seconds over one period and one list of nodes:

capacity    the GPUs that Slurm counts on the nodes, times the length of the period
available   capacity less the time in which the node was down or drained
allocated   the GPUs of jobs (AllocTRES), times the part of the job's time that lies in the period
busy        the integral of NVML's utilisation (the part of the time in which a kernel ran) over allocated time
sm          the integral of GPM's SM activity over allocated time (Hopper and later)

A MIG device counts as Slurm counts it, as one. A GPU that several jobs have at once (shards, MPS) is not in these figures,
because its values are those of no single job: its time is ``shared``. Allocated time in which nobody measured is ``unmeasured``.
A ratio is a band: the low end takes unmeasured time as 0, the high end takes it as busy. A record holds only sums over the whole
job. Of a job that lies partly in the period, the same part of each sum counts, and ``divided`` says how much of the allocated
time this was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fairlead.jobs.allocations import Allocation
from fairlead.jobs.node_rows import NodeEvent, NodeGpus
from fairlead.jobs.usage_record import UsageRecord

DEFINITION = "busy/1"


class Period(Struct, frozen=True):
    """Begins at begin_unix and ends before end_unix, in seconds of Unix time. name: as a person has written it."""

    begin_unix: float
    end_unix: float
    name: str = ""

    @property
    def seconds(self) -> float:
        return self.end_unix - self.begin_unix

    def part(self, begin: float, end: float | None) -> float:
        """Return the seconds of a time that lie in this period. ``end``: None if the time still goes on."""
        last = self.end_unix if end is None else min(end, self.end_unix)
        return max(0.0, last - max(begin, self.begin_unix))


class Band(Struct, frozen=True):
    """Holds a ratio from 0 to 1: measured is the ratio over measured time only. low and high take unmeasured time as 0 and as
    busy."""

    measured: float
    low: float
    high: float


class Ladder(Struct, frozen=True, kw_only=True):
    """Holds the sums of ``busy/1`` in GPU-seconds, and what belongs to them. None: it is not known.

    seen: allocated time in which the utilisation is known. sm_seen: allocated time that GPM covers; busy_where_sm: the busy time
    of the GPUs that have GPM. zero: the allocated time in which a GPU was not busy at all between two readings of the agent.
    energy_seen: the allocated time for which the energy counter gave a value. throttled: by reason.
    """

    allocated: float = 0.0
    seen: float = 0.0
    busy: float = 0.0
    zero: float = 0.0
    sm: float = 0.0
    sm_seen: float = 0.0
    busy_where_sm: float = 0.0
    shared: float = 0.0
    divided: float = 0.0
    energy_joules: float = 0.0
    energy_seen: float = 0.0
    jobs: int = 0
    nodes_without_record: int = 0
    capacity: float | None = None
    available: float | None = None

    @property
    def unmeasured(self) -> float:
        return max(0.0, self.allocated - self.seen)

    @property
    def coverage(self) -> float | None:
        """Return the measured part of the allocated time, or None if nothing was allocated."""
        return min(1.0, self.seen / self.allocated) if self.allocated else None

    @property
    def busy_of_allocated(self) -> Band | None:
        return _band(self.busy, self.seen, self.allocated, self.allocated)

    @property
    def busy_of_capacity(self) -> Band | None:
        if not self.capacity or not self.seen:
            return None
        scaled = self.busy / self.seen * self.allocated / self.capacity
        return Band(scaled, self.busy / self.capacity, (self.busy + self.unmeasured) / self.capacity)

    @property
    def sm_of_busy(self) -> float | None:
        """Return SM-active time over busy time on the GPUs that have GPM, or None if there are none."""
        return self.sm / self.busy_where_sm if self.busy_where_sm else None

    @property
    def sm_of_allocated(self) -> Band | None:
        return _band(self.sm, self.sm_seen, self.allocated, self.allocated)

    @property
    def allocated_of_available(self) -> float | None:
        return self.allocated / self.available if self.available else None

    @property
    def allocated_of_capacity(self) -> float | None:
        return self.allocated / self.capacity if self.capacity else None


def _band(value: float, measured: float, whole: float, of: float) -> Band | None:
    if not measured or not of:
        return None
    return Band(value / measured, value / of, min(1.0, (value + max(0.0, whole - measured)) / of))


def ladder(allocations: Iterable[Allocation], period: Period) -> Ladder:
    """Return the sums over these allocations in the period, without capacity."""
    sums = dict.fromkeys(("allocated", "seen", "busy", "zero", "sm", "sm_seen", "busy_where_sm", "shared", "divided"), 0.0)
    energy = {"energy_joules": 0.0, "energy_seen": 0.0}
    jobs, without = set(), 0
    for each in allocations:
        inside = period.part(each.begin_unix, each.end_unix)
        if not inside or not each.gpus:
            continue
        jobs.add((each.job.job, each.begin_unix))
        if each.record is None:
            without += 1
            sums["allocated"] += inside * each.gpus
        else:
            _add(sums, energy, each, each.record, inside)
    return Ladder(**sums, **energy, jobs=len(jobs), nodes_without_record=without)


def _add(sums: dict[str, float], energy: dict[str, float], each: Allocation, record: UsageRecord, inside: float) -> None:
    """Add one allocation that has a record. inside: how much of its time lies in the period, in seconds."""
    whole = _whole_seconds(each, record.written_unix)
    part = min(1.0, inside / whole) if whole else 0.0
    sums["shared"] += inside * sum(gpu.shared for gpu in record.gpus)
    own = [gpu for gpu in record.gpus if not gpu.shared]
    allocated = inside * max(0.0, each.gpus - (len(record.gpus) - len(own)))
    sums["allocated"] += allocated
    if part < 1.0:
        sums["divided"] += allocated
    for gpu in own:
        energy["energy_joules"] += part * (gpu.energy_joules or 0.0)
        if gpu.energy_joules is not None:
            energy["energy_seen"] += max(0.0, inside - part * gpu.energy_gap_seconds)
        if gpu.busy_seconds is None:
            continue  # the utilisation of this GPU is not known (a MIG device without GPM)
        sums["seen"] += min(inside, part * gpu.seen_seconds)
        sums["busy"] += min(inside, part * gpu.busy_seconds)
        sums["zero"] += min(inside, part * (gpu.zero_seconds or 0.0))
        if gpu.sm_active_seconds is not None and gpu.gpm_seconds:
            sums["sm"] += part * gpu.sm_active_seconds
            sums["sm_seen"] += min(inside, part * gpu.gpm_seconds)
            sums["busy_where_sm"] += part * gpu.busy_seconds


def _whole_seconds(each: Allocation, written_unix: float) -> float:
    """Return the length of an allocation in seconds, whatever the period. A running job is as long as its record."""
    return max(0.0, (each.end_unix if each.end_unix is not None else written_unix) - each.begin_unix)


def with_capacity(sums: Ladder, nodes: Sequence[NodeGpus] | None, events: Sequence[NodeEvent] | None, period: Period) -> Ladder:
    """Return the sums with capacity and available time. nodes, events: None if they are not known."""
    if nodes is None:
        return sums
    gpus = {node.node: node.gpus for node in nodes}
    capacity = sum(gpus.values()) * period.seconds
    if events is None:
        return replace(sums, capacity=capacity)
    lost = sum(gpus[node] * seconds for node, seconds in _out_of_service(events, period).items() if node in gpus)
    return replace(sums, capacity=capacity, available=capacity - lost)


def _out_of_service(events: Iterable[NodeEvent], period: Period) -> dict[str, float]:
    """Return the seconds of each node that lie in an event and in the period. Events that overlap count once."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        begin = max(event.begin_unix, period.begin_unix)
        end = period.end_unix if event.end_unix is None else min(event.end_unix, period.end_unix)
        if end > begin:
            spans.setdefault(event.node, []).append((begin, end))
    found = {}
    for node, parts in spans.items():
        total, until = 0.0, 0.0
        for begin, end in sorted(parts):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        found[node] = total
    return found


def ladders_by(allocations: Iterable[Allocation], period: Period, key: Callable[[Allocation], str]) -> list[tuple[str, Ladder]]:
    """Return a ladder for each value of ``key`` (user, account, partition), the largest allocated time first."""
    groups: dict[str, list[Allocation]] = {}
    for each in allocations:
        groups.setdefault(key(each), []).append(each)
    found = [(name, ladder(group, period)) for name, group in groups.items()]
    return sorted(((n, s) for n, s in found if s.jobs), key=lambda pair: (-pair[1].allocated, pair[0]))


def mix(allocations: Iterable[Allocation], period: Period) -> dict[str, float]:
    """Return the allocated GPU-seconds by kind of job: batch, interactive, mig, shared, unknown."""
    found = dict.fromkeys(("batch", "interactive", "mig", "shared", "unknown"), 0.0)
    for each in allocations:
        inside = period.part(each.begin_unix, each.end_unix)
        gpus = each.record.gpus if each.record is not None else ()
        shared, mig = sum(gpu.shared for gpu in gpus), sum(bool(gpu.mig) and not gpu.shared for gpu in gpus)
        found["shared"] += inside * shared
        found["mig"] += inside * mig
        found[each.job.kind or "unknown"] += inside * max(0.0, each.gpus - shared - mig)
    return found
