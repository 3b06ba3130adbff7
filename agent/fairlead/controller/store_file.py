"""Locks, makes and copies a store on the controller, and says in one line why a store cannot be used.

If root works on a store, new files still belong to the owner of the folder, who is the account that collects.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable

from fairlead.errors import DataError, HostError, NodeBusy, next_step
from fairlead.model.plain_text import one_line

FULL_BYTES = 1 << 20


def locked(folder: str, path: str, by: str = "fairlead collect") -> int:
    """Return the open lock file of the store at ``path``. Make the folder if it is not there. ``by``: the command that writes it.
    Raises NodeBusy, HostError."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = _opened_for_the_owner(f"{path}.lock")
    except OSError as e:
        raise failed(folder, e) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise NodeBusy(f"{path}: another {by} writes it", hint="try again when it has ended") from None
    return fd


def refuse_other_cluster(path: str, kept: str, cluster: str, hint: str) -> None:
    """Raise DataError if a store has the history of another cluster: two clusters may have nodes of one name, and jobs of one
    number. ``kept``: the cluster of the store, or "" if none is known. ``cluster``: the cluster of slurm.conf, or ""."""
    if kept and cluster and kept != cluster:
        raise DataError(f"{path}: has the history of cluster {kept}, and slurm.conf here is of {cluster}", hint=hint)


def made(path: str) -> None:
    """Make the file of a store if it is not there. Raises OSError."""
    os.close(_opened_for_the_owner(path))


def _opened_for_the_owner(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        folder = os.stat(os.path.dirname(path) or ".")
        os.fchown(fd, folder.st_uid, folder.st_gid)
    return fd


def refuse_foreign(db: sqlite3.Connection, path: str, tables: Iterable[str], *, empty: bool) -> None:
    """Raise DataError if a database has not these tables. ``empty``: a database without any table may become a store."""
    found = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not found.issuperset(tables) and (found or not empty):
        raise DataError(
            f"{path}: is not a store of fairlead", hint="restore a copy (fairlead collect --restore), or move the file away"
        )


def backed_up(db: sqlite3.Connection, path: str) -> None:
    """Write a copy of an open store to a file, as one whole state, for this account only. A copy that SQLite finds damaged does
    not replace an older one. Raises HostError, DataError."""
    new = f"{path}.{os.getpid()}.tmp"
    try:
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            copy = sqlite3.connect(new)
            try:
                db.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # a copy is one file
                refuse_damaged(copy, path)
            finally:
                copy.close()
            os.rename(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except (OSError, sqlite3.Error) as e:
        raise failed(path, e) from None


def refuse_damaged(db: sqlite3.Connection, path: str) -> None:
    """Raise DataError if SQLite finds damage in a database."""
    said = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if said != "ok":
        raise DataError(
            f"{path}: is damaged: {one_line(said, 200)}",
            hint="restore a copy (fairlead collect --restore), or move the file away",
        )


def failed(path: str, error: OSError | sqlite3.Error) -> HostError | DataError:
    """Return what an error of the file system or of SQLite means for the caller."""
    if isinstance(error, OSError):
        return HostError(f"{path}: {error.strerror}", hint=next_step(error))
    if isinstance(error, sqlite3.OperationalError):
        return HostError(f"{path}: {error}", hint="make room there" if _is_full(path) else "")
    return DataError(f"{path}: {error}", hint="restore a copy (fairlead collect --restore), or move the file away")


def _is_full(path: str) -> bool:
    """Return whether the file system of a file is full. SQLite then says "disk I/O error" as well as "disk is full"."""
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES
