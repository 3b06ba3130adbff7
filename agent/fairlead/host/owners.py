"""Finds the owners of the processes on the GPUs by their control groups. No name and no argument of a process is read.

/proc/PID/cgroup has a line ``ID:CONTROLLERS:PATH`` for each hierarchy (proc_pid_cgroup(5)). Slurm makes these paths (slurm
src/plugins/cgroup): with cgroup v2 ``/system.slice/[NODE_]slurmstepd.scope/JOB/step_S/...``, with cgroup v1
``/slurm[_NODE]/uid_U/job_N/step_S/...``. JOB is ``job_N``. From Slurm 26.05 on, JOB is the job's SLUID unless cgroup.conf has
CgroupJobIdPaths=yes. The job record, which the prolog writes, has the SLUID of the job. A user may make control groups below
the groups of his jobs. So a path is matched from its beginning, where only root can make groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.host import job_records
from fairlead.host.root import Root
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_load import ProcessOwner

_JOB = r"job_(?P<%s>\d{1,10})(?=/|$)"
_STEP = re.compile(
    rf"^/(?:(?:system\.slice/)?(?:[^/]+_)?slurmstepd\.scope/(?:{_JOB % 'v2'}|(?P<sluid>[A-Za-z0-9]{{1,32}})(?=/step_))"
    rf"|slurm[^/]*/uid_\d+/{_JOB % 'v1'})(?:/step_(?P<step>[A-Za-z0-9_.]+))?(?:/|$)"
)
_SESSION = re.compile(r"^/user\.slice/user-(\d{1,10})\.slice(?:/|$)")
_SYSTEM = re.compile(r"^/system\.slice/(?:system-[^/]+\.slice/)?([^/]+)")
_TEXT = re.compile(r"[^A-Za-z0-9_.@:-]")
_UNIT_CHARACTERS = 60


class JobStep(NamedTuple):
    """Names a job step of Slurm. job: the job id, or 0 if the step's control group has a SLUID that is in no job record."""

    job: int
    step: str


def step_of(text: str, jobs: Callable[[], Mapping[str, int]]) -> JobStep | None:
    """Return the job step in the content of /proc/PID/cgroup, or None if there is none. ``jobs`` returns job ids by SLUID. It is
    called only when a SLUID is found."""
    for path in _paths(text):
        if found := _STEP.match(path):
            number = found["v2"] or found["v1"]
            return JobStep(int(number) if number else jobs().get(found["sluid"], 0), found["step"] or "")
    return None


def _paths(text: str) -> list[str]:
    return [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]


def jobs_of(root: Root) -> Callable[[], Mapping[str, int]]:
    """Return a function that returns the job ids by SLUID, from the job records on ``root``. The function reads the records once,
    at its first call."""
    return cache(lambda: job_records.by_sluid(root.join(job_records.FOLDER)))


def owner_of(text: str, jobs: Callable[[], Mapping[str, int]] = dict) -> ProcessOwner:
    """Return the owner of a process from the content of its /proc/PID/cgroup."""
    if step := step_of(text, jobs):
        return ProcessOwner(job=step.job)
    paths = _paths(text)
    for path in paths:
        if session := _SESSION.match(path):
            return ProcessOwner(uid=int(session[1]))
    units = [unit[1] for path in paths if (unit := _SYSTEM.match(path))]
    outer = [path.split("/")[1] for path in paths if path.strip("/")]
    return ProcessOwner(unit=_TEXT.sub("_", (units or outer or [""])[0])[:_UNIT_CHARACTERS])


class Owners:
    """Remembers the owner of each process while NVML lists the process. ``attribute(..., again=True)`` reads the owners again."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[int, ProcessOwner | Missing] = {}
        self._jobs = jobs_of(root)

    def attribute(self, gpus: tuple[Gpu, ...], *, again: bool) -> tuple[Gpu, ...]:
        """Return the GPUs with the owners of their processes."""
        if not any(isinstance(g.processes, tuple) and g.processes for g in gpus):
            self._known.clear()
            return gpus
        before = {} if again else self._known
        self._known = {}
        self._jobs = jobs_of(self._root)
        return tuple(self._one(gpu, before.get) for gpu in gpus)

    def _one(self, gpu: Gpu, known: Callable[[int], ProcessOwner | Missing | None]) -> Gpu:
        if isinstance(gpu.processes, Missing) or not gpu.processes:
            return gpu
        for process in gpu.processes:
            if process.pid not in self._known:
                self._known[process.pid] = known(process.pid) or self._read_owner(process.pid)
        return replace(gpu, processes=tuple(replace(p, owner=self._known[p.pid]) for p in gpu.processes))

    def _read_owner(self, pid: int) -> ProcessOwner | Missing:
        text = self._root.read_text(f"/proc/{pid}/cgroup", 65536)
        if text is None:
            return ProcessOwner(gone=True)
        return text if isinstance(text, Missing) else owner_of(text, self._jobs)
