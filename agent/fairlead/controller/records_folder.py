"""Reads a folder with usage records and what Slurm printed: the input of every ``--from DIR``.

*.json       one usage record each, as the agent writes it, in the folder and in folders below it
jobs.psv     the output of sacct with the columns of ``SACCT_COLUMNS``
nodes.psv    the output of sinfo, for the capacity
events.psv   the output of sacctmgr, for the time out of service

nodes.psv and events.psv may be missing. What they would say is then not known, and never 0. Records are read in a process without
any right, because nodes wrote them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fairlead.controller.record_reader import RecordReader
from fairlead.controller.table_file import table_lines
from fairlead.errors import DataError, InputMissing
from fairlead.jobs.job_run import SACCT_COLUMNS, JobRun, sacct_runs
from fairlead.jobs.node_rows import NodeEvent, NodeGpus, node_events_of, node_gpus_of
from fairlead.jobs.usage_merge import JobReport, by_run, report_of, run_key
from fairlead.jobs.usage_record import RECORD_MAX_BYTES, UsageRecord
from fairlead.model.plain_text import one_line

ROWS = "jobs.psv"
FILES_MAX = 4_000_000
SACCT = f"SLURM_TIME_FORMAT=%s sacct -a -D -P --format={','.join(SACCT_COLUMNS)} --starttime=... > {ROWS}"
#: A record, and the name under which messages speak of it.
NamedRecord = tuple[str, UsageRecord]


class Recorded(Struct, frozen=True, kw_only=True):
    """Holds what is known about some time: the runs of jobs, the usage records, and what Slurm says of the nodes. nodes, events:
    None if that is not known. mistakes: one line for each file or row that could not be read."""

    runs: tuple[JobRun, ...]
    records: tuple[NamedRecord, ...]
    nodes: tuple[NodeGpus, ...] | None
    events: tuple[NodeEvent, ...] | None
    mistakes: tuple[str, ...]


def read_folder(folder: str) -> Recorded:
    """Return what a folder has. Raises InputMissing for a folder or a jobs.psv that is not there, DataError for a jobs.psv of
    which no line can be read, HostError if no process can be started that reads records."""
    mistakes: list[str] = []
    lines = table_lines(folder, ROWS, mistakes)
    if lines is None:
        raise InputMissing(f"{folder}/{ROWS}: No such file or directory", hint=SACCT)
    runs = sacct_runs(lines, mistakes)
    if not runs and mistakes:
        raise DataError(f"{folder}/{ROWS}: {mistakes[0].removeprefix('sacct: ')}", hint=SACCT)
    nodes, events = table_lines(folder, "nodes.psv", mistakes), table_lines(folder, "events.psv", mistakes)
    return Recorded(
        runs=tuple(runs),
        nodes=None if nodes is None else tuple(node_gpus_of(nodes, mistakes)),
        events=None if events is None else tuple(node_events_of(events, mistakes)),
        records=tuple(read_records(folder, mistakes)),
        mistakes=tuple(mistakes),
    )


def has_rows(folder: str) -> bool:
    """Return whether a folder says by itself which jobs there are."""
    return os.path.exists(os.path.join(folder, ROWS))


def read_records(folder: str, mistakes: list[str]) -> list[NamedRecord]:
    """Return the usage records of a folder. A file that is no usage record is named in ``mistakes``. Raises HostError."""
    found: list[NamedRecord] = []
    with RecordReader() as reader:
        for name, data in _files(folder, mistakes):
            read = reader.read(data)
            mistakes += [f"{name}: {trouble.removeprefix('record 1 ')}" for trouble in read.troubles]
            found += [(name, record) for record in read.records]
    return found


def reports_of(found: Recorded, now: float) -> tuple[tuple[JobReport, ...], tuple[str, ...]]:
    """Return the report of each run, and in one line each what was not merged, and why."""
    of_run, left_out = by_run(found.runs, (record for _, record in found.records), now)
    reports = tuple(report_of(run, of_run.get(run_key(run), {}), now) for run in found.runs)
    return reports, (*found.mistakes, *named(found.records, left_out))


def named(records: Sequence[NamedRecord], left_out: Sequence[tuple[UsageRecord, str]]) -> list[str]:
    """Return in one line each which records were left out, and why."""
    names = {id(record): name for name, record in records}
    return [f"{names[id(record)]}: {why}: it is set aside" for record, why in left_out]


def _files(folder: str, mistakes: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file with a record. The content has one byte too many if the file is too long."""
    below = [(here, name) for here, _, files in os.walk(folder) for name in files if name.endswith(".json") and name[0] != "."]
    if len(below) > FILES_MAX:
        mistakes.append(f"more than {FILES_MAX} files: the rest is not read")
    for path in sorted(os.path.join(here, name) for here, name in below)[:FILES_MAX]:
        name = one_line(os.path.relpath(path, folder), 200)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as f:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    yield name, f.read(RECORD_MAX_BYTES + 1)
                    continue
            mistakes.append(f"{name}: is no regular file")
        except OSError as e:
            mistakes.append(f"{name}: {e.strerror}")
