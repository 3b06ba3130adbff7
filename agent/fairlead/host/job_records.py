"""Reads the job records that prolog and epilog write to /run/fairlead/jobs: which jobs run here, have ended, or were refused.

A record is one line of fields separated by TAB: ``1 STATE UID GPUS START END FLAGS .``. ``SLUID .`` follows with Slurm 26.05, and
``SLUID NAMES .`` if slurmd names its GPUs by UUID. While the first ``.`` is missing, the record is still being written. GPUS are
GRES indices (SLURM_JOB_GPUS). START and END are seconds of /proc/uptime. SLUID is the name of the job's control group in 26.05,
or -. NAMES is CUDA_VISIBLE_DEVICES of the prolog, where slurmd names MIG instances (26.05 also GPUs) by UUID in the order of
their GRES indices. This module uses the standard library only, because fairlead-scratch@.service reads records too, and starts
often.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

FOLDER = "/run/fairlead/jobs"
RECORD_MAX_BYTES = 4096
GPUS_MAX = 1024
SLUID_MAX = 32
RECORDS_CACHED = 256  # the agent reads the same records every second
_NAME = re.compile(r"[A-Za-z0-9/-]{1,80}", re.ASCII)


class Job(NamedTuple):
    """Holds the job record of one job. gpus: GRES indices. uid, start, end: None if the record has no valid value.

    started: the text of START. It is part of the name of the job's folder on a local disk. sluid: "" before Slurm 26.05. names:
    the UUIDs of the job's MIG instances and GPUs (or GRES indices of GPUs), or () if slurmd did not name them by UUID.
    """

    id: int
    uid: int | None
    gpus: frozenset[int]
    start: float | None = None
    end: float | None = None
    started: str = ""
    sluid: str = ""
    names: tuple[str, ...] = ()


class Jobs(NamedTuple):
    """Holds job ids by the state in their records. ``known``: the content of the records of running and ended jobs."""

    running: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    known: tuple[Job, ...] = ()


def scan(folder: str) -> Jobs:
    """Return all complete records in the folder, or none if the folder does not exist or cannot be read."""
    found: dict[str, set[int]] = {"running": set(), "ended": set(), "refused": set()}
    known: list[Job] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return Jobs()
    for name in names:
        if name.isascii() and name.isdigit():
            read = _read(int(name), _line(os.path.join(folder, name)))
            if read is not None and read[0] in found:
                state, job = read
                found[state].add(job.id)
                if state != "refused":
                    known.append(job)
    known.sort(key=lambda job: job.id)
    return Jobs(frozenset(found["running"]), frozenset(found["ended"]), frozenset(found["refused"]), tuple(known))


def by_sluid(folder: str) -> dict[str, int]:
    """Return the job ids by SLUID, which is the name of a job's control group in Slurm 26.05."""
    return {job.sluid: job.id for job in scan(folder).known if job.sluid}


def _line(path: str) -> bytes:
    """Return what is in a job record, or nothing if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, RECORD_MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


@lru_cache(maxsize=RECORDS_CACHED)
def _read(number: int, line: bytes) -> tuple[str, Job] | None:
    """Return the state and the content of the job record of a job, or None if the record is not complete."""
    fields = _fields(line)
    return (fields[1], _job(number, fields)) if fields else None


def _fields(line: bytes) -> list[str]:
    fields = line.decode("ascii", "replace").removesuffix("\n").split("\t")
    return fields if len(fields) >= 8 and fields[0] == "1" and fields[7] == "." else []


def _job(number: int, fields: list[str]) -> Job:
    return Job(
        id=number,
        uid=_number(fields[2]),
        gpus=gpu_list(fields[3]),
        start=seconds(fields[4]),
        end=seconds(fields[5]) if fields[1] == "ended" else None,
        started=fields[4] if seconds(fields[4]) is not None else "",
        sluid=fields[8] if len(fields) in (10, 11) and fields[-1] == "." and is_sluid(fields[8]) else "",
        names=device_names(fields[9]) if len(fields) == 11 and fields[-1] == "." else (),
    )


def is_sluid(text: str) -> bool:
    """Say whether a text can be a SLUID, Slurm's lexicographically sortable id of a job: letters and digits."""
    return text.isascii() and text.isalnum() and len(text) <= SLUID_MAX


def device_names(text: str) -> tuple[str, ...]:
    """Return the words of a list of UUIDs and GRES indices, or () for a text that is no such list."""
    words = tuple(text.split(","))
    return words if all(_NAME.fullmatch(word) for word in words) and len(words) <= GPUS_MAX else ()


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def seconds(text: str) -> float | None:
    """Return the seconds of /proc/uptime that a text says, or None if it is no such number."""
    whole, point, part = text.partition(".")
    if _number(whole) is None or (point and _number(part) is None):
        return None
    return float(text)


def gpu_list(text: str) -> frozenset[int]:
    """Return the indices of a list such as "0,2-3". "-" and a text that is no such list give an empty set."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not low <= high < GPUS_MAX:
            return frozenset()
        found.update(range(low, high + 1))
    return frozenset(found)


def forget(folder: str, jobs: Iterable[int]) -> None:
    """Remove the job records of these jobs, which have ended."""
    for job in jobs:
        try:
            os.unlink(os.path.join(folder, str(job)))
        except OSError:
            pass
