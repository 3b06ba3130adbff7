"""Reads a folder with usage records and Slurm's accounting: the input of ``fairlead usage --from DIR`` and ``fairlead idle``.

*.json       one usage record each, as the agent writes it
jobs.psv     the output of sacct with the columns of ``COLUMNS``: SLURM_TIME_FORMAT=%s sacct -a -D -P --format=...
nodes.psv    the output of sinfo, for the capacity: sinfo -a -N -o '%N|%P|%G'
events.psv   the output of sacctmgr, for the time out of service: SLURM_TIME_FORMAT=%s sacctmgr -P show event
format=NodeName,TimeStart,TimeEnd

nodes.psv and events.psv may be missing. What they would say is then not known, and never 0.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TypeVar

from msgspec import Struct

from fairlead.errors import DataError, InputMissing
from fairlead.jobs.accounting_rows import COLUMNS, AccountedJob, NodeEvent, NodeGpus, jobs_of, node_events_of, node_gpus_of
from fairlead.jobs.usage_record import RECORD_MAX_BYTES, BadRecord, UsageRecord, decoded
from fairlead.model.plain_text import one_line

ROWS_MAX_BYTES = 1 << 30
RECORDS_MAX = 4_000_000
SACCT = f"SLURM_TIME_FORMAT=%s sacct -a -D -P --format={','.join(COLUMNS)} --starttime=... > jobs.psv"

Value = TypeVar("Value")


class UsageFolder(Struct, frozen=True, kw_only=True):
    """Holds what a folder has. nodes, events: None if the folder has no such file. mistakes: one line for each file or row that
    could not be read."""

    jobs: tuple[AccountedJob, ...]
    records: tuple[UsageRecord, ...]
    nodes: tuple[NodeGpus, ...] | None
    events: tuple[NodeEvent, ...] | None
    mistakes: tuple[str, ...]


def read_folder(folder: str) -> UsageFolder:
    """Return what a folder has. Raises InputMissing for a folder or a jobs.psv that is not there, DataError for a jobs.psv of
    which no line can be read."""
    mistakes: list[str] = []
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as e:
        raise InputMissing(f"{folder}: {getattr(e, 'strerror', None) or e}") from None
    lines = _lines(folder, "jobs.psv", mistakes)
    if lines is None:
        raise InputMissing(f"{folder}/jobs.psv: no such file", hint=SACCT)
    jobs = jobs_of(lines, mistakes)
    if not jobs and mistakes:
        raise DataError(f"{folder}/jobs.psv: {mistakes[0].removeprefix('jobs: ')}", hint=SACCT)
    nodes, events = _lines(folder, "nodes.psv", mistakes), _lines(folder, "events.psv", mistakes)
    return UsageFolder(
        jobs=tuple(jobs),
        nodes=None if nodes is None else tuple(node_gpus_of(nodes, mistakes)),
        events=None if events is None else tuple(node_events_of(events, mistakes)),
        records=tuple(records_of(folder, names, mistakes)),
        mistakes=tuple(mistakes),
    )


def records_of(folder: str, names: list[str], mistakes: list[str]) -> Iterator[UsageRecord]:
    """Yield the usage records of a folder. A file that is no usage record is named in ``mistakes``."""
    files = [name for name in names if name.endswith(".json") and not name.startswith(".")]
    if len(files) > RECORDS_MAX:
        mistakes.append(f"more than {RECORDS_MAX} files: the rest is not read")
    for name in files[:RECORDS_MAX]:
        try:
            yield decoded(_content(os.path.join(folder, name), RECORD_MAX_BYTES))
        except (BadRecord, OSError) as e:
            mistakes.append(f"{one_line(name, 100)}: {getattr(e, 'strerror', None) or e}")


def _content(path: str, bytes_max: int) -> bytes:
    """Return a regular file's content, or one byte more than ``bytes_max`` of it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "is not a regular file")
        return file.read(bytes_max + 1)


def _lines(folder: str, name: str, mistakes: list[str]) -> Iterator[str] | None:
    """Return the lines of a file of rows, or None if there is no such file. Raises InputMissing, DataError."""
    path = os.path.join(folder, name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > ROWS_MAX_BYTES:
        os.close(fd)
        raise DataError(f"{path}: is not a regular file of at most {ROWS_MAX_BYTES >> 30} GiB")
    return _decoded_lines(fd, name, mistakes)


def _decoded_lines(fd: int, name: str, mistakes: list[str]) -> Iterator[str]:
    with open(fd, "rb") as file:
        while line := file.readline(1 << 20):
            if (
                not line.endswith(b"\n") and len(line) < 1 << 20
            ):  # the end of an output that was cut off may look like a whole row
                mistakes.append(f"{name}: the last line has no end: the output was cut off, and this line is not counted")
                return
            yield line.decode("ascii", "replace")
