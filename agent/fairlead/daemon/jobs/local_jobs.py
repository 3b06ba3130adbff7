"""Finds the jobs that have a slurmstepd on this node, without asking slurmctld.

A job record stays "running" for ever if no epilog has ended it: no epilog is configured, slurmd does not run, or /run is full.
slurmstepd writes its step into its process title, ``slurmstepd: [JOB.STEP]`` (setproctitle in
slurmd/slurmstepd/slurmstepd.c). A job may be allocated and have no step here for a while. Such a job uses no GPU, so the agent
does not wait for it and never blames it. ``host.process`` finds the processes of slurmstepd and slurmd. It ignores a user's
process with the same name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from fairlead.host.process import PROC, command, daemons

SCAN_SECONDS = 30.0
GONE_AFTER_SECONDS = 120.0  # a job without a step for this long is gone
_STEP = re.compile(rb"slurmstepd: \[(\d{1,10})[.\]]")


class LocalJobs:
    """Scans /proc at most every ``SCAN_SECONDS``, and only while a record says that a job runs. ``proc``: the path of /proc."""

    def __init__(self, proc: str = PROC, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._scanned = float("-inf")
        self._missed: dict[int, float] = {}  # by job: the time since which no step was seen

    def gone(self, running: frozenset[int]) -> frozenset[int]:
        """Return the jobs of ``running`` that have had no slurmstepd here for ``GONE_AFTER_SECONDS``. If /proc shows no slurmd,
        it may not show every process, so no job counts as gone."""
        now = self._clock()
        if running and now - self._scanned >= SCAN_SECONDS:
            self._scanned = now
            jobs, slurmd = steps(self._proc)
            absent = running - jobs if slurmd else frozenset()
            self._missed = {job: self._missed.get(job, now) for job in absent}
        return frozenset(job for job, since in self._missed.items() if job in running and now - since >= GONE_AFTER_SECONDS)


def steps(proc: str = PROC) -> tuple[frozenset[int], bool]:
    """Return the jobs with a slurmstepd on this machine, and whether /proc shows a slurmd."""
    jobs: set[int] = set()
    slurmd = False
    for name, pid in daemons("slurmd", "slurmstepd", proc=proc):
        slurmd = slurmd or name == "slurmd"
        if name == "slurmstepd" and isinstance(pid, int) and (found := _STEP.search(command(pid, proc))):
            jobs.add(int(found[1]))
    return frozenset(jobs), slurmd
