"""Which jobs are on this node, seen without asking slurmctld: those with a slurmstepd here.

A record says "running" for ever where no epilog ended it (none configured, slurmd away, a full /run). slurmstepd writes its
step into its title, ``slurmstepd: [JOB.STEP]`` (setproctitle in slurmd/slurmstepd/slurmstepd.c). A job may be allocated and
have no step here for a while; such a job uses no GPU, so nothing is to wait for it and nothing is its fault. What counts as
slurmstepd and slurmd is in ``host.process``: a user's process of that name is neither.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from fairlead.host.process import PROC, command, daemons

LOOK_SECONDS = 30.0
GONE_AFTER_SECONDS = 120.0  # without a step for so long
_STEP = re.compile(rb"slurmstepd: \[(\d{1,10})[.\]]")


class Presence:
    """``proc``: where /proc is. Looks at most every ``LOOK_SECONDS``, and only while a record says that a job runs."""

    def __init__(self, proc: str = PROC, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._looked = float("-inf")
        self._missed: dict[int, float] = {}  # since when no step was seen

    def gone(self, running: frozenset[int]) -> frozenset[int]:
        """The jobs of these whose processes are not here any more. None while slurmd is not seen either: then /proc does not
        show it all."""
        now = self._clock()
        if running and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            jobs, slurmd = steps(self._proc)
            absent = running - jobs if slurmd else frozenset()
            self._missed = {job: self._missed.get(job, now) for job in absent}
        return frozenset(job for job, since in self._missed.items() if job in running and now - since >= GONE_AFTER_SECONDS)


def steps(proc: str = PROC) -> tuple[frozenset[int], bool]:
    """Jobs with a slurmstepd on this machine, and whether a slurmd is seen."""
    jobs: set[int] = set()
    slurmd = False
    for name, pid in daemons("slurmd", "slurmstepd", proc=proc):
        slurmd = slurmd or name == "slurmd"
        if name == "slurmstepd" and isinstance(pid, int) and (found := _STEP.search(command(pid, proc))):
            jobs.add(int(found[1]))
    return frozenset(jobs), slurmd
