"""Backs up, restores and erases in everything that fairlead keeps on the controller: three stores, and the journal of idle jobs.

A copy is a folder with the same file names, so that a copy can be read with --store, too. Each file of a copy is whole by itself.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from msgspec import Struct

from fairlead.controller import event_store, fleet_store, job_store
from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.idle_journal import IdleJournal
from fairlead.controller.job_store import JobStore
from fairlead.controller.sqlite_store import SqliteStore
from fairlead.controller.store_file import failed, locked, made, refuse_damaged, refuse_foreign
from fairlead.errors import DataError, FairleadError, HostError, InputMissing, NodeBusy, UsageError, next_step
from fairlead.host.atomic_file import write_file

IDLE = "idle"  # the folder of the journal in a copy
STORES: dict[str, type[SqliteStore]] = {
    job_store.FILE: JobStore,
    fleet_store.FILE: FleetStore,
    event_store.FILE: EventStore,
}


class Folders(Struct, frozen=True, kw_only=True):
    """Names the folders of the stores of jobs and of the fleet, of the journal of idle jobs, and of the queue of events."""

    store: str
    idle: str
    events: str

    def of(self, file: str) -> str:
        """Return the folder of a store."""
        return self.events if file == event_store.FILE else self.store


class Done(Struct, kw_only=True):
    """Says what was done and what was not. done: the files. absent: files that are not there, so that nothing is lost with
    them. left: files that a restore leaves as they are. errors: what failed, the first reason for each file."""

    done: list[str] = []
    absent: list[str] = []
    left: list[str] = []
    errors: list[FairleadError] = []


class Erasure(Struct, frozen=True, kw_only=True):
    """Counts what was erased of a user. runs: of jobs; rows: of the history of the fleet; lines: of the journal of idle jobs;
    events: of the queue. named: whether a name of the user is known; without it, only numbers of jobs can be found."""

    runs: int
    rows: int
    lines: int
    events: int
    named: bool


# -- a copy ----------------------------------------------------------------------------------------


def back_up(folders: Folders, folder: str) -> Done:
    """Write a copy of everything to a folder. A file that cannot be copied does not keep the others from it, and an older copy of
    it stays. Raises UsageError, HostError, and InputMissing if there is nothing to copy."""
    if folder.endswith(".sqlite") or (os.path.exists(folder) and not os.path.isdir(folder)):
        raise UsageError(f"--backup {folder}: name a folder: the copy has several files")
    found = Done()
    _folder(folder)
    for file, opened in STORES.items():
        if not os.path.exists(os.path.join(folders.of(file), file)):
            found.absent.append(file)
            continue
        with _attempted(found, file), opened(folders.of(file), write=False) as here:
            here.backup(os.path.join(folder, file))
    with _attempted(found, IDLE):
        paths = IdleJournal(folders.idle).files()
        if not paths:
            found.absent.append(IDLE)
        else:
            _folder(os.path.join(folder, IDLE))
        for path in paths:
            _copy(path, os.path.join(folder, IDLE, os.path.basename(path)))
    found.done = [name for name in found.done if name not in found.absent]
    if not found.done and not found.errors:
        raise InputMissing(f"{folders.store}: there is no store", hint="`fairlead collect` makes it, on the controller")
    return found


def restore(folders: Folders, folder: str) -> Done:
    """Put a copy in the place of the stores. Nothing is changed if a file of the copy is no store, damaged, or newer than this
    fairlead. Users who were erased after the copy was made are erased again. Months of the journal that are here stay. A queue
    of events that is here and whole stays too: it knows what was sent since the copy, and an older one would send it again.

    Raises InputMissing, DataError, HostError, NodeBusy.
    """
    files = [file for file in STORES if os.path.exists(os.path.join(folder, file))]
    months = IdleJournal(os.path.join(folder, IDLE)).files()
    if not files and not months:
        raise InputMissing(f"{folder}: has no copy", hint="`fairlead collect --backup DIR` makes one")
    for file in files:
        _check_copy(folder, file)
    left = [file for file in files if file == event_store.FILE and _is_whole(folders.of(file), file)]
    put = [file for file in files if file not in left]
    erased = _erased_here(folders.store)
    for file in put:
        _put(os.path.join(folder, file), folders.of(file), file)
    for uid, at in erased.items():
        erase_user(folders, uid, at)
    here = {os.path.basename(path) for path in IdleJournal(folders.idle).files()}
    for path in months:
        if os.path.basename(path) not in here:
            _folder(folders.idle)
            _copy(path, os.path.join(folders.idle, os.path.basename(path)))
    absent = [file for file in STORES if file not in files]
    return Done(done=[*put, *([IDLE] if months else [])], absent=absent, left=left)


def _is_whole(folder: str, file: str) -> bool:
    """Return whether a store is here that this fairlead can read and that SQLite finds whole."""
    try:
        _bring_up_to_date(folder, file)
        with STORES[file](folder, write=False) as here:
            here.refuse_damaged()
    except NodeBusy:
        raise
    except FairleadError:
        return False
    return True


def _bring_up_to_date(folder: str, file: str) -> None:
    """Bring a store of an earlier fairlead up to date, because only then it can be read: what it knows of erased users and of
    sent events has to outlast a restore. Raises DataError, HostError, NodeBusy."""
    path, shape = os.path.join(folder, file), STORES[file].shape
    if not os.path.exists(path):
        return
    try:
        with closing(sqlite3.connect(path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as e:
        raise failed(path, e) from None
    if 0 < version < shape.schema:
        with STORES[file](folder, write=True):
            pass


def _check_copy(folder: str, file: str) -> None:
    """Raise DataError if a file of a copy cannot take the place of a store."""
    path, shape = os.path.join(folder, file), STORES[file].shape
    with _read_only(path) as db:
        try:
            refuse_foreign(db, path, shape.tables, empty=False)
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if not 0 < version <= shape.schema:
                why = f"has the schema {version}, and this fairlead knows {shape.schema}"
                raise DataError(f"{path}: {why}", hint="update fairlead on this machine")
            refuse_damaged(db, path)
        except sqlite3.Error as e:
            raise failed(path, e) from None


@contextmanager
def _read_only(path: str) -> Iterator[sqlite3.Connection]:
    """A copy is one file without a journal, and may lie on a file system that nobody writes."""
    from urllib.parse import quote

    try:
        db = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as e:
        raise failed(path, e) from None
    try:
        yield db
    finally:
        db.close()


def _erased_here(store: str) -> dict[int, int]:
    """Return the users who are erased in the store that is replaced. A store that cannot be read erases nobody."""
    try:
        _bring_up_to_date(store, job_store.FILE)
        with JobStore(store, write=False) as here:
            return here.erased()
    except NodeBusy:
        raise
    except FairleadError:
        return {}


def _put(copy: str, folder: str, file: str) -> None:
    """Replace the whole content of a store, in one transaction of SQLite. A file that is no store is moved aside before."""
    path = os.path.join(folder, file)
    lock = locked(folder, path)
    try:
        _move_aside(path, file)
        made(path)
        target = sqlite3.connect(path, timeout=10.0)
        try:
            with _read_only(copy) as source:
                source.backup(target)
        finally:
            target.close()
    except (OSError, sqlite3.Error) as e:
        raise failed(path, e) from None
    finally:
        os.close(lock)
    with STORES[file](folder, write=True):
        pass  # brings an older schema up to date


def _move_aside(path: str, file: str) -> None:
    try:
        db = sqlite3.connect(path)
        try:
            refuse_foreign(db, path, STORES[file].shape.tables, empty=True)
            refuse_damaged(db, path)
        finally:
            db.close()
    except (DataError, sqlite3.DatabaseError):
        aside = f"{path}.{time.strftime('%Y%m%d-%H%M%S')}.damaged"
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(path + suffix):
                os.rename(path + suffix, aside + suffix)


# -- a user ----------------------------------------------------------------------------------------


def runs_of(store: str, uid: int, now: float) -> int:
    """Return how many jobs of a user would be erased. Raises InputMissing, DataError, HostError."""
    with JobStore(store, write=False) as jobs:
        return len(jobs.known_of(uid, now)[1])


def erase_user(folders: Folders, uid: int, now: float, name: str = "") -> Erasure:
    """Remove a user from everything. What was removed is not taken up again. A command that is killed may be given again: the
    store of jobs, which says what belongs to the user, is the last. Raises InputMissing, DataError, HostError, NodeBusy."""
    with JobStore(folders.store, write=True) as jobs:
        names, numbers = jobs.known_of(uid, now)
        names |= {name} if name else frozenset()
        rows = events = 0
        if os.path.exists(os.path.join(folders.store, fleet_store.FILE)):
            with FleetStore(folders.store, write=True) as fleet:
                rows = fleet.erase_user(names, numbers, now)
        if os.path.exists(os.path.join(folders.events, event_store.FILE)):
            with EventStore(folders.events, write=True) as queue:
                events = queue.erase_user(names, numbers, now)
        journal = IdleJournal(folders.idle)
        lines = journal.erase_user(names) if names and journal.files() else 0
        runs = jobs.erase_user(uid, now)
    return Erasure(runs=runs, rows=rows, lines=lines, events=events, named=bool(names))


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def _attempted(found: Done, name: str) -> Iterator[None]:
    """Add what the body does to ``done``, or the reason why it was not done to ``errors``."""
    try:
        yield
        found.done.append(name)
    except FairleadError as e:
        found.errors.append(e)


def _folder(path: str) -> None:
    _named(path, lambda: os.makedirs(path, mode=0o700, exist_ok=True))


def _copy(source: str, target: str) -> None:
    def copy() -> None:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            write_file(target, file.read(), mode=0o600)
            if os.geteuid() == 0:
                owner = os.stat(os.path.dirname(target))
                os.chown(target, owner.st_uid, owner.st_gid)

    _named(target, copy)


def _named(path: str, act: Callable[[], object]) -> None:
    try:
        act()
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
