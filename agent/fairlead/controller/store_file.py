"""Locks a store on the controller for its one writer, and says in one line why a store cannot be used."""

from __future__ import annotations

import fcntl
import os
import sqlite3

from fairlead.errors import DataError, HostError, NodeBusy, next_step

FULL_BYTES = 1 << 20


def locked(folder: str, path: str, by: str = "fairlead collect") -> int:
    """Return the open lock file of the store at ``path``. Make the folder if it is not there. ``by``: the command that writes it.
    Raises NodeBusy, HostError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise failed(folder, e) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise NodeBusy(f"{path}: another {by} writes it", hint="try again when it has ended") from None
    return fd


def failed(path: str, error: OSError | sqlite3.Error) -> HostError | DataError:
    """Return what an error of the file system or of SQLite means for the caller."""
    if isinstance(error, OSError):
        return HostError(f"{path}: {error.strerror}", hint=next_step(error))
    if isinstance(error, sqlite3.OperationalError):
        return HostError(f"{path}: {error}", hint="make room there" if _is_full(path) else "")
    return DataError(f"{path}: {error}", hint="restore a backup, or move the file away")


def _is_full(path: str) -> bool:
    """Return whether the file system of a file is full. SQLite then says "disk I/O error" as well as "disk is full"."""
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES
