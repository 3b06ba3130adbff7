"""Joins the jobs of Slurm's accounting with the usage records of the nodes: one allocation for each job and node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_merge import by_run, run_key
from fairlead.jobs.usage_record import UsageRecord


class Allocation(Struct, frozen=True, kw_only=True):
    """Holds what one job had on one node. gpus: how many GPUs Slurm allocated there; it is not whole if a node without a record
    gets its part of the job's GPUs by division. end_unix: None while the job runs. record: None if the node gave none."""

    job: JobRun
    node: str
    gpus: float
    begin_unix: float
    end_unix: float | None
    record: UsageRecord | None = None


class Joined(Struct, frozen=True, kw_only=True):
    """Holds all allocations, and the records that belong to none of them, each with the reason."""

    allocations: tuple[Allocation, ...]
    left_out: tuple[tuple[UsageRecord, str], ...]


def joined(jobs: Sequence[JobRun], records: Iterable[UsageRecord], now: float) -> Joined:
    """Return the allocations of these jobs. A record that belongs to none of them is left out and named."""
    of_run, left_out = by_run(jobs, records, now)
    found = [each for job in jobs for each in allocations_of(job, of_run.get(run_key(job), {}))]
    return Joined(allocations=tuple(found), left_out=left_out)


def allocations_of(job: JobRun, records: Mapping[str, UsageRecord]) -> list[Allocation]:
    """Return one allocation for each node of a job. records: by node. GPUs that no record names are divided among the nodes
    without a record."""
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
