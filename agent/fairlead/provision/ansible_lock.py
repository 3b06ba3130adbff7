"""Locks a file as long as ansible-playbook and its workers run. If `fairlead maintain` was killed, its next run sees from the
lock that the old Ansible is still running.

The process of ansible-playbook itself locks the file. A lock of its parent would end with the parent, because a lock belongs to
the open file (flock(2)) and the parent passes no open file to Ansible. Programs that Ansible starts by exec do not have the lock,
because Python closes its descriptors. Therefore a shared ssh connection that stays open does not keep the file locked.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence

_SCRIPT = 'exec 9>>"$0" && flock -s 9 && echo $$ >&9 && exec "$@"'


def locked_command(path: str, command: Sequence[str]) -> list[str]:
    """Return a command that locks the file ``path`` and runs ``command``. Several processes may lock the file at the same time
    (a shared lock)."""
    return ["/bin/sh", "-c", _SCRIPT, path, *command]


def lock_owner(path: str) -> str:
    """Return the id of the process that locked the file last, or "" if the file is not locked. Raises OSError."""
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
    """Wait until no process has locked the file. If the file is locked, ``say`` is called once. Return False if ``stopped`` has
    ended the wait. Raises OSError."""
    pid = lock_owner(path)
    if pid:
        say(f"waiting for ansible-playbook (process {pid}) of a killed `fairlead maintain` to end")
    while pid and not stopped():
        time.sleep(0.2)
        pid = lock_owner(path)
    return not pid
