"""Runs each access to a disk in a separate thread, so that no caller waits for the disk longer than a time limit.

A disk that does not answer (a dead path to a SAN, a frozen file system, NFS without its server) puts its callers into
uninterruptible sleep: state D, which no signal and no watchdog ends. With this module only the thread sleeps, and the agent
goes on. The caller gets an OSError (ETIMEDOUT) after WAIT_SECONDS. Later callers get this error at once, until the disk has
answered.
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
START_SECONDS = 5.0  # the time limit of the first access when an agent starts
SILENT = "the disk does not answer"


class Storage(Protocol):
    """Calls functions that access a disk. ``do()`` returns the result of ``act``, or raises its exception.

    If ``act`` takes longer than ``wait_seconds``, ``do()`` raises OSError. ``act`` then goes on until the disk answers, and
    ``late`` is called with its result.
    """

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = ...) -> T: ...


class Direct:
    """Calls ``act`` in the caller's thread, without a time limit. It is for commands, and for files that cannot hang."""

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = 0.0) -> T:
        """Return what ``act`` returns."""
        return act()


class _Job:
    __slots__ = ("act", "done", "error", "late", "left", "result")

    def __init__(self, act: Callable[[], Any], late: Callable[[Any], object] | None) -> None:
        self.act, self.late = act, late
        self.result: Any = None
        self.error: BaseException | None = None
        self.left = False  # True once the caller has stopped waiting
        self.done = threading.Lock()
        self.done.acquire()


class Disk:
    """Calls one function (``act``) at a time in its own thread. Each Disk may be used by one thread only.

    ``answered``: the time when the last ``act`` ended (CLOCK_BOOTTIME seconds).
    """

    def __init__(self, name: str = "disk") -> None:
        self.name = name
        self.answered = _now()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._late: _Job | None = None
        self._thread: threading.Thread | None = None

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = WAIT_SECONDS) -> T:
        """Return what ``act`` returns; see ``Storage``."""
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
                except Exception:  # noqa: S110  (nobody wants this result any more)
                    pass
            self.answered = _now()
            if left:
                self._late = None
            del job


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
