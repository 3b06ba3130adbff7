"""Turns the jobs of Slurm's accounting, with what their nodes have recorded, into what the checkpoint hint counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.fleet.checkpoint_interval import JobEnd
from fairlead.jobs.allocations import Allocation
from fairlead.jobs.usage_record import UsageRecord

NODE_FAIL = frozenset(("NODE_FAIL", "BOOT_FAIL"))


def ends_of(allocations: Iterable[Allocation], newest_unix: float) -> list[JobEnd]:
    """Return the runs of jobs with GPUs. ``newest_unix``: a job that has no end yet has run until then."""
    runs: dict[tuple[int, float], list[Allocation]] = {}
    for each in allocations:
        if each.job.gpus:
            runs.setdefault((each.job.job, each.job.begin_unix), []).append(each)
    return [_end(found, newest_unix) for found in runs.values()]


def _end(found: Sequence[Allocation], newest_unix: float) -> JobEnd:
    job = found[0].job
    last = max(job.begin_unix, newest_unix) if job.end_unix is None else job.end_unix
    failed, nodes = _failure(job.state, [a.record for a in found if a.record is not None])
    return JobEnd(
        job=job.job,
        nodes=job.nodes,
        begin_unix=job.begin_unix,
        end_unix=last,
        state=job.state,
        partition=job.partition,
        failed=failed,
        failed_nodes=nodes or (job.nodes if failed else ()),
        ended=job.end_unix is not None,
    )


def _failure(state: str, records: Sequence[UsageRecord]) -> tuple[str, tuple[str, ...]]:
    """Return the cause of a node failure and its nodes, or "" and ()."""
    drains = [(finding.check, record.node) for record in records for finding in record.findings if finding.level == "drain"]
    if state in NODE_FAIL:
        return state, tuple(sorted({node for _, node in drains}))
    if not drains:
        return "", ()
    check = drains[0][0]
    return f"drain {check}", tuple(sorted({node for each, node in drains if each == check}))
