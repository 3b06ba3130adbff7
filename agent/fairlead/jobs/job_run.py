"""Reads the rows in which Slurm names jobs that have ended, or that run: one row for each run of a job.

The columns hold no text of a user: job name, comment, script and submit line are not asked for, because a user can write a line
break or a ``|`` into them. Times are seconds of Unix time (``SLURM_TIME_FORMAT=%s``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from fairlead.jobs.table_rows import NO_TIME, BadRow, nodes_of, seconds_of, table_rows

#: What ``sacct --format`` prints (sacct(1)), and what ``squeue -O`` prints for the same (squeue(1)).
SACCT_COLUMNS = (
    *("JobIDRaw", "JobID", "UID", "User", "Account", "Partition", "QOS", "State", "Start", "End", "TimelimitRaw", "NCPUS"),
    *("AllocTRES", "NodeList"),
)
SACCT_NEEDED = tuple(name for name in SACCT_COLUMNS if name not in ("JobID", "UID", "QOS", "NCPUS"))
SQUEUE_COLUMNS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "UserID", "UserName", "Account", "Partition", "QOS", "State", "StartTime"),
    *("EndTime", "TimeLimit", "NumCPUs", "tres-alloc", "NodeList", "BatchFlag"),
)
_LIKE_SACCT = (
    *("JobIDRaw", "array", "task", "UID", "User", "Account", "Partition", "QOS", "State", "Start"),
    *("End", "limit", "NCPUS", "AllocTRES", "NodeList", "batch"),
)
#: The states of a job that has ended (sacct(1), JOB STATE CODES). The next run of a requeued job has a row of its own.
ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "TIMEOUT"),
    )
)
BATCH, INTERACTIVE = "batch", "interactive"
_NUMBER = re.compile(r"[0-9]{1,10}")
_STEP = re.compile(r"([0-9]{1,10})\.([a-z0-9]{1,20})")
_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?")
_WORD = re.compile(r"[A-Za-z0-9_.@:+,-]{0,512}")  # a pending job may name several partitions
_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,7})")
_SPAN = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{2})")


class JobRun(Struct, frozen=True, kw_only=True):
    """Holds what Slurm says of one run of a job.

    job: the raw id, under which the nodes keep their usage records. label: the id as sacctmgr and users write it: ``17``,
    ``17_3`` for a task of an array, ``17+1`` for a component of a heterogeneous job. uid: None if Slurm does not say it.
    end_unix: None while the job runs. gpus: the number of GPUs or MIG devices by the allocated TRES, 0 for none.
    limit_seconds: None for no limit. cpus: over all nodes. kind: "batch" or "interactive", "" if Slurm does not say it.
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
    qos: str = ""
    kind: str = ""

    def seconds(self, now: float) -> float:
        """Return how long the job ran, or has run at ``now``."""
        return max(0.0, (now if self.end_unix is None else self.end_unix) - self.begin_unix)


def sacct_runs(lines: Iterable[str], mistakes: list[str]) -> list[JobRun]:
    """Return the runs in the lines of ``sacct -D -P``, of which the first one names the columns, in any order.

    ``SACCT_NEEDED`` must be there. Jobs that never had a node are left out. Rows of steps give only the kind of their job. The
    reason of each line that cannot be read is added to ``mistakes``.
    """
    found: list[JobRun] = []
    steps: dict[int, set[str]] = {}
    for number, row in table_rows(lines, SACCT_NEEDED, mistakes, "sacct"):
        if (step := _STEP.fullmatch(row["JobIDRaw"])) is not None:
            steps.setdefault(int(step[1]), set()).add(step[2])
            continue
        try:
            run = _run(row, _minutes(row["TimelimitRaw"]))
        except BadRow as e:
            mistakes.append(f"sacct: line {number}: {e}")
        else:
            found += [run] if run is not None else []
    return [replace(run, kind=kind_of(steps[run.job])) if run.job in steps else run for run in found]


