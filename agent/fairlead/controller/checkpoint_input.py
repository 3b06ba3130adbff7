"""Turns the jobs of Slurm's accounting, with what their nodes have recorded, into what the checkpoint hint counts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.controller.job_store import JobStore
from fairlead.controller.store_usage import running_runs
from fairlead.fleet.checkpoint_interval import JobEnd
from fairlead.jobs.allocations import Allocation
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_merge import run_key
from fairlead.jobs.usage_record import UsageRecord
from fairlead.slurm.scontrol import Scontrol

NODE_FAIL = frozenset(("NODE_FAIL", "BOOT_FAIL"))
STALE_SECONDS = 3600.0  # fairlead collect does a round each minute


class StoredEnds(Struct, frozen=True, kw_only=True):
    """Holds the runs of the store. oldest_unix: when the first known run began. newest_unix: the runs that ended until then are
    known. records: how many usage records there are."""

    ends: tuple[JobEnd, ...]
    oldest_unix: float
    newest_unix: float
    records: int


def stored_ends(folder: str, client: Scontrol, seconds: float, now: float, mistakes: list[str]) -> StoredEnds:
    """Return the runs of jobs with GPUs in the last ``seconds`` of the collector's store, and those that run now. Raises
    InputMissing, DataError, HostError of the store. What Slurm does not say is named in ``mistakes``."""
    with JobStore(folder, write=False) as store:
        newest = min(float(store.kept("cursor") or store.last_end() or now), now)
        drains: dict[tuple[int, int], list[UsageRecord]] = {}
        records = 0
        for key, record in store.records_with(b'"level":"drain"'):
            records += 1
            if record is not None:
                drains.setdefault(key, []).append(record)
        runs = [run for run in store.each_run(newest - seconds, newest) if run.gpus]
        oldest = store.first_begin()
    if now - newest > STALE_SECONDS:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest))
        mistakes.append(f"{folder}: the store is of {until}: what ran later is not counted. Does fairlead-collect.timer run?")
    runs += [run for run in running_runs(client, newest, {run_key(run) for run in runs}, mistakes) if run.gpus]
    return StoredEnds(
        ends=tuple(_end(run, drains.get(run_key(run), ()), newest) for run in runs),
        oldest_unix=newest if oldest is None else min(float(oldest), newest),
        newest_unix=newest,
        records=records,
    )


def ends_of(allocations: Iterable[Allocation], newest_unix: float) -> list[JobEnd]:
    """Return the runs of jobs with GPUs. ``newest_unix``: a job that has no end yet has run until then."""
    runs: dict[tuple[int, float], list[Allocation]] = {}
    for each in allocations:
        if each.job.gpus:
            runs.setdefault((each.job.job, each.job.begin_unix), []).append(each)
    return [_end(found[0].job, [a.record for a in found if a.record is not None], newest_unix) for found in runs.values()]


def _end(job: JobRun, records: Sequence[UsageRecord], newest_unix: float) -> JobEnd:
    last = max(job.begin_unix, newest_unix) if job.end_unix is None else job.end_unix
    failed, nodes = _failure(job.state, records)
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
