"""Whatever may wait for a disk, done by a thread of its own, so that nobody waits longer than a bound.

A disk that does not answer (a dead path to a SAN, a frozen file system, NFS without its server) holds its callers in
uninterruptible sleep: state D, which no signal ends and no watchdog. The thread sleeps then, and the agent goes on: who asked
gets an OSError (ETIMEDOUT) after WAIT_SECONDS, and everybody after it at once, until the disk has answered.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
WAIT_SECONDS = 1.0
START_SECONDS = 5.0  # of the first look, with which an agent starts
SILENT = "the disk does not answer"


class Storage(Protocol):
    """``do()`` gives what ``act`` gives, or raises what it raises, or OSError when it has not come back in time.

    An act that is late is not undone: it ends when the disk lets it, and its result goes to ``late``.
    """

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = ...) -> T: ...


class Direct:
    """No thread and no bound: for commands, and for files that cannot hang."""

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = 0.0) -> T:
        """What ``act`` gives."""
        return act()


class _Job:
    __slots__ = ("act", "asked", "done", "error", "late", "left", "result")

    def __init__(self, act: Callable[[], Any], late: Callable[[Any], object] | None) -> None:
        self.act, self.late = act, late
        self.asked = _now()
        self.result: Any = None
        self.error: BaseException | None = None
        self.left = False  # nobody waits any more
        self.done = threading.Lock()
        self.done.acquire()


class Disk:
    """One thread, one act at a time. ``answered``: CLOCK_BOOTTIME seconds when the last one came back. For one caller's
    thread only: the loop has one, and the courier another."""

    def __init__(self, name: str = "disk") -> None:
        self.name = name
        self.answered = _now()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._late: _Job | None = None
        self._thread: threading.Thread | None = None

    @property
    def silent_seconds(self) -> float:
        """For how long an act has not come back; 0.0 while none is late."""
        late = self._late
        return _now() - late.asked if late is not None else 0.0

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = WAIT_SECONDS) -> T:
        """See ``Storage``."""
        if self._late is not None:
            raise OSError(errno.ETIMEDOUT, SILENT)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()
        job = _Job(act, late)
        self._jobs.put(job)
        if not job.done.acquire(timeout=wait_seconds):
            with self._lock:
                if job.done.locked():
                    job.left = True
                    self._late = job
            if job.left:
                raise OSError(errno.ETIMEDOUT, SILENT)
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.result = job.act()
            except BaseException as e:
                job.error = e
            with self._lock:
                job.done.release()
                left = job.left
            if left and job.late is not None and job.error is None:
                try:
                    job.late(job.result)
                except Exception:  # noqa: S110  (of something that nobody wants any more)
                    pass
            self.answered = _now()
            if left:
                self._late = None
            del job


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
