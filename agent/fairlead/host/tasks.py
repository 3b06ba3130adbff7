"""Finds tasks in uninterruptible sleep that do not wake, like khungtaskd, but with fairlead's own time limits.

A task is stuck if it is in state D in several sweeps and has not run between them: its number of context switches is the same
(as in kernel/hung_task.c). The state is read from proc_pid_stat(5), context switches and pending signals from
proc_pid_status(5), and the job step from the task's cgroup.

Usually only the main thread of a process is read. All threads are read if the main thread is dead (state Z) but other threads
are not, or if the main thread waits for another task (``waits_for_others``). Each sweep reads a limited number of processes,
and the next sweep continues. Tasks that were in state D are read in every sweep.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from fairlead.host.fuse_waits import FuseWaits, Sleep
from fairlead.host.owners import jobs_of, step_of
from fairlead.host.root import Root
from fairlead.host.task_files import stat_fields, status, waits_in
from fairlead.host.waits_for_others import asking, beside, excused, waits_for_another, waits_for_vfork
from fairlead.model.facts import Missing, unreadable
from fairlead.model.host_facts import StuckTask, Tasks

TURN = 400  # processes in one sweep: about 10 ms
_ASKED_SECONDS = 10.0  # if a task sleeps for this long, fairlead finds out whether it waits for a FUSE server
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
Key = tuple[str, str]  # the task's folder in /proc, and its start time


class _Slept(NamedTuple):
    """Describes the sleep of a task. since: when it was last seen to run. for_another: it sleeps in a function in which
    tasks wait for another task."""

    switches: int
    since: float
    uid: int
    for_another: bool


class Watch:
    """Goes through the processes of a live machine, sweep by sweep."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._sleeping: dict[Key, _Slept] = {}
        self._after = 0
        self._fuse = FuseWaits(root)
        self._jobs = jobs_of(root)

    def sweep(self, now: float, *, turn: int = TURN) -> Tasks | Missing:
        """Read the next ``turn`` processes in the order of their ids, and all tasks that slept in the last sweep. ``now``:
        CLOCK_BOOTTIME seconds."""
        listed = self._root.list("/proc")
        if not isinstance(listed, tuple):
            return listed if isinstance(listed, Missing) else unreadable("/proc: no such folder")
        pids = sorted(int(n) for n in listed if n.isdigit())
        ahead = [p for p in pids if p > self._after][:turn]
        if len(ahead) < turn:
            ahead += [p for p in pids if p <= self._after][: turn - len(ahead)]
        self._after = ahead[-1] if ahead else 0
        self._jobs = jobs_of(self._root)
        folders = {f"/proc/{p}" for p in ahead} | {folder for folder, _ in self._sleeping}
        before, self._sleeping = self._sleeping, {}
        stuck = {task.pid: task for folder in sorted(folders) for task in self._process(folder, now, before)}
        waiting = [(folder, s.uid) for (folder, _), s in self._sleeping.items() if s.for_another and s.since < now]
        others = set(beside(self._root, waiting, pids)) if waiting else set()
        known = {folder for folder, _ in self._sleeping}
        stuck |= {task.pid: task for folder in sorted(others - known) for task in self._process(folder, now, before)}
        for folder in self._for_fuse(now, others, waiting):
            pid = int(folder.rpartition("/")[2])
            stuck[pid] = replace(stuck[pid], fuse=True)
        return Tasks(total=len(pids), seen=len(ahead), stuck=tuple(sorted(stuck.values(), key=lambda t: (-t.seconds, t.pid))))

    def _for_fuse(self, now: float, others: set[str], waiting: list[tuple[str, int]]) -> frozenset[str]:
        """Return the folders of the tasks that wait for a FUSE server, or for a task (of the same process or user) that waits
        for a FUSE server."""
        asked = sorted(
            (s.since, (folder, start, s.switches))
            for (folder, start), s in self._sleeping.items()
            if now - s.since >= _ASKED_SECONDS or folder in others
        )
        found: frozenset[Sleep] = self._fuse.among(sleep for _, sleep in asked)
        direct = [(folder, self._sleeping[folder, start].uid) for folder, start, _ in found]
        return frozenset(folder for folder, _ in direct) | excused(waiting, (*direct, *asking(self._root, others)))

    def end(self) -> None:
        """End the child process that still reads something."""
        self._fuse.end()

    def _process(self, folder: str, now: float, before: dict[Key, _Slept]) -> list[StuckTask]:
        stat = stat_fields(self._root, folder)
        if stat is None:
            return []
        state, threads = stat[0], stat[17]
        if state == "D":
            task = self._task(folder, stat, now, before)
            return [task] if task else []
        if state == "Z" and threads != "1" and "/task/" not in folder:
            rest = [f"{folder}/task/{t}" for t in self._root.names(f"{folder}/task")[:64]]
            return [task for f in rest if f"{folder}/" in f for task in self._process(f, now, before)]
        return []

    def _task(self, folder: str, stat: list[str], now: float, before: dict[Key, _Slept]) -> StuckTask | None:
        said = status(self._root, folder)
        if said is None:
            return None
        key = (folder, stat[19])
        known = before.get(key)
        since = known.since if known is not None and known.switches == said.switches else now
        function = waits_in(self._root, folder)
        self._sleeping[key] = _Slept(said.switches, since, said.uid, waits_for_another(function))
        cgroup = self._root.read_bytes(f"{folder}/cgroup", 8192, head=True)
        step = step_of(cgroup.decode("utf-8", "replace"), self._jobs) if isinstance(cgroup, bytes) else None
        flags = int(stat[6]) if stat[6].isdigit() else 0
        return StuckTask(
            pid=int(folder.rpartition("/")[2]),
            seconds=now - since,
            job=step.job if step else 0,
            step=step.step if step else "",
            killed=said.killed,
            kernel=bool(flags & _PF_KTHREAD),
            vfork=not said.killed and waits_for_vfork(function),
        )
