"""Reads the rows that ``sacct -P`` prints, and the lists of nodes and of node events that belong to them.

The rows hold no text of a user: job name, comment, script and submit line are not asked for, because a user could write a line
break or a ``|`` into them. Times are seconds of Unix time: run sacct with ``SLURM_TIME_FORMAT=%s``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fairlead.model.nodelist import expand, is_name

#: What `sacct --format` has to print. Steps are needed: a batch job has the step ``ID.batch``.
COLUMNS = ("JobIDRaw", "User", "Account", "Partition", "QOS", "State", "Start", "End", "TimelimitRaw", "AllocTRES", "NodeList")
ROWS_MAX = 4_000_000
LINE_MAX = 64 * 1024
#: A step that only a batch job has, and a step that only a job of salloc has (sacct(1), JobID; LaunchParameters).
BATCH, INTERACTIVE = "batch", "interactive"
_ID = re.compile(r"([0-9]{1,10})(?:\.([a-z0-9]{1,20}))?")
_WORD = re.compile(r"[A-Za-z0-9_.@:+-]{0,64}")
_WORDS = re.compile(r"[A-Za-z0-9_.@:+,-]{0,512}")  # a pending job may name several partitions
_GPUS = re.compile(r"gres/gpu(:[^=,]*)?=([0-9]{1,7})")
_GRES = re.compile(r"gpu(?::[^:,(]+)?:([0-9]{1,5})")

Row = TypeVar("Row")


class AccountedJob(Struct, frozen=True, kw_only=True):
    """Holds what Slurm's accounting says of one run of a job. A job that was requeued has one value for each run.

    end_unix: None while the job runs. gpus: the number of GPUs (or MIG devices) by AllocTRES, 0 for none. limit_seconds: None for
    no limit. kind: "batch" or "interactive" by the job's steps, "" if no row shows it.
    """

    job: int
    user: str
    account: str
    partition: str
    state: str
    begin_unix: float
    nodes: tuple[str, ...]
    end_unix: float | None = None
    gpus: int = 0
    qos: str = ""
    limit_seconds: float | None = None
    kind: str = ""


class NodeGpus(Struct, frozen=True, kw_only=True):
    """Says how many GPUs Slurm counts on a node, and in which partitions the node is."""

    node: str
    gpus: int
    partitions: tuple[str, ...]


class NodeEvent(Struct, frozen=True, kw_only=True):
    """Says from when to when a node was down or drained (``sacctmgr show event``). end_unix: None while this goes on."""

    node: str
    begin_unix: float
    end_unix: float | None


class BadAccountingRow(ValueError):
    """Says in one line why a row cannot be read."""


def jobs_of(lines: Iterable[str], mistakes: list[str]) -> list[AccountedJob]:
    """Return the jobs that began, from the lines of ``sacct -D -P`` with a header. Each mistake is added to ``mistakes``.

    Rows of steps give only the kind of their job. Rows of jobs that have not begun are left out.
    """
    jobs: list[AccountedJob] = []
    steps: dict[int, set[str]] = {}
    for number, row in _rows(lines, COLUMNS, mistakes, "jobs"):
        try:
            found = _ID.fullmatch(row["JobIDRaw"])
            if found is None:
                raise BadAccountingRow("JobIDRaw is not the id of a job or of a step")
            if found[2] is not None:
                steps.setdefault(int(found[1]), set()).add(found[2])
            elif (job := _job(int(found[1]), row)) is not None:
                jobs.append(job)
        except BadAccountingRow as e:
            mistakes.append(f"jobs: line {number}: {e}")
    return [replace(job, kind=_kind(steps.get(job.job, set()))) for job in jobs]


def _kind(steps: set[str]) -> str:
    if BATCH in steps:
        return BATCH
    return INTERACTIVE if steps - {"extern"} else ""


def _job(job: int, row: Mapping[str, str]) -> AccountedJob | None:
    """Return a job, or None if it has not begun. Raises BadAccountingRow."""
    if row["Start"] in ("Unknown", "None", "", "0") or row["NodeList"] in ("None assigned", ""):
        return None
    begin = _time(row["Start"], "Start")
    end = None if row["End"] in ("Unknown", "None", "", "0") else _time(row["End"], "End")
    if end is not None and end < begin:
        raise BadAccountingRow("End is before Start")
    for key in ("User", "Account", "Partition", "QOS"):
        if not _WORDS.fullmatch(row[key]):
            raise BadAccountingRow(f"{key} is not a name")
    return AccountedJob(
        job=job,
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        qos=row["QOS"],
        state=_state(row["State"]),
        begin_unix=begin,
        end_unix=end,
        gpus=gpus_of(row["AllocTRES"]),
        limit_seconds=float(row["TimelimitRaw"]) * 60 if re.fullmatch(r"[0-9]{1,9}", row["TimelimitRaw"]) else None,
        nodes=_nodes(row["NodeList"]),
    )


def _state(text: str) -> str:
    """Return the first word of a state: sacct prints ``CANCELLED by 1001``."""
    word = text.partition(" ")[0]
    if not _WORD.fullmatch(word) or not word:
        raise BadAccountingRow("State is not a word")
    return word


def _time(text: str, column: str) -> float:
    if not re.fullmatch(r"[0-9]{1,11}", text):
        raise BadAccountingRow(f"{column} is not a number of seconds (run sacct with SLURM_TIME_FORMAT=%s)")
    return float(text)


def _nodes(text: str) -> tuple[str, ...]:
    try:
        names = expand(text)
    except ValueError:
        raise BadAccountingRow("NodeList is not a nodelist") from None
    if not all(map(is_name, names)):
        raise BadAccountingRow("NodeList is not a nodelist")
    return tuple(names)


def gpus_of(tres: str) -> int:
    """Return the number of GPUs in a TRES text such as ``cpu=8,gres/gpu=4,gres/gpu:h100=4``, 0 for none."""
    found = _GPUS.findall(tres)
    for kind, number in found:
        if not kind:
            return int(number)
    return sum(int(number) for _, number in found)


def node_gpus_of(lines: Iterable[str], mistakes: list[str]) -> list[NodeGpus]:
    """Return the nodes from the lines of ``sinfo -a -N -o '%N|%P|%G'``, which begin with a header."""
    found: dict[str, NodeGpus] = {}
    for number, row in _rows(lines, ("NODELIST", "PARTITION", "GRES"), mistakes, "nodes"):
        node, partition = row["NODELIST"], row["PARTITION"].rstrip("*")
        if not is_name(node) or not _WORD.fullmatch(partition):
            mistakes.append(f"nodes: line {number}: no NodeName and partition")
            continue
        earlier = found.get(node)
        found[node] = NodeGpus(
            node=node,
            gpus=sum(int(n) for n in _GRES.findall(row["GRES"])),
            partitions=(*(earlier.partitions if earlier else ()), partition),
        )
    return list(found.values())


def node_events_of(lines: Iterable[str], mistakes: list[str]) -> list[NodeEvent]:
    """Return the events from the lines of ``sacctmgr -P show event format=NodeName,TimeStart,TimeEnd``. Events of the whole
    cluster, which name no node, are left out."""
    found = []
    for number, row in _rows(lines, ("NodeName", "TimeStart", "TimeEnd"), mistakes, "events"):
        if not row["NodeName"]:
            continue
        try:
            end = None if row["TimeEnd"] in ("Unknown", "None", "", "0") else _time(row["TimeEnd"], "TimeEnd")
            for node in _nodes(row["NodeName"]):
                found.append(NodeEvent(node=node, begin_unix=_time(row["TimeStart"], "TimeStart"), end_unix=end))
        except BadAccountingRow as e:
            mistakes.append(f"events: line {number}: {e}")
    return found


def _rows(lines: Iterable[str], columns: tuple[str, ...], mistakes: list[str], file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and row of each line after the header, with the cells of these columns. The columns may be in any
    order, and there may be others."""
    header: list[str] | None = None
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\n")
        if number > ROWS_MAX:
            mistakes.append(f"{file}: more than {ROWS_MAX} lines: the rest is not read")
            return
        if not line:
            continue
        cells = line[:LINE_MAX].split("|")
        if header is None:
            header = cells
            missing = [name for name in columns if name not in header]
            if missing:
                mistakes.append(f"{file}: the first line has no column {', '.join(missing)}")
                return
        elif len(cells) != len(header) or len(line) > LINE_MAX:
            mistakes.append(f"{file}: line {number}: {len(cells)} cells, and the first line has {len(header)}")
        else:
            row = dict(zip(header, cells, strict=True))
            yield number, {name: row[name] for name in columns}
    if header is None:
        mistakes.append(f"{file}: is empty, not even a first line with the names of the columns")
