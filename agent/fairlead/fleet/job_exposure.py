"""Adds up, job by job, what the figures of the fleet need of Slurm's accounting: allocated time, touched and lost jobs.

Allocated time is the time in which a node had at least one job. Each node has one mark for each quarter of an hour; a job sets
the marks whose middle it covers. So jobs that share a node count once, in any order, and a year of 1,024 nodes needs 36 MB.

A job is touched by an incident if it was on the node when the incident began or came back, or had ended up to ``BEFORE_SECONDS``
earlier, or began up to ``AFTER_SECONDS`` later. A job is lost to an incident if it ended badly in that time, and to a node if it
ended as NODE_FAIL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.fleet.incidents import Incident

SLOT_SECONDS = 900
BEFORE_SECONDS, AFTER_SECONDS = 600.0, 300.0
LOST_MAX_SECONDS = 1800.0  # Meta's estimate without the application: min(run time, 30 min) is lost (arXiv 2410.21680)
NODE_FAIL = "NODE_FAIL"
BAD_ENDS = frozenset((NODE_FAIL, "FAILED", "BOOT_FAIL", "LAUNCH_FAILED"))


class FleetJob(Struct, frozen=True, kw_only=True):
    """Holds one run of a job. end_unix: None while it runs."""

    job: int
    user: str
    state: str
    nodes: tuple[str, ...]
    begin_unix: float
    end_unix: float | None
    gpus: int = 0


class Lost(Struct, frozen=True, kw_only=True):
    """Holds one run that was lost. incident: the number of the incident, or None for a NODE_FAIL without one. lost_seconds: at
    least this much of each of its GPUs and nodes."""

    job: int
    end_unix: float
    nodes: int
    gpus: int
    lost_seconds: float
    incident: int | None


class JobExposure:
    """Adds up jobs from ``begin_unix`` to ``end_unix``. incidents: those whose jobs are looked for; ``touched`` and ``users``
    have a set for each of them, by its number. first_unix, last_unix: the oldest and the newest time of a job."""

    def __init__(self, incidents: Sequence[Incident], begin_unix: float, end_unix: float) -> None:
        self.begin_unix, self.end_unix = begin_unix, end_unix
        self.slots = max(1, int((end_unix - begin_unix) // SLOT_SECONDS))
        self.marks: dict[str, bytearray] = {}
        self.jobs = 0
        self.first_unix, self.last_unix = float("inf"), 0.0
        self.touched: list[set[int]] = [set(i.jobs) for i in incidents]
        self.users: list[set[str]] = [set() for _ in incidents]
        self.lost: list[Lost] = []
        self._ones = b"\1" * self.slots
        times: dict[str, list[tuple[float, int]]] = {}
        for number, incident in enumerate(incidents):
            for unix in incident.times:
                times.setdefault(incident.node, []).append((unix, number))
        self._times = {node: sorted(of) for node, of in times.items()}

    def add(self, jobs: Iterable[FleetJob]) -> None:
        """Add runs, in any order."""
        for job in jobs:
            begin, end = job.begin_unix, self.end_unix if job.end_unix is None else job.end_unix
            if end < self.begin_unix or begin > self.end_unix:
                continue
            self.jobs += 1
            self.first_unix = min(self.first_unix, begin)
            self.last_unix = max(self.last_unix, begin if job.end_unix is None else job.end_unix)
            first = max(0, round((begin - self.begin_unix) / SLOT_SECONDS))
            last = min(self.slots, round((end - self.begin_unix) / SLOT_SECONDS))
            caused: set[int] = set()
            for node in job.nodes:
                if first < last:
                    row = self.marks.get(node)
                    if row is None:
                        row = self.marks[node] = bytearray(self.slots)
                    row[first:last] = self._ones[: last - first]
                times = self._times.get(node)
                if times is not None:
                    caused |= self._touch(job, times, begin, end)
            if job.end_unix is not None and job.state in BAD_ENDS and (caused or job.state == NODE_FAIL):
                self._lose(job, caused)

    def _touch(self, job: FleetJob, times: Sequence[tuple[float, int]], begin: float, end: float) -> set[int]:
        """Note the incidents that touched a job on one node. Return those that may have ended it."""
        ended: set[int] = set()
        at = bisect_left(times, (begin - AFTER_SECONDS, -1))
        while at < len(times) and times[at][0] <= end + AFTER_SECONDS:
            unix, number = times[at]
            if unix - BEFORE_SECONDS <= end and unix >= begin - AFTER_SECONDS:
                self.touched[number].add(job.job)
                self.users[number].add(job.user)
            if end - BEFORE_SECONDS <= unix <= end + AFTER_SECONDS:
                ended.add(number)
            at += 1
        return ended

    def _lose(self, job: FleetJob, caused: set[int]) -> None:
        end = job.end_unix if job.end_unix is not None else self.end_unix
        ran = max(0.0, end - job.begin_unix)
        self.lost.append(
            Lost(
                job=job.job,
                end_unix=end,
                nodes=len(job.nodes),
                gpus=job.gpus,
                lost_seconds=min(ran, LOST_MAX_SECONDS),
                incident=min(caused, default=None),
            )
        )

    def seconds(self, node: str, begin_unix: float, end_unix: float) -> float:
        """Return for how long a node had a job between two times."""
        row = self.marks.get(node)
        if row is None:
            return 0.0
        first = max(0, round((begin_unix - self.begin_unix) / SLOT_SECONDS))
        last = min(self.slots, round((end_unix - self.begin_unix) / SLOT_SECONDS))
        return row.count(1, first, last) * float(SLOT_SECONDS) if first < last else 0.0
