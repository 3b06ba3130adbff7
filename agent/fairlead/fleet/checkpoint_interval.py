"""Computes how often a job should save: from the fleet's own node failures, and from the ends by time limit and preemption.

Young's formula: interval = sqrt(2 x save time x mean time to failure). The optimum is flat: an interval that is off by the factor
f costs (f + 1/f) / 2 of the least overhead. With five failures the interval from the point estimate costs at most 16 % more
than the best one at either end of the 95 % interval of the rate, and with fewer it may cost a third more: then there is no hint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.fleet.small_group_statistics import poisson_interval

DAY_SECONDS = 86400.0
FAILURES_MIN = 5
NODES_MIN = 4
ONE_FAILURE_SECONDS = 600.0  # failures on a common node within this time are one failure
ONE_DRAIN_SECONDS = 7 * 86400.0  # ... and so is a finding of one check that comes back on a node before it was repaired
PREEMPTIONS_MIN = 5
PREEMPTED_SAVE_SECONDS = 1800.0


class JobEnd(Struct, frozen=True, kw_only=True):
    """Holds what the hint needs of one run of a job. failed: "" or the cause of a node failure that ended the job, or would have.
    failed_nodes: the nodes of that failure, or all nodes of the job if nobody knows them. ended: False while the job runs, and
    then end_unix is the last time that is known."""

    job: int
    nodes: tuple[str, ...]
    begin_unix: float
    end_unix: float
    state: str
    partition: str = ""
    failed: str = ""
    failed_nodes: tuple[str, ...] = ()
    ended: bool = True


class Losses(Struct, frozen=True, kw_only=True):
    """Holds how jobs of one partition ended other than by a node failure. lost_node_hours: at least so much was lost (the shorter
    of the run time and 30 minutes, on each node). run_node_hours: of all its jobs."""

    partition: str
    jobs: int
    preempted: int
    timed_out: int
    preempted_each_seconds: float | None
    lost_node_hours: float
    run_node_hours: float


class FailureRate(Struct, frozen=True, kw_only=True):
    """Holds node failures in allocated node-days, from begin_unix to end_unix. low, high: 95 % interval of the expected count."""

    failures: int
    node_days: float
    low: float
    high: float
    begin_unix: float
    end_unix: float
    causes: dict[str, int]

    @property
    def per_thousand(self) -> tuple[float, float] | None:
        return (1000 * self.low / self.node_days, 1000 * self.high / self.node_days) if self.node_days > 0 else None


class Hint(Struct, frozen=True, kw_only=True):
    """Holds the hint for a job. mean_*: between failures of a job of this size, None if no failure was seen (mean) or nothing is
    known. interval_seconds: None without enough failures, or without a save time. why_none: the reason. interval_low_seconds and
    interval_high_seconds: the best intervals at the ends of the rate's 95 % interval. All of them cost about the same."""

    nodes: int
    save_seconds: float | None
    rate: FailureRate
    mean_seconds: float | None
    mean_low_seconds: float | None
    mean_high_seconds: float | None
    interval_seconds: float | None = None
    interval_low_seconds: float | None = None
    interval_high_seconds: float | None = None
    overhead_percent: float | None = None
    why_none: str = ""
    losses: Losses | None = None


def failure_rate(jobs: Sequence[JobEnd], begin_unix: float, end_unix: float) -> FailureRate:
    """Return the node failures of the jobs in a time window, over the time in which their nodes were allocated."""
    inside = [job for job in jobs if job.end_unix > begin_unix and job.begin_unix < end_unix]
    exposure = sum(len(j.nodes) * (min(j.end_unix, end_unix) - max(j.begin_unix, begin_unix)) for j in inside)
    failures = distinct_failures(job for job in inside if begin_unix < job.end_unix <= end_unix)
    low, high = poisson_interval(len(failures))
    causes: dict[str, int] = {}
    for job in failures:
        causes[job.failed] = causes.get(job.failed, 0) + 1
    return FailureRate(
        failures=len(failures),
        node_days=exposure / DAY_SECONDS,
        low=low,
        high=high,
        begin_unix=begin_unix,
        end_unix=end_unix,
        causes=causes,
    )


