"""Tasks in uninterruptible sleep that do not wake: what khungtaskd looks for, with a window of our own.

A task is stuck when it is in state D and has not been scheduled since (its context switches stand still, as in
kernel/hung_task.c). State: proc_pid_stat(5); switches and pending signals: proc_pid_status(5); the step: its cgroup.
Of a process the main thread is looked at, and all threads once that has died (Z) and they keep it. A machine with many
processes is gone through in turns; those in state D are looked at every time.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.host.fuse_waits import FuseWaits
from fairlead.host.owners import jobs_of, step_of
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable
from fairlead.model.host_facts import StuckTask, Tasks

TURN = 400  # processes a look: about 10 ms
_ASKED_SECONDS = 10.0  # of a task that sleeps for so long it is asked what it waits for
_SIGKILL = 1 << 8
_PF_KTHREAD = 0x00200000  # include/linux/sched.h


class Watch:
    """Goes through the processes of a live machine, look by look. ``now``: CLOCK_BOOTTIME seconds."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._sleeping: dict[tuple[str, str], tuple[int, float]] = {}  # (task folder, start) -> (switches, since)
        self._after = 0
        self._fuse = FuseWaits(root)
        self._jobs = jobs_of(root)

    def look(self, now: float, *, turn: int = TURN) -> Tasks | Missing:
        """The next ``turn`` processes by number, and all that slept before."""
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
        stuck = [task for folder in sorted(folders) for task in self._process(folder, now, before)]
        long = [s for s in self._sleeping.items() if now - s[1][1] >= _ASKED_SECONDS]
        waits = self._fuse.among((*key, switches) for key, (switches, _) in sorted(long, key=lambda s: s[1][1]))
        fuse = {int(folder.rpartition("/")[2]) for folder, _, _ in waits}
        stuck = [replace(t, fuse=True) if t.pid in fuse else t for t in stuck]
        return Tasks(total=len(pids), seen=len(ahead), stuck=tuple(sorted(stuck, key=lambda t: (-t.seconds, t.pid))))

    def end(self) -> None:
        """End the process that still looks for us."""
        self._fuse.end()

    def _process(self, folder: str, now: float, before: dict[tuple[str, str], tuple[int, float]]) -> list[StuckTask]:
        stat = self._stat(folder)
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

    def _stat(self, folder: str) -> list[str] | None:
        """The fields after the name, which may hold anything: state, ppid, ..."""
        data = self._root.read_bytes(f"{folder}/stat", 4096, head=True)
        if not isinstance(data, bytes):
            return None
        fields = data.rpartition(b")")[2].decode("ascii", "replace").split()
        return fields if len(fields) > 19 else None

    def _task(
        self, folder: str, stat: list[str], now: float, before: dict[tuple[str, str], tuple[int, float]]
    ) -> StuckTask | None:
        data = self._root.read_bytes(f"{folder}/status", 8192, head=True)
        if not isinstance(data, bytes):
            return None
        switches, pending = 0, 0
        for line in data.decode("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            value = value.strip()
            if name.endswith("ctxt_switches") and value.isdigit():
                switches += int(value)
            elif name in ("SigPnd", "ShdPnd"):
                try:
                    pending |= int(value, 16)
                except ValueError:
                    continue
        key = (folder, stat[19])
        known = before.get(key)
        since = known[1] if known is not None and known[0] == switches else now
        self._sleeping[key] = (switches, since)
        cgroup = self._root.read_bytes(f"{folder}/cgroup", 8192, head=True)
        step = step_of(cgroup.decode("utf-8", "replace"), self._jobs) if isinstance(cgroup, bytes) else None
        flags = int(stat[6]) if stat[6].isdigit() else 0
        return StuckTask(
            pid=int(folder.rpartition("/")[2]),
            seconds=now - since,
            job=step.job if step else 0,
            step=step.step if step else "",
            killed=bool(pending & _SIGKILL),
            kernel=bool(flags & _PF_KTHREAD),
        )
