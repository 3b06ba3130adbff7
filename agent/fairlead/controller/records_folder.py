"""Reads recorded usage records and Slurm's rows from a folder, and merges them without Slurm.

*.json       one usage record each, as the agent writes it, in the folder and in folders below it
jobs.psv     the output of ``SLURM_TIME_FORMAT=%s sacct -a -D -X -P -o`` with the columns of ``job_run.SACCT_COLUMNS``
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from fairlead.controller.record_reader import RecordReader
from fairlead.errors import InputMissing
from fairlead.jobs.job_run import JobRun, sacct_runs
from fairlead.jobs.usage_merge import JobReport, merged, unfit
from fairlead.jobs.usage_record import RECORD_MAX_BYTES, UsageRecord

ROWS = "jobs.psv"
ROWS_MAX_BYTES = 1 << 30
FILES_MAX = 1_000_000


class Recorded(Struct, frozen=True, kw_only=True):
    """Holds the reports of a folder, and in one line each what was not merged, and why."""

    reports: tuple[JobReport, ...]
    troubles: tuple[str, ...]


def recorded(folder: str, now: float) -> Recorded:
    """Return the reports of all runs in a folder. Raises InputMissing if it or its rows are not there."""
    troubles: list[str] = []
    runs = _runs(folder, troubles)
    found: list[tuple[str, UsageRecord]] = []
    with RecordReader() as reader:
        for path, data in _files(folder, troubles):
            read = reader.read(data)
            name = os.path.relpath(path, folder)
            troubles += [f"{name}: {trouble}" for trouble in read.troubles]
            found += [(name, record) for record in read.records]
    of_job: dict[int, list[tuple[str, UsageRecord]]] = {}
    for name, record in found:
        of_job.setdefault(record.job, []).append((name, record))
    reports = []
    for run in runs:
        fits = [record for name, record in of_job.get(run.job, ()) if not unfit(run, record, now)]
        reports.append(merged(run, fits, now)[0])
    by_job: dict[int, list[JobRun]] = {}
    for run in runs:
        by_job.setdefault(run.job, []).append(run)
    for name, record in found:
        why = [unfit(run, record, now) for run in by_job.get(record.job, ())]
        if all(why):
            troubles.append(f"{name}: {why[-1] if why else 'is of a job that Slurm does not know'}: it is set aside")
    return Recorded(reports=tuple(reports), troubles=tuple(troubles))


def _runs(folder: str, troubles: list[str]) -> list[JobRun]:
    path = os.path.join(folder, ROWS)
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return sacct_runs(f.read(ROWS_MAX_BYTES).splitlines(), troubles)
    except OSError as e:
        hint = f"fairlead collect --help says how sacct writes {ROWS}"
        raise InputMissing(f"{path}: {e.strerror}", hint=hint) from None


def _files(folder: str, troubles: list[str]) -> Iterator[tuple[str, bytes]]:
    names = sorted(os.path.join(here, name) for here, _, files in os.walk(folder) for name in files if name.endswith(".json"))
    for path in names[:FILES_MAX]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as f:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    yield path, f.read(RECORD_MAX_BYTES + 1)
                    continue
            troubles.append(f"{os.path.relpath(path, folder)}: is no regular file")
        except OSError as e:
            troubles.append(f"{os.path.relpath(path, folder)}: {e.strerror}")
