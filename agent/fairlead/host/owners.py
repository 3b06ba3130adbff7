"""Whose the processes on the GPUs are, by their control groups. No name and no argument of a process is read.

proc_pid_cgroup(5): one line per hierarchy, ``ID:CONTROLLERS:PATH``. Slurm's paths (slurm src/plugins/cgroup): v2
``/system.slice/[NODE_]slurmstepd.scope/job_N/...``, v1 ``/slurm[_NODE]/uid_U/job_N/...``. Users may make groups of their own
below theirs, so a path counts from its root on.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from fairlead.host.root import Root
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_load import Owner

_STEP = re.compile(r"^/(?:(?:system\.slice/)?(?:[^/]+_)?slurmstepd\.scope|slurm[^/]*/uid_\d+)/job_(\d{1,10})(?:/|$)")
_SESSION = re.compile(r"^/user\.slice/user-(\d{1,10})\.slice(?:/|$)")
_SYSTEM = re.compile(r"^/system\.slice/(?:system-[^/]+\.slice/)?([^/]+)")
_TEXT = re.compile(r"[^A-Za-z0-9_.@:-]")
_UNIT_CHARACTERS = 60


def owner_of(text: str) -> Owner:
    """The owner that the content of /proc/PID/cgroup names."""
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    for path in paths:
        if found := _STEP.match(path):
            return Owner(job=int(found[1]))
    for path in paths:
        if session := _SESSION.match(path):
            return Owner(uid=int(session[1]))
    units = [unit[1] for path in paths if (unit := _SYSTEM.match(path))]
    outer = [path.split("/")[1] for path in paths if path.strip("/")]
    return Owner(unit=_TEXT.sub("_", (units or outer or [""])[0])[:_UNIT_CHARACTERS])


class Owners:
    """Remembers the owner of each process while NVML goes on listing it; ``attribute(..., again=True)`` looks anew."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[int, Owner | Missing] = {}

    def attribute(self, gpus: tuple[Gpu, ...], *, again: bool) -> tuple[Gpu, ...]:
        """The GPUs with the owners of their processes."""
        if not any(isinstance(g.processes, tuple) and g.processes for g in gpus):
            self._known.clear()
            return gpus
        before = {} if again else self._known
        self._known = {}
        return tuple(self._one(gpu, before.get) for gpu in gpus)

    def _one(self, gpu: Gpu, known: Callable[[int], Owner | Missing | None]) -> Gpu:
        if isinstance(gpu.processes, Missing) or not gpu.processes:
            return gpu
        for process in gpu.processes:
            if process.pid not in self._known:
                self._known[process.pid] = known(process.pid) or self._look(process.pid)
        return replace(gpu, processes=tuple(replace(p, owner=self._known[p.pid]) for p in gpu.processes))

    def _look(self, pid: int) -> Owner | Missing:
        text = self._root.read_text(f"/proc/{pid}/cgroup", 65536)
        if text is None:
            return Owner(gone=True)
        return text if isinstance(text, Missing) else owner_of(text)
