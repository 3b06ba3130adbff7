"""The prolog's and epilog's records in /run/fairlead/jobs: which jobs run here, which have ended, which were refused.

A record is one TAB line: ``1 STATE UID GPUS START END FLAGS .``; without the last field it is still being written.
GPUS are GRES indices (SLURM_JOB_GPUS), START and END seconds of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from fairlead.host.clock import boottime
from fairlead.model.check import KernelRecord
from fairlead.model.facts import Missing, Node
from fairlead.xid import Kind, XidLine, parse

RECORD_MAX_BYTES = 1024
GPUS_MAX = 1024
TOPOLOGY_MAX_BYTES = 1 << 20
LINGER_SECONDS = 10  # a fault is printed while the job's processes end, which the epilog may overtake
REMEMBERED = 256  # ended jobs


class Job(Struct, frozen=True):
    """One record. gpus: GRES indices; uid, start, end: None where the record does not say it. No name of anybody."""

    id: int
    uid: int | None
    gpus: frozenset[int]
    start: int | None = None
    end: int | None = None


class Jobs(Struct, frozen=True):
    """Job ids by what their record says; ``known``: what the records of running and ended ones say."""

    running: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    known: tuple[Job, ...] = ()


def scan(folder: str) -> Jobs:
    """All complete records. A folder that is not there or cannot be read holds none."""
    found: dict[str, set[int]] = {"running": set(), "ended": set(), "refused": set()}
    known: list[Job] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return Jobs()
    for name in names:
        if name.isascii() and name.isdigit():
            fields = _fields(os.path.join(folder, name))
            if fields and fields[1] in found:
                found[fields[1]].add(int(name))
                if fields[1] != "refused":
                    known.append(_job(int(name), fields))
    known.sort(key=lambda job: job.id)
    return Jobs(frozenset(found["running"]), frozenset(found["ended"]), frozenset(found["refused"]), tuple(known))


def _fields(path: str) -> list[str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        fields = os.read(fd, RECORD_MAX_BYTES).decode("ascii", "replace").removesuffix("\n").split("\t")
    except OSError:
        return []
    finally:
        os.close(fd)
    return fields if len(fields) == 8 and fields[0] == "1" and fields[7] == "." else []


def _job(number: int, fields: list[str]) -> Job:
    ended = fields[1] == "ended"
    return Job(number, _number(fields[2]), gpu_list(fields[3]), _number(fields[4]), _number(fields[5]) if ended else None)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def gpu_list(text: str) -> frozenset[int]:
    """The indices of "0,2-3"; none for "-" and for what is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not low <= high < GPUS_MAX:
            return frozenset()
        found.update(range(low, high + 1))
    return frozenset(found)


def forget(folder: str, jobs: frozenset[int]) -> None:
    """Remove the records of jobs that are over."""
    for job in jobs:
        try:
            os.unlink(os.path.join(folder, str(job)))
        except OSError:
            pass


class Blame:
    """Whose jobs were on a GPU when the kernel said something of it: jobs and user ids for kernel records.

    Which index is which GPU is read from ``topology`` in the run directory, which outlives the agent. MIG instances have
    indices of their own that are not in there: then all jobs with GPUs may be meant. With nothing known, nobody is blamed.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def heed(self, jobs: Jobs) -> None:
        """Take in what the records say now; jobs whose records went meanwhile are remembered as they were."""
        self._jobs |= {job.id: job for job in jobs.known}
        over = [job for job, known in self._jobs.items() if known.end is not None]
        for job in over[:-REMEMBERED]:
            del self._jobs[job]
        for job in [j for j, known in self._jobs.items() if known.end is None and j not in jobs.running]:
            del self._jobs[job]  # its record went without an end: nothing is known of it any more

    def attribute(self, records: Iterable[KernelRecord], run_dir: str, node: Node | None) -> list[KernelRecord]:
        """The records with the jobs and users on their GPU. ``node``: the last look at it; None at the start of the agent,
        when the records may be old: then their own time counts, else this moment (the two clocks drift apart)."""
        now = None if node is None else boottime()
        mig = node is not None and not isinstance(node.gpus, Missing) and any(g.mig_current is True for g in node.gpus)
        order = None if mig else _order(run_dir)
        attributed = []
        for record in records:
            line = parse(record.text)
            of_a_gpu = line is not None and line.kind is not Kind.SXID and line.pci and (line.gi is not None or order != {})
            if line is None or not of_a_gpu or not self._jobs:
                attributed.append(record)
                continue
            found, exact = self._at(line, order, record.seconds if now is None else now)
            users = {job.uid for job in found if job.uid is not None}
            numbers = tuple(sorted(j.id for j in found))
            attributed.append(replace(record, jobs=numbers, uids=tuple(sorted(users)), attributed=exact or bool(found)))
        return attributed

    def _at(self, line: XidLine, order: dict[str, int] | None, seconds: float) -> tuple[list[Job], bool]:
        """The jobs on the line's GPU at that time, and whether no other can have been. order: None where indices name MIG
        instances. A job without GPUs of Slurm's may use any where the site does not confine it."""
        there = [j for j in self._jobs.values() if (j.start or 0) <= seconds + 1]
        jobs = [j for j in there if j.gpus]
        index = None
        if line.gi is None and order is not None and all(j.gpus <= set(order.values()) for j in self._jobs.values()):
            index = order.get(line.pci)
            jobs = [j for j in jobs if index in j.gpus]
        found = _then(jobs, seconds)
        return found, index is not None and all(j.gpus for j in _then(there, seconds))


def _then(jobs: list[Job], seconds: float) -> list[Job]:
    """Of jobs that had begun those that had not ended, or only just."""
    ran = [j for j in jobs if j.end is None or seconds <= j.end]
    return ran or [j for j in jobs if j.end is not None and seconds <= j.end + LINGER_SECONDS]


def _order(run_dir: str) -> dict[str, int]:
    """GRES index by PCI address, from ``gpu INDEX MINOR UUID PCI ...`` of the topology file."""
    try:
        with open(os.path.join(run_dir, "topology"), encoding="ascii", errors="replace") as f:
            lines = f.read(TOPOLOGY_MAX_BYTES).splitlines()
    except OSError:
        return {}
    rows = [line.split("\t") for line in lines if line.startswith("gpu\t")]
    return {row[4]: int(row[1]) for row in rows if len(row) > 4 and _number(row[1]) is not None}
