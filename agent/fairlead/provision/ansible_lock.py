"""Keeps a lock for ansible-playbook and its children. If `fairlead maintain` is killed, its next run sees by it that the old
Ansible is still running.

ansible-playbook's own process takes the lock. A lock of its parent would end with the parent (flock(2): a lock belongs to the
open file), and Ansible gets no descriptor from what starts it. Programs that Ansible starts by exec do not have the lock,
because Python closes descriptors. Therefore ssh's kept connections do not keep it either.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence

_SCRIPT = 'exec 9>>"$0" && flock -s 9 && echo $$ >&9 && exec "$@"'


def locked_command(path: str, command: Sequence[str]) -> list[str]:
    """Return the command that keeps the lock at ``path`` while ``command`` runs. Others may keep it at the same time."""
    return ["/bin/sh", "-c", _SCRIPT, path, *command]


def lock_owner(path: str) -> str:
    """Return the process that has the lock (the last one that took it); "" for none. Raises OSError."""
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
    """Wait until no process has the lock; ``say`` is called once where there is one. Return False where ``stopped`` has ended the
    wait. Raises OSError."""
    pid = lock_owner(path)
    if pid:
        say(f"waiting for ansible-playbook (process {pid}) of a killed `fairlead maintain` to end")
    while pid and not stopped():
        time.sleep(0.2)
        pid = lock_owner(path)
    return not pid
