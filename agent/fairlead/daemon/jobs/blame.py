"""Finds in the job records of prolog and epilog which jobs used a GPU when the kernel reported an error of that GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.host import job_records
from fairlead.host.boot_clock import boottime
from fairlead.host.job_records import Job, Jobs
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Missing, Node
from fairlead.topology.binding.published_files import NOT_LISTED, ListedDevices
from fairlead.xid import XidKind, XidLine, parse

TOPOLOGY_MAX_BYTES = 1 << 20
LINGER_SECONDS = 10  # the kernel may print a fault only after the epilog, while the job's processes end
REMEMBERED = 256  # the agent remembers at most this number of ended jobs
NO_JOBS = Jobs()


class Part(NamedTuple):
    """Says where a GPU or a MIG device is. gi, ci: NVML's ids of its instances, or None for a whole GPU."""

    pci: str
    gi: int | None = None
    ci: int | None = None


class Where(NamedTuple):
    """Holds what the topology file says. order: the GRES index of each GPU by PCI address. parts: GPUs and MIG devices by UUID.
    mig: whether Slurm's indices count MIG instances. listed: what each index then means, if gres.conf says so."""

    order: dict[str, int]
    parts: dict[str, Part]
    mig: bool
    listed: ListedDevices = NOT_LISTED

    def is_known(self, job: Job) -> bool:
        """Return whether the job's record names all its GPUs and MIG devices, and the topology file has them."""
        return bool(job.names) and all(name in self.parts for name in job.names)

    def may_be_on(self, job: Job, line: XidLine) -> bool:
        """Return whether the job has the instance of the line, or any part of its GPU if the line names no instance."""
        return not self.is_known(job) or any(_is_of(self.parts[name], line) for name in job.names)


def _is_of(part: Part, line: XidLine) -> bool:
    same = line.gi in (None, part.gi) and line.ci in (None, part.ci)
    return part.pci == line.pci and same


