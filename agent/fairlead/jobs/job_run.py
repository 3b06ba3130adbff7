"""Reads the rows in which Slurm names jobs that have ended, or that run: one row for each run of a job.

The columns hold no text of a user: job name, comment and script are not asked for, because a user can write a line break or a
``|`` into them. Times are seconds of Unix time (``SLURM_TIME_FORMAT=%s``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from fairlead.model.nodelist import expand, is_name

#: What ``sacct --format`` prints (sacct(1)), and what ``squeue -O`` prints for the same (squeue(1)).
SACCT_COLUMNS = (
    *("JobIDRaw", "JobID", "UID", "User", "Account", "Partition", "State", "Start", "End", "TimelimitRaw", "NCPUS"),
    *("AllocTRES", "NodeList"),
)
SACCT_NEEDED = tuple(name for name in SACCT_COLUMNS if name not in ("JobID", "UID", "NCPUS"))
SQUEUE_COLUMNS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "UserID", "UserName", "Account", "Partition", "State", "StartTime", "EndTime"),
    *("TimeLimit", "NumCPUs", "tres-alloc", "NodeList"),
)
_LIKE_SACCT = (
    *("JobIDRaw", "array", "task", "UID", "User", "Account", "Partition", "State", "Start", "End", "limit", "NCPUS"),
    *("AllocTRES", "NodeList"),
)
#: The states of a job that has ended (sacct(1), JOB STATE CODES). The next run of a requeued job has
#: a row of its own.
ENDED = frozenset(
    (
        *(
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "DEADLINE",
            "FAILED",
            "LAUNCH_FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
        ),
        *("RECONFIG_FAIL", "REQUEUED", "TIMEOUT"),
    )
)
#: The states in which a job has its nodes.
HOLDING = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "STOPPED", "SIGNALING"))
_NUMBER = re.compile(r"[0-9]{1,10}")
_STEP = re.compile(r"[0-9]{1,10}\.[a-z0-9]{1,20}")
_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?")
_WORD = re.compile(r"[A-Za-z0-9_.@:+,-]{0,512}")  # a pending job may name several partitions
_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,7})")
_SPAN = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{2})")


class JobRun(Struct, frozen=True, kw_only=True):
    """Holds what Slurm says of one run of a job.

    job: the raw id, under which the nodes keep their usage records. label: the id as sacctmgr and users write it: ``17``,
    ``17_3`` for a task of an array, ``17+1`` for a component of a heterogeneous job. uid: None if Slurm does not say it.
    end_unix: None while the job runs. gpus: the number of GPUs or MIG devices by the allocated TRES, 0 for none.
    limit_seconds: None for no limit. cpus: over all nodes.
    """

    job: int
    label: str
    user: str
    account: str
    partition: str
    state: str
    nodes: tuple[str, ...]
    begin_unix: int
    end_unix: int | None = None
    uid: int | None = None
    gpus: int = 0
    cpus: int = 0
    limit_seconds: int | None = None

    def seconds(self, now: float) -> float:
        """Return how long the job ran, or has run at ``now``."""
        return max(0.0, (now if self.end_unix is None else self.end_unix) - self.begin_unix)


class BadRow(ValueError):
    """Says in one line why a row cannot be read."""


def sacct_runs(lines: Iterable[str], mistakes: list[str]) -> list[JobRun]:
    """Return the runs in the lines of ``sacct -D -P``, of which the first one names the columns, in any order.

    ``SACCT_NEEDED`` must be there. Jobs that never had a node, and steps, are left out. The reason of each line that cannot be
    read is added to ``mistakes``.
    """
    found: list[JobRun] = []
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        cells = line.rstrip("\n").split("|")
        if not header:
            header = cells
            if missing := [name for name in SACCT_NEEDED if name not in header]:
                mistakes.append(f"sacct: the first line has no column {', '.join(missing)}")
                return []
            continue
        try:
            if len(cells) != len(header):
                raise BadRow(f"it has {len(cells)} cells, and the first line has {len(header)}")
            row = dict(zip(header, cells, strict=True))
            run = None if _STEP.fullmatch(row["JobIDRaw"]) else _run(row, _minutes(row["TimelimitRaw"]))
        except BadRow as e:
            mistakes.append(f"sacct: line {number}: {e}")
        else:
            found += [run] if run is not None else []
    return found


def squeue_runs(rows: Iterable[Sequence[str]], mistakes: list[str]) -> list[JobRun]:
    """Return the runs in the rows of ``squeue -r -O`` with ``SQUEUE_COLUMNS``. slurmctld forgets an ended job after MinJobAge."""
    found = []
    for number, cells in enumerate(rows, 1):
        row = dict(zip(_LIKE_SACCT, (cell.strip() for cell in cells), strict=True))
        if _NUMBER.fullmatch(row["task"]):
            row["JobID"] = f"{row['array']}_{row['task']}"
        try:
            run = _run(row, _span(row["limit"]))
        except BadRow as e:
            mistakes.append(f"squeue: row {number}: {e}")
        else:
            found += [run] if run is not None else []
    return found


def _run(row: Mapping[str, str], limit: int | None) -> JobRun | None:
    """Return a run, or None if it has had no node. Raises BadRow."""
    start, end, nodelist = row["Start"], row["End"], row["NodeList"]
    if start in _NO_TIME or nodelist in ("None assigned", "", "(null)", "None"):
        return None
    job, uid, cpus = row["JobIDRaw"], row.get("UID", ""), row.get("NCPUS", "")
    label = row.get("JobID", job)
    user, account, partition = row["User"], row["Account"], row["Partition"]
    if not _NUMBER.fullmatch(job) or not _ID.fullmatch(label):
        raise BadRow("its id is not that of a job")
    if not all(_WORD.fullmatch(word) for word in (user, account, partition)):
        raise BadRow("user, account or partition is not a name")
    word = row["State"].partition(" ")[0]  # sacct prints "CANCELLED by 1001"
    if not re.fullmatch(r"[A-Z_]{1,32}", word):
        raise BadRow("its state is not a word")
    begin = _time(start)
    last = _time(end) if word in ENDED and end not in _NO_TIME else None
    if word in ENDED and last is None:
        raise BadRow("it has ended, and has no time of its end")
    return JobRun(
        job=int(job),
        label=label,
        uid=int(uid) if _NUMBER.fullmatch(uid) else None,
        user=user,
        account=account,
        partition=partition,
        state=word,
        begin_unix=begin,
        end_unix=None if last is None else max(begin, last),
        limit_seconds=limit,
        cpus=int(cpus) if _NUMBER.fullmatch(cpus) else 0,
        gpus=gpus_of(row["AllocTRES"]),
        nodes=_nodes(nodelist),
    )


_NO_TIME = frozenset(("Unknown", "None", "", "0", "N/A", "NONE"))


def _time(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,11}", text):
        raise BadRow("a time is not a number of seconds")
    return int(text)


def _minutes(text: str) -> int | None:
    return int(text) * 60 if _NUMBER.fullmatch(text) else None


def _span(text: str) -> int | None:
    """Return the seconds of squeue's ``D-HH:MM:SS``, or None for UNLIMITED."""
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@lru_cache(maxsize=16384)  # most jobs of a cluster have few different nodelists
def _nodes(text: str) -> tuple[str, ...]:
    try:
        names = tuple(expand(text))
    except ValueError:
        names = ("",)
    if not all(map(is_name, names)):
        raise BadRow("its nodelist makes no sense")
    return names


def gpus_of(tres: str) -> int:
    """Return the number of GPUs in ``cpu=8,gres/gpu=4,gres/gpu:h100=4``, or 0 for none."""
    found = _GPUS.findall(tres)
    whole = [int(number) for kind, number in found if not kind]
    return whole[0] if whole else sum(int(number) for _, number in found)
