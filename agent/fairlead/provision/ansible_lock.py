"""A lock held by ansible-playbook and its children. If `fairlead maintain` is killed, its next run sees by it that the old
Ansible is still running.

The program takes it itself: a lock of its parent's would end with the parent (flock(2): it belongs to the open file), and what
starts Ansible leaves it no descriptor. What the program starts by exec does not have it (Python closes descriptors), so that
ssh's kept connections do not hold it either.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence

_SCRIPT = 'exec 9>>"$0" && flock -s 9 && echo $$ >&9 && exec "$@"'


def locked_command(path: str, command: Sequence[str]) -> list[str]:
    """The command, which holds the lock at ``path`` while it runs, as others may at the same time."""
    return ["/bin/sh", "-c", _SCRIPT, path, *command]


def lock_owner(path: str) -> str:
    """The process that holds the lock (the last one that took it); "" for none. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.pread(fd, 1 << 16, 0).decode("ascii", "replace").split()
        return words[-1] if words else "unknown"
    finally:
        os.close(fd)
    return ""


def wait_released(path: str, say: Callable[[str], None], stopped: Callable[[], bool]) -> bool:
    """Wait until nobody holds the lock, and say so; False where that was ``stopped``."""
    pid = lock_owner(path)
    if pid:
        say(f"waits for ansible-playbook, process {pid}, which a killed `fairlead maintain` has left")
    while pid and not stopped():
        time.sleep(0.2)
        pid = lock_owner(path)
    return not pid
