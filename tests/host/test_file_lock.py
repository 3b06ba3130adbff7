"""The wait for a lock: it ends when the lock is free or the time is over, and only then."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.host.file_lock import locked_within

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", ["flock", "lockf"])
def test_a_lock_that_another_process_has_is_waited_for_and_taken_when_it_ends(name: str, tmp_path: Path) -> None:
    take: Callable[[int, int], object] = getattr(fcntl, name)
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, os.fspath(file), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other, open(file, "a+") as mine:
        free = threading.Timer(0.1, other.kill)
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        began = time.monotonic()
        assert not locked_within(mine.fileno(), 0.2, take=take, poll_seconds=0.01) and time.monotonic() - began >= 0.2
        assert not locked_within(mine.fileno(), 0.0, take=take), "no wait is one attempt"
        free.start()
        assert locked_within(mine.fileno(), 60.0, take=take, poll_seconds=0.01)
        free.join()


def test_a_file_that_cannot_be_locked_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        locked_within(fd, 60.0)
