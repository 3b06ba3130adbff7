"""Finds the sleeping tasks that wait for a FUSE server. Such a task waits for a process, not for a disk, network or driver.

When the server of a user's FUSE file system does not answer, the user's own processes go into state D. They stay in it until
SIGKILL, and even after SIGKILL if the server has already read the request (fs/fuse/dev.c). This is no fault of the node.

The kernel shows in which functions a task sleeps: /proc/PID/wchan has one function, /proc/PID/stack has all (proc(5)). wchan
is not enough: when a task reads a file, wchan only shows that the task waits for a page.

A task waits for FUSE when all three of these are true:

- one of the functions that the task sleeps in belongs to FUSE;
- none of these functions serves /dev/fuse or reads from a disk;
- the mount table of the task has a FUSE mount. (virtiofs runs through the same functions, but the host of a virtual machine
  serves it, and the mount table does not show it as a FUSE mount.)

If neither wchan nor stack can be read, no task counts as waiting for FUSE, so every hang is still reported.

A read of /proc/PID/stack may have to wait while the task PID calls execve(2) (before Linux 5.10 until execve ends). So a separate
process reads the file (``probe``), and the next sweep uses the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fairlead.host import mount_table
from fairlead.host.probe import Question
from fairlead.host.root import Root
from fairlead.host.task_files import waits_in
from fairlead.model.hung_tasks import is_of_fuse_itself, waits_for_server

Sleep = tuple[str, str, int]  # one wait: the task's folder in /proc, its start time, its number of context switches
_TASKS_MAX = 1024  # one probe reads the stacks of at most this many tasks
_ABANDONED_SECONDS = 10.0
_FUNCTION = r"(__)?(fuse_[a-z0-9_]+|request_wait_answer)"
_STACK = ("sh", "-c", 'grep -sHE "$@"; :', "sh", rf"\] {_FUNCTION}[.+]", "--")


class FuseWaits:
    """Remembers which waits are for a FUSE server, and lets a probe read the stacks of the other tasks."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[Sleep, bool] = {}
        self._asked: tuple[Sleep, ...] = ()
        self._asked_at = 0.0
        self._question: Question | None = None

    def among(self, sleeps: Iterable[Sleep]) -> frozenset[Sleep]:
        """Return those of ``sleeps`` that are known to wait for FUSE, and start a probe for the unknown ones.

        ``sleeps``: the waits, the longest first.
        """
        now = tuple(sleeps)
        self._take()
        self._known = {s: self._known[s] for s in now if s in self._known}
        if self._question is None and (unknown := tuple(s for s in now if s not in self._known)[:_TASKS_MAX]):
            self._asked, self._asked_at = unknown, time.monotonic()
            self._question = Question((*_STACK, *(self._root.join(f"{folder}/stack") for folder, _, _ in unknown)))
            self._question.ask()
        return frozenset(s for s, fuse in self._known.items() if fuse)

    def _take(self) -> None:
        question = self._question
        if question is None or (question.waiting_seconds() and time.monotonic() - self._asked_at < _ABANDONED_SECONDS):
            return
        said = question.answer if isinstance(question.answer, str) else ""
        self.end()
        lines = [line.partition("/stack:") for line in said.splitlines()]
        frames = [(path, frame.partition("] ")[2].partition("+")[0]) for path, _, frame in lines]
        itself = {path for path, function in frames if is_of_fuse_itself(function)}
        inside = {path for path, function in frames if waits_for_server(function)} - itself
        for sleep in self._asked:
            folder = sleep[0]
            here = self._root.join(folder) in inside or self._by_wchan(folder)
            self._known[sleep] = here and mount_table.has_fuse(self._root, f"{folder}/mountinfo")

    def _by_wchan(self, folder: str) -> bool:
        return waits_for_server(waits_in(self._root, folder))

    def end(self) -> None:
        if self._question is not None:
            self._question.end()
            self._question = None