def distinct_failures(jobs: Iterable[JobEnd]) -> list[JobEnd]:
    """Return the jobs that a node failure ended, one for each failure.

    Jobs with a common node that end together had the same failure. A finding that comes back on the same node is the same too.
    """
    found: list[JobEnd] = []
    latest: dict[str, list[JobEnd]] = {}
    for job in sorted((job for job in jobs if job.failed), key=lambda job: (job.end_unix, job.job)):
        if not any(_same(job, other) for node in job.failed_nodes for other in latest.get(node, ())):
            found.append(job)
        for node in job.failed_nodes:
            latest.setdefault(node, []).append(job)
    return found


def _same(job: JobEnd, other: JobEnd) -> bool:
    apart = job.end_unix - other.end_unix
    return apart <= ONE_FAILURE_SECONDS or (
        job.failed == other.failed and job.failed.startswith("drain ") and apart <= ONE_DRAIN_SECONDS
    )


def losses_of(jobs: Iterable[JobEnd], partition: str) -> Losses:
    """Return how the jobs of a partition ended by time limit and preemption. ``partition``: "" for all."""
    own = [job for job in jobs if partition in ("", job.partition)]
    preempted = [job for job in own if job.state == "PREEMPTED"]
    timed_out = [job for job in own if job.state == "TIMEOUT"]
    run = sum(job.end_unix - job.begin_unix for job in own)
    return Losses(
        partition=partition,
        jobs=sum(job.ended for job in own),
        preempted=len(preempted),
        timed_out=len(timed_out),
        preempted_each_seconds=run / len(preempted) if preempted else None,
        lost_node_hours=sum(len(j.nodes) * min(j.end_unix - j.begin_unix, 1800.0) for j in (*preempted, *timed_out)) / 3600,
        run_node_hours=sum(len(j.nodes) * (j.end_unix - j.begin_unix) for j in own) / 3600,
    )


def hint(nodes: int, save_seconds: float | None, rate: FailureRate, losses: Losses | None = None) -> Hint:
    """Return how often a job of so many nodes should save. save_seconds: for how long a save stops the job; None: not known."""
    node_seconds = rate.node_days * DAY_SECONDS
    mean = node_seconds / rate.failures / nodes if rate.failures else None
    low = node_seconds / rate.high / nodes if node_seconds > 0 else None
    high = node_seconds / rate.low / nodes if rate.low > 0 else None
    made = Hint(
        nodes=nodes,
        save_seconds=save_seconds,
        rate=rate,
        mean_seconds=mean,
        mean_low_seconds=low,
        mean_high_seconds=high,
        losses=losses,
        why_none=_why_none(nodes, save_seconds, rate),
    )
    if made.why_none or mean is None or save_seconds is None:
        return made
    interval = best_interval(save_seconds, mean)
    return Hint(
        **{name: getattr(made, name) for name in made.__struct_fields__ if not name.startswith(("interval", "overhead"))},
        interval_seconds=interval,
        interval_low_seconds=interval if low is None else best_interval(save_seconds, low),
        interval_high_seconds=interval if high is None else best_interval(save_seconds, high),
        overhead_percent=100 * (save_seconds / interval + interval / (2 * mean)),
    )


def _why_none(nodes: int, save_seconds: float | None, rate: FailureRate) -> str:
    if rate.node_days <= 0:
        return "no job with GPUs has run in this time: nothing is known of node failures"
    if nodes < NODES_MIN:
        return f"a job of fewer than {NODES_MIN} nodes seldom meets a node failure: the time limit and preemption decide"
    if rate.failures < FAILURES_MIN:
        return f"too few failures for a hint: {rate.failures}, and {FAILURES_MIN} are needed"
    if save_seconds is None:
        return "the save time is not known: measure for how long a save stops the job, and give it as --save 2m"
    return ""


def best_interval(save_seconds: float, mean_seconds: float) -> float:
    """Return Daly's interval between saves, in seconds of work (doi 10.1016/j.future.2004.11.016)."""
    if save_seconds >= 2 * mean_seconds:
        return mean_seconds
    ratio = save_seconds / (2 * mean_seconds)
    young = math.sqrt(2 * save_seconds * mean_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds
