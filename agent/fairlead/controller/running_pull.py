"""Pulls the newest usage records of running GPU jobs into a folder, where ``fairlead idle`` reads them.

A folder lies between the two programs, so that the one that may tell and act needs no ssh key, and the one with the key no right
to tell or to act. Each record is written by rename. How old a record is, its own times say: a node that does not answer leaves
its last record, which soon counts as too old. The records of jobs that do not run any more are removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from fairlead.controller.record_pull import NodeRecords, nodes_to_ask, records_of_node
from fairlead.controller.record_reader import RecordReader
from fairlead.errors import HostError, next_step
from fairlead.host.atomic_file import write_atomic
from fairlead.jobs.idle_rule import START_SECONDS, RunningJob
from fairlead.jobs.usage_record import UsageRecord, encoded

_OURS = re.compile(r"[0-9]{1,10}-[A-Za-z0-9_.-]{1,64}\.json(?:\.[0-9]{1,10}\.tmp)?")
_MODE = 0o640  # the group of the folder reads: that of the idle program


class RunningPull(Struct, frozen=True, kw_only=True):
    """Says what one pull did. without: why a node gave no record of its jobs, by node."""

    jobs: int
    nodes: int
    records: int
    removed: int
    without: dict[str, str]


def pull_running(folder: str, jobs: Sequence[RunningJob], source: NodeRecords, nodes: frozenset[str] | None) -> RunningPull:
    """Bring the folder up to date for these running jobs. nodes: those with an agent, or None for all. Raises HostError."""
    of_job = {job.job: job for job in jobs}
    wanted: dict[str, set[int]] = {}
    for job in jobs:
        for node in job.nodes:
            if nodes is None or node in nodes:
                wanted.setdefault(node, set()).add(job.job)
    without: dict[str, str] = {}
    newest: dict[str, UsageRecord] = {}
    with RecordReader() as reader:
        for names, numbers in nodes_to_ask(wanted):
            for node, (answer, trouble) in source.fetch(names, numbers).items():
                found, why = records_of_node(reader, node, answer, trouble, wanted[node])
                running = [record for record in found if _is_newest(record, of_job[record.job])]
                newest |= {f"{record.job}-{node}.json": record for record in running}
                if missing := wanted[node] - {record.job for record in running}:
                    without[node] = why or f"it has no record of {', '.join(map(str, sorted(missing)[:5]))} that is open"
    removed = _update(folder, newest, {f"{job}-{node}.json" for node, numbers in wanted.items() for job in numbers})
    return RunningPull(jobs=len(jobs), nodes=len(wanted), records=len(newest), removed=removed, without=without)


def _is_newest(record: UsageRecord, job: RunningJob) -> bool:
    """Return whether a record is that of this run of the job, and not of an earlier one."""
    return record.end_unix is None and abs(record.begin_unix - job.begin_unix) <= START_SECONDS


def _update(folder: str, newest: dict[str, UsageRecord], wanted: set[str]) -> int:
    """Write the records, and remove those of other jobs. Return how many were removed. Raises HostError."""
    try:
        os.makedirs(folder, mode=0o750, exist_ok=True)
        for name, record in newest.items():
            write_atomic(os.path.join(folder, name), encoded(record), mode=_MODE)
        old = [name for name in os.listdir(folder) if _OURS.fullmatch(name) and name not in wanted]
        for name in old:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    except OSError as e:
        raise HostError(f"{folder}: {e.strerror}", hint=next_step(e) or "name another folder: --running DIR") from None
    return len(old)
