"""Waits for a file lock with a time limit, which neither flock(2) nor fcntl(2) offers."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable


def locked_within(
    fd: int, seconds: float, *, take: Callable[[int, int], object] = fcntl.flock, poll_seconds: float = 0.05
) -> bool:
    """Take the exclusive lock of an open file. Return False when another process still has it after ``seconds``.

    take: ``fcntl.flock``, or ``fcntl.lockf`` if the other program uses that kind of lock (apt, dpkg). Raises OSError for a
    file that cannot be locked at all.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except (BlockingIOError, PermissionError):  # if the file is locked, fcntl(2) fails with EAGAIN or EACCES
            if time.monotonic() > end:
                return False
        time.sleep(poll_seconds)
