"""Joins the jobs of Slurm's accounting with the usage records of the nodes: one allocation for each job and node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.jobs.accounting_rows import AccountedJob
from fairlead.jobs.usage_record import UsageRecord

#: A record begins in the prolog. Slurm's Start is earlier, and the clocks of node and controller may differ.
CLOCK_SECONDS = 600.0


class Allocation(Struct, frozen=True, kw_only=True):
    """Holds what one job had on one node. gpus: how many GPUs Slurm allocated there; it is not whole if a node without a record
    gets its part of the job's GPUs by division. end_unix: None while the job runs. record: None if the node gave none."""

    job: AccountedJob
    node: str
    gpus: float
    begin_unix: float
    end_unix: float | None
    record: UsageRecord | None = None


class Joined(Struct, frozen=True, kw_only=True):
    """Holds all allocations, and the records that belong to none of them, each with the reason."""

    allocations: tuple[Allocation, ...]
    left_out: tuple[tuple[UsageRecord, str], ...]


def joined(jobs: Sequence[AccountedJob], records: Iterable[UsageRecord], now: float) -> Joined:
    """Return the allocations of these jobs. A record that is of no such job, of none of its nodes, of no such time, or from the
    future is left out and named."""
    runs: dict[int, list[AccountedJob]] = {}
    for job in jobs:
        runs.setdefault(job.job, []).append(job)
    of_run: dict[tuple[int, float], dict[str, UsageRecord]] = {}
    left_out: list[tuple[UsageRecord, str]] = []
    for record in records:
        run, why = _run_of(record, runs.get(record.job, []), now)
        if run is None:
            left_out.append((record, why))
            continue
        nodes = of_run.setdefault((run.job, run.begin_unix), {})
        earlier = nodes.get(record.node)
        if earlier is not None:
            left_out.append(
                (min(earlier, record, key=lambda r: r.written_unix), "a later record of the same job and node is there")
            )
        nodes[record.node] = record if earlier is None else max(earlier, record, key=lambda r: r.written_unix)
    found = [a for job in jobs for a in _of_job(job, of_run.get((job.job, job.begin_unix), {}))]
    return Joined(allocations=tuple(found), left_out=tuple(left_out))


def _run_of(record: UsageRecord, runs: Sequence[AccountedJob], now: float) -> tuple[AccountedJob | None, str]:
    if record.begin_unix > now + CLOCK_SECONDS or record.written_unix > now + CLOCK_SECONDS:
        return None, "it is from the future"
    if not runs:
        return None, "Slurm's accounting has no such job"
    within = [run for run in runs if run.begin_unix - CLOCK_SECONDS <= record.begin_unix <= (run.end_unix or now) + CLOCK_SECONDS]
    if not within:
        return None, "the job did not run at that time"
    run = min(within, key=lambda run: abs(run.begin_unix - record.begin_unix))
    if record.node not in run.nodes:
        return None, "the job did not run on that node"
    return run, ""


def _of_job(job: AccountedJob, records: dict[str, UsageRecord]) -> list[Allocation]:
    """Return one allocation for each node. GPUs that no record names are divided among the nodes without a record."""
    counted = {node: float(len(record.gpus)) for node, record in records.items()}
    without = [node for node in job.nodes if node not in records]
    if without:
        left = max(0.0, job.gpus - sum(counted.values())) / len(without)
        counted |= dict.fromkeys(without, left)
    elif job.gpus and job.gpus != sum(counted.values()) and sum(counted.values()) < job.gpus:
        # A record may lack a GPU (a job with several types of GPU): Slurm's number counts, and the rest is unmeasured.
        missing = (job.gpus - sum(counted.values())) / len(counted)
        counted = {node: number + missing for node, number in counted.items()}
    return [
        Allocation(
            job=job,
            node=node,
            gpus=counted[node],
            begin_unix=job.begin_unix,
            end_unix=job.end_unix,
            record=records.get(node),
        )
        for node in job.nodes
    ]