def steps_of(text: str) -> dict[int, set[str]]:
    """Return the steps of each job in the lines of ``sacct -o JobIDRaw``. Its header names no step."""
    steps: dict[int, set[str]] = {}
    for line in text.splitlines():
        if (step := _STEP.fullmatch(line.strip())) is not None:
            steps.setdefault(int(step[1]), set()).add(step[2])
    return steps


def kind_of(steps: AbstractSet[str]) -> str:
    """Return the kind of a job by its steps: only a batch job has the step ``batch``, and each job may have ``extern``."""
    if BATCH in steps:
        return BATCH
    return INTERACTIVE if steps - {"extern"} else ""


def squeue_runs(rows: Iterable[Sequence[str]], mistakes: list[str]) -> list[JobRun]:
    """Return the runs in the rows of ``squeue -r -O`` with ``SQUEUE_COLUMNS``. slurmctld forgets an ended job after MinJobAge."""
    found = []
    for number, cells in enumerate(rows, 1):
        row = dict(zip(_LIKE_SACCT, (cell.strip().replace("(null)", "") for cell in cells), strict=True))
        if _NUMBER.fullmatch(row["task"]):
            row["JobID"] = f"{row['array']}_{row['task']}"
        if row["State"] not in ENDED:
            row["End"] = ""  # squeue says when the job has to end
        try:
            run = _run(row, _span(row["limit"]))
        except BadRow as e:
            mistakes.append(f"squeue: row {number}: {e}")
        else:
            kind = {"1": BATCH, "0": INTERACTIVE}.get(row["batch"], "")
            found += [replace(run, kind=kind)] if run is not None else []
    return found


def _run(row: Mapping[str, str], limit: int | None) -> JobRun | None:
    """Return a run, or None if it has had no node. Raises BadRow."""
    start, end, nodelist = row["Start"], row["End"], row["NodeList"]
    if start in NO_TIME or nodelist in ("None assigned", "", "(null)", "None"):
        return None
    job, uid, cpus = row["JobIDRaw"], row.get("UID", ""), row.get("NCPUS", "")
    if not _NUMBER.fullmatch(job):
        raise BadRow("JobIDRaw is not the id of a job or of a step")
    label = row.get("JobID", job)
    if not _ID.fullmatch(label):
        raise BadRow("JobID is not the id of a job")
    for column in ("User", "Account", "Partition", "QOS"):
        if not _WORD.fullmatch(row.get(column, "")):
            raise BadRow(f"{column} is not a name")
    state = row["State"].partition(" ")[0]  # sacct prints "CANCELLED by 1001"
    if not re.fullmatch(r"[A-Z_]{1,32}", state):
        raise BadRow("State is not a word")
    begin = seconds_of(start, "Start")
    last = None if end in NO_TIME else seconds_of(end, "End")
    if state in ENDED and last is None:
        raise BadRow("it has ended, and has no time of its end")
    return JobRun(
        job=int(job),
        label=label,
        uid=int(uid) if _NUMBER.fullmatch(uid) else None,
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        qos=row.get("QOS", ""),
        state=state,
        begin_unix=begin,
        end_unix=None if last is None else max(begin, last),
        limit_seconds=limit,
        cpus=int(cpus) if _NUMBER.fullmatch(cpus) else 0,
        gpus=gpus_of(row["AllocTRES"]),
        nodes=nodes_of(nodelist),
    )


def _minutes(text: str) -> int | None:
    return int(text) * 60 if _NUMBER.fullmatch(text) else None


def _span(text: str) -> int | None:
    """Return the seconds of squeue's ``D-HH:MM:SS``, or None for UNLIMITED."""
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def gpus_of(tres: str) -> int:
    """Return the number of GPUs in ``cpu=8,gres/gpu=4,gres/gpu:h100=4``, or 0 for none."""
    found = _GPUS.findall(tres)
    whole = [int(number) for kind, number in found if not kind]
    return whole[0] if whole else sum(int(number) for _, number in found)
