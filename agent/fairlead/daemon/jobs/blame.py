"""Finds in the job records of prolog and epilog which jobs used a GPU when the kernel reported an error of that GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec.structs import replace

from fairlead.host.boot_clock import boottime
from fairlead.host.job_records import Job, Jobs
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Missing, Node
from fairlead.xid import XidKind, XidLine, parse

TOPOLOGY_MAX_BYTES = 1 << 20
LINGER_SECONDS = 10  # the kernel may print a fault only after the epilog, while the job's processes end
REMEMBERED = 256  # the agent remembers at most this number of ended jobs
NO_JOBS = Jobs()


class Blame:
    """Remembers which jobs and users were on which GPU, and adds them to the kernel records of that GPU.

    The file ``topology`` in the run directory lists the GRES index of each GPU. The file survives a restart of the agent. MIG
    instances have GRES indices of their own, which are not in that file. With MIG, a record is therefore attributed to every
    job with GPUs. Without MIG, no job is blamed if the file cannot be read.
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
        order = None if node is not None and has_mig(node) else gres_indices(run_dir)
        attributed = []
        for record in records:
            line = parse(record.text)
            of_a_gpu = line is not None and line.kind is not XidKind.SXID and line.pci and (line.gi is not None or order != {})
            if line is None or not of_a_gpu or not self._jobs:
                attributed.append(record)
                continue
            found, exact = self._at(line, order, record.seconds if now is None else now)
            users = {job.uid for job in found if job.uid is not None}
            numbers = tuple(sorted(j.id for j in found))
            attributed.append(replace(record, jobs=numbers, uids=tuple(sorted(users)), attributed=exact or bool(found)))
        return attributed

    def _at(self, line: XidLine, order: dict[str, int] | None, seconds: float) -> tuple[list[Job], bool]:
        """Return the jobs on the GPU of ``line`` at that time, and whether no other job can have used that GPU.

        ``order``: the GRES index of each GPU by PCI address, or None if the GRES indices name MIG instances. A job without
        GPUs from Slurm may use any GPU if the site does not confine jobs.
        """
        there = [j for j in self._jobs.values() if (j.start or 0) <= seconds + 1]
        jobs = [j for j in there if j.gpus]
        index = None
        if line.gi is None and order is not None and all(j.gpus <= set(order.values()) for j in self._jobs.values()):
            index = order.get(line.pci)
            jobs = [j for j in jobs if index in j.gpus]
        found = _then(jobs, seconds)
        return found, index is not None and all(j.gpus for j in _then(there, seconds))


def _then(jobs: list[Job], seconds: float) -> list[Job]:
    """Return the jobs that had not ended at that time. If all had ended, return those that ended at most ``LINGER_SECONDS``
    before that time. Every job in ``jobs`` had begun by then."""
    ran = [j for j in jobs if j.end is None or seconds <= j.end]
    return ran or [j for j in jobs if j.end is not None and seconds <= j.end + LINGER_SECONDS]


def has_mig(node: Node) -> bool:
    """Return whether any GPU of the node has MIG on, so that GRES indices name MIG instances."""
    return not isinstance(node.gpus, Missing) and any(g.mig_current is True for g in node.gpus)


def gres_indices(run_dir: str) -> dict[str, int]:
    """Return the GRES index of each GPU by PCI address. The topology file has lines ``gpu INDEX MINOR UUID PCI ...``."""
    try:
        with open(os.path.join(run_dir, "topology"), encoding="ascii", errors="replace") as f:
            lines = f.read(TOPOLOGY_MAX_BYTES).splitlines()
    except OSError:
        return {}
    rows = [line.split("\t") for line in lines if line.startswith("gpu\t")]
    return {row[4]: int(row[1]) for row in rows if len(row) > 4 and row[1].isascii() and row[1].isdigit() and len(row[1]) <= 15}