class Blame:
    """Remembers which jobs and users were on which GPU, and adds them to the kernel records of that GPU.

    The file ``topology`` in the run directory lists the GRES index of each GPU and the UUID of each MIG instance. The file
    survives a restart of the agent. With MIG, Slurm's indices count instances, and the job records have UUIDs. A record that
    names an instance is attributed to the jobs on that instance, and a record of a whole GPU to the jobs on all its instances. A
    job whose record has no UUIDs may be on any GPU or instance. Without MIG, no job is blamed if the file cannot be read.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def heed(self, jobs: Jobs) -> None:
        """Add the jobs of the job records. An ended job is still remembered after its record was removed."""
        self._jobs |= {job.id: job for job in jobs.known}
        over = [job for job, known in self._jobs.items() if known.end is not None]
        for job in over[:-REMEMBERED]:
            del self._jobs[job]
        for job in [j for j, known in self._jobs.items() if known.end is None and j not in jobs.running]:
            del self._jobs[job]  # the job's record was removed before it had an end, so it is not known when the job ended

    def attribute(self, records: Iterable[KernelRecord], run_dir: str, node: Node | None) -> list[KernelRecord]:
        """Return the records with the jobs and users on their GPU.

        ``node``: the facts of the last sweep, or None at the start of the agent. At the start the records may be old, so each
        record's own time is used. Later the present time is used, because the kernel log's clock and CLOCK_BOOTTIME drift
        apart.
        """
        now = None if node is None else boottime()
        where = published(run_dir)
        mig = node is not None and has_mig(node)
        attributed = []
        for record in records:
            line = parse(record.text)
            by_name = line is not None and (mig or line.gi is not None or where.mig)
            of_a_gpu = line is not None and line.kind is not XidKind.SXID and line.pci and (by_name or where.order)
            if line is None or not of_a_gpu or not self._jobs:
                attributed.append(record)
                continue
            at = record.seconds if now is None else now
            found, exact = self._by_name(line, where, at) if by_name else self._by_index(line, where, at)
            users = {job.uid for job in found if job.uid is not None}
            numbers = tuple(sorted(j.id for j in found))
            attributed.append(replace(record, jobs=numbers, uids=tuple(sorted(users)), attributed=exact or bool(found)))
        return attributed

    def _by_index(self, line: XidLine, where: Where, seconds: float) -> tuple[list[Job], bool]:
        """Return the jobs on the GPU of ``line`` at that time, and whether no other job can have used that GPU.

        A job without GPUs from Slurm may use any GPU if the site does not confine jobs. If a job has an index that no GPU has,
        the indices count MIG instances, and every job with GPUs is returned.
        """
        there = [j for j in self._jobs.values() if (j.start or 0) <= seconds + 1]
        jobs = [j for j in there if j.gpus]
        index = None
        if all(j.gpus <= set(where.order.values()) for j in self._jobs.values()):
            index = where.order.get(line.pci)
            jobs = [j for j in jobs if index in j.gpus]
        found = _then(jobs, seconds)
        return found, index is not None and all(j.gpus for j in _then(there, seconds))

    def _by_name(self, line: XidLine, where: Where, seconds: float) -> tuple[list[Job], bool]:
        """Return the jobs on the MIG instance of ``line`` at that time, or on any part of its GPU if the line names no instance.
        Also return whether no other job can have used it."""
        there = [j for j in self._jobs.values() if (j.start or 0) <= seconds + 1]
        found = _then([j for j in there if j.gpus and where.may_be_on(j, line)], seconds)
        exact = any(_is_of(part, line) for part in where.parts.values())
        return found, exact and all(j.gpus and where.is_known(j) for j in _then(there, seconds))


def _then(jobs: list[Job], seconds: float) -> list[Job]:
    """Return the jobs that had not ended at that time. If all had ended, return those that ended at most ``LINGER_SECONDS``
    before that time. Every job in ``jobs`` had begun by then."""
    ran = [j for j in jobs if j.end is None or seconds <= j.end]
    return ran or [j for j in jobs if j.end is not None and seconds <= j.end + LINGER_SECONDS]


def has_mig(node: Node) -> bool:
    """Return whether any GPU of the node has MIG on, so that GRES indices name MIG instances."""
    return not isinstance(node.gpus, Missing) and any(g.mig_current is True for g in node.gpus)


def published(run_dir: str) -> Where:
    """Return what the topology file says (topology.binding.published_files). It is empty if the file cannot be read."""
    path = f"{run_dir}/topology"
    try:
        info = os.stat(path)
        return _read_where(path, (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    except OSError:
        return _where("")


@lru_cache(maxsize=2)  # the file is needed at every sweep while a job runs, and hardly ever changes
def _read_where(path: str, _stamp: tuple[int, ...]) -> Where:
    """Return what the file says. ``_stamp``: it changes with the file, which is replaced as a whole."""
    with open(path, "rb") as f:
        return _where(f.read(TOPOLOGY_MAX_BYTES).decode("ascii", "replace"))


def _where(text: str) -> Where:
    rows = [line.split("\t") for line in text.splitlines()]
    gpus = [row for row in rows if row[0] == "gpu" and len(row) > 4]
    instances = [row for row in rows if row[0] == "mig" and len(row) > 4 and _is_number(row[3]) and _is_number(row[4])]
    divided = {row[2] for row in instances}
    parts = {row[3]: Part(row[4]) for row in gpus if row[4] not in divided}
    parts |= {row[1]: Part(row[2], int(row[3]), int(row[4])) for row in instances}
    order = {row[4]: int(row[1]) for row in gpus if _is_number(row[1])}
    return Where(order, parts, bool(instances), _listed(rows))


def _listed(rows: list[list[str]]) -> ListedDevices:
    found = [row for row in rows if row[0] == "gres" and len(row) > 3 and _is_number(row[1])]
    since = max((seconds for row in found if (seconds := job_records.seconds(row[3])) is not None), default=0.0)
    return ListedDevices({int(row[1]): row[2] for row in found}, since)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15
