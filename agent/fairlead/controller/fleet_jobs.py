"""Reads the runs of jobs for the report of the fleet, one after the other: from the store, or from the text of ``sacct -P``.

A year of jobs does not fit into memory as objects, so the lines are read in blocks by the reader of ``jobs.job_run``.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache

from fairlead.controller.job_store import FILE, JobStore
from fairlead.errors import HostError
from fairlead.fleet.job_exposure import FleetJob
from fairlead.jobs.job_run import JobRun, sacct_runs
from fairlead.model.nodelist import expand

BLOCK_LINES = 5000
MISTAKES_MAX = 50
_SELECT = "SELECT job, user, state, nodes, begin_unix, end_unix, gpus FROM run WHERE end_unix > ?"
_LINE = re.compile(r"\bline (\d+)\b")


def stored_jobs(folder: str, since_unix: float) -> Iterator[FleetJob]:
    """Yield the runs of the store that ended after a time. Raises InputMissing, DataError, HostError."""
    with JobStore(folder, write=False):
        pass  # says what is wrong with the file in its own words
    path = os.path.join(folder, FILE)
    try:
        db = sqlite3.connect(path, timeout=10.0)
        try:
            db.execute("PRAGMA query_only = ON")
            for job, user, state, nodes, begin, end, gpus in db.execute(_SELECT, (since_unix,)):
                yield FleetJob(job=job, user=user, state=state, nodes=_expanded(nodes), begin_unix=begin, end_unix=end, gpus=gpus)
        finally:
            db.close()
    except sqlite3.Error as e:
        raise HostError(f"{path}: {e}") from None


@lru_cache(maxsize=16384)
def _expanded(nodelist: str) -> tuple[str, ...]:
    return tuple(expand(nodelist))


def recorded_jobs(lines: Iterable[str], mistakes: list[str]) -> Iterator[FleetJob]:
    """Yield the runs in the lines of ``sacct -a -D -X -P``. The reason of each line that cannot be read is added to
    ``mistakes``."""
    header = ""
    block: list[str] = []
    start = 1
    for line in lines:
        if not header:
            header = line
            continue
        block.append(line)
        if len(block) == BLOCK_LINES:
            yield from _block(header, block, start, mistakes)
            start += len(block)
            block = []
    if header:
        yield from _block(header, block, start, mistakes)
    else:
        mistakes.append("jobs: is empty, not even a first line with the names of the columns")


def _block(header: str, block: list[str], start: int, mistakes: list[str]) -> Iterator[FleetJob]:
    """Yield the runs of some lines. start: the number of the line before them."""
    found: list[str] = []
    runs = sacct_runs([header, *block], found)
    for mistake in found:
        if len(mistakes) < MISTAKES_MAX:
            mistakes.append(_LINE.sub(lambda match: f"line {int(match[1]) + start - 1}", mistake))
    yield from map(_fleet_job, runs)


def _fleet_job(run: JobRun) -> FleetJob:
    return FleetJob(
        job=run.job,
        user=run.user,
        state=run.state,
        nodes=run.nodes,
        begin_unix=run.begin_unix,
        end_unix=run.end_unix,
        gpus=run.gpus,
    )
