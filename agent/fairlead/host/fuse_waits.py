"""Says which sleeping tasks wait for a FUSE server: that is, for a process and not for a disk, a network or a driver.

When the server of a user's FUSE file system does not answer, the user's own processes go into state D. They stay there until
SIGKILL, and even after it if the server has already read the request (fs/fuse/dev.c). That is no fault of the node. The kernel
says where a task sleeps: /proc/PID/wchan has one function, /proc/PID/stack all of them (proc(5)). The stack is needed since a
read waits for a page.

A task waits for FUSE when all three of these are true:

- one of these functions belongs to FUSE;
- none of them serves /dev/fuse or reads from a disk;
- the mount table of the task has a FUSE mount. (virtiofs runs through the same functions, but the host of a virtual machine
  serves it, and it is no FUSE mount in that table.)

When neither file can be read, no task counts as waiting for FUSE, so this never hides a hang.

A read of /proc/PID/stack waits for a task that executes a program (before Linux 5.10 for as long as that takes). So a separate
process reads it (``probe``), and the answer is there at the next sweep.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fairlead.host import mount_table
from fairlead.host.probe import Question
from fairlead.host.root import Root
from fairlead.host.task_files import waits_in
from fairlead.model.hung_tasks import is_of_fuse_itself, waits_for_server

Sleep = tuple[str, str, int]  # one wait: the folder of the task, its start, its context switches
_TASKS_MAX = 1024  # one question asks for at most so many tasks
_ABANDONED_SECONDS = 10.0
_FUNCTION = r"(__)?(fuse_[a-z0-9_]+|request_wait_answer)"
_STACK = ("sh", "-c", 'grep -sHE "$@"; :', "sh", rf"\] {_FUNCTION}[.+]", "--")


class FuseWaits:
    """Remembers which waits are known to be for FUSE, and asks about the others."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[Sleep, bool] = {}
        self._asked: tuple[Sleep, ...] = ()
        self._asked_at = 0.0
        self._question: Question | None = None

    def among(self, sleeps: Iterable[Sleep]) -> frozenset[Sleep]:
        """Return which of ``sleeps`` are known to wait for FUSE, and ask about those of which nothing is known. ``sleeps``:
        the longest first."""
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
