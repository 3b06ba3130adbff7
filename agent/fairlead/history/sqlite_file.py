"""Reads and writes the file of the history, an SQLite database in WAL mode. Each access waits for a limited time (``disk``).

A damaged file is renamed, and a new file is begun. A file of a newer release is kept as ``history.sqlite.schemaN``, and a new
file is begun with what this release knows of it (decision 56). If the file cannot be written, ``trouble`` has the reason, and
writing is tried again later. Only root may read the file, because kernel records name processes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.history.daily_values import Days
from fairlead.history.xid_counts import Code
from fairlead.host.boot_clock import boottime
from fairlead.host.bounded_disk import START_SECONDS, WAIT_SECONDS, Storage
from fairlead.model.check_definition import KernelRecord, Sample
from fairlead.model.json_text import NOT_JSON

FILE = "history.sqlite"
SCHEMA = 2  # since 2, a kernel record has the jobs and users on its GPU
#: The wait before the file is tried again, after each failure in a row. The first wait is also used for a damaged file and for a
#: disk that does not answer.
RETRY_SECONDS = (1.0, 2.0, 4.0, 10.0)
BUSY_SECONDS = 0.3  # how long SQLite waits for another process that has locked the file
EVENTS_KEPT = 1000
_TABLES = """
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (boot_id TEXT, sequence INTEGER, seconds REAL, priority INTEGER, text TEXT,
                                   jobs TEXT NOT NULL DEFAULT '', uids TEXT NOT NULL DEFAULT '',
                                   PRIMARY KEY (boot_id, sequence, seconds, text)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sample (boot_id TEXT, device TEXT, name TEXT, seconds REAL, value REAL);
CREATE TABLE IF NOT EXISTS event (unix_seconds REAL, event TEXT, text TEXT);
"""
_FROM_1 = "".join(f"ALTER TABLE record ADD COLUMN {name} TEXT NOT NULL DEFAULT '';\n" for name in ("jobs", "uids"))
INSERT = "INSERT OR IGNORE INTO record (boot_id, sequence, seconds, priority, text, jobs, uids) VALUES (?, ?, ?, ?, ?, ?, ?)"
DELETE = "DELETE FROM record WHERE boot_id = ? AND sequence = ? AND seconds = ? AND text = ?"
PUT = "INSERT OR REPLACE INTO kept VALUES (?, ?)"
PRUNE = f"DELETE FROM event WHERE rowid <= (SELECT max(rowid) FROM event) - {EVENTS_KEPT}"  # noqa: S608

#: The tables that a file of a newer release has too. A newer schema only adds tables and columns (decision 56).
_TABLE_NAMES = ("kept", "record", "sample", "event")

Key = tuple[int, float, str]
Statement = tuple[str, Sequence[tuple[object, ...]]]


class Stored(Struct, frozen=True):
    """Holds the contents of the file that concern this boot or the whole machine.

    records, samples, devices, lost and xids are of this boot. The other fields are of the machine's whole life. readable: the
    names of the fields that could be read. gpu_cards: the card at each address. days: the encoded daily values. devices: the
    devices that were seen. lost: how many kernel records were lost, and the time of the last loss. gpu_labels: index and UUID by
    PCI address. xids: see ``xid_counts``.
    """

    records: dict[Key, KernelRecord]
    samples: list[Sample]
    readable: frozenset[str]
    gpu_cards: dict[str, str]
    days: bytes
    devices: frozenset[str]
    lost: tuple[int, float]
    gpu_labels: dict[str, tuple[str, str]]
    xids: dict[Code, int]


class NewerHistory(Exception):
    """Says that the file has the schema of a newer release. schema: its number."""

    def __init__(self, schema: int) -> None:
        super().__init__(f"schema {schema}")
        self.schema = schema


class Store:
    """Opens and writes the file. ``state_dir``: the file's folder, or "" for no file. ``trouble``: why the file cannot be written
    now, or "" if it can. ``note``: what was done with a file of a newer release, or ""."""

    def __init__(self, state_dir: str, boot_id: str, disk: Storage) -> None:
        self._folder = state_dir
        self.path = os.path.join(state_dir, FILE)
        self.boot_id = boot_id
        self.trouble = ""
        self.note = ""
        self._disk = disk
        self._db: sqlite3.Connection | None = None
        self._retry_at = 0.0
        self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @property
    def wants_open(self) -> bool:
        """Return whether the file is closed and should be tried again now."""
        return self._db is None and bool(self._folder) and time.monotonic() >= self._retry_at

    def open(self, *, first: bool = False) -> Stored | None:
        """Open the file, or make it if there is none, and return its contents. If that fails, set ``trouble`` and return None."""
        if not self._folder:
            return None
        wait = START_SECONDS if first else WAIT_SECONDS
        for _ in range(3):
            try:
                db, stored = self._disk.do(self._opened, lambda late: late[0].close(), wait)
            except NewerHistory as e:
                try:
                    self.note = self._disk.do(partial(self._take_over, e.schema), wait_seconds=START_SECONDS)
                except (OSError, sqlite3.Error) as failure:
                    self._fail(failure)
                    return None
            except (sqlite3.OperationalError, OSError) as e:
                self._fail(e)
                return None
            except (*NOT_JSON, sqlite3.DatabaseError, TypeError, ValueError) as e:
                self._fail(e)
                with suppress(OSError):
                    self._disk.do(self._move_aside)
            else:
                self._db, self.trouble = db, ""
                return stored
        self.trouble = f"{self.path}: cannot be made anew"
        return None

    def write(self, *statements: Statement, commit: bool = True) -> bool:
        """Carry out statements in one transaction. Return whether that worked. If not, the caller still has the data."""

        def act(db: sqlite3.Connection) -> None:
            for statement, rows in statements:
                db.executemany(statement, rows)
            if commit:
                db.commit()

        return self._guard(act)

    def read(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Return the rows; none where the file cannot be read."""
        rows: list[tuple[Any, ...]] = []
        return rows if self._guard(lambda db: rows.extend(db.execute(statement, values).fetchall())) else []

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error, OSError):
                self._disk.do(db.close)

    def _guard(self, act: Callable[[sqlite3.Connection], object]) -> bool:
        db = self._db
        if db is None:
            return False
        try:
            self._disk.do(lambda: act(db), lambda _: db.close())
        except (sqlite3.Error, OSError) as e:
            self._fail(e)
            return False
        self._failures = 0
        return True

    def _fail(self, error: Exception) -> None:
        self.trouble = f"{self.path}: {getattr(error, 'strerror', None) or error}; history is kept in memory only"
        known = isinstance(error, sqlite3.OperationalError | OSError) and not isinstance(error, TimeoutError)
        self._failures = self._failures + 1 if known else 0
        self._retry_at = time.monotonic() + RETRY_SECONDS[min(max(0, self._failures - 1), len(RETRY_SECONDS) - 1)]
        db, self._db = self._db, None
        # a file that is opened too late is closed when the call comes back
        if db is not None and not isinstance(error, TimeoutError):
            with suppress(sqlite3.Error, OSError):
                self._disk.do(db.close)

    # -- in the disk's thread --------------------------------------------------------------------

    def _opened(self) -> tuple[sqlite3.Connection, Stored]:
        db = self._connect()
        try:
            return db, self._stored(db)
        except BaseException:
            db.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        try:  # for root only, because records name processes. SQLite gives its -wal and -shm the mode of the file
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    fd = os.open(self.path + suffix, os.O_RDWR | os.O_CLOEXEC | (0 if suffix else os.O_CREAT), 0o600)
                    os.fchmod(fd, 0o600)
                    os.close(fd)
        except OSError as e:
            raise sqlite3.OperationalError(f"unable to open database file: {e.strerror}") from None
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level="DEFERRED", check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -256")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise NewerHistory(version)
            if version < 0:
                raise sqlite3.DatabaseError("its schema is of another version")
            if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            if version == 1:
                db.executescript(f"BEGIN;\n{_FROM_1}PRAGMA user_version = {SCHEMA};\nCOMMIT;")
            db.executescript(_TABLES)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db

    def _stored(self, db: sqlite3.Connection) -> Stored:
        db.execute("DELETE FROM record WHERE boot_id != ?", (self.boot_id,))
        for name in ("cursor", "began", "lost", "devices", "xids"):
            db.execute(f"DELETE FROM kept WHERE key LIKE '{name} %' AND key != ?", (f"{name} {self.boot_id}",))  # noqa: S608
        # `fairlead replay` needs the time of the boot, because the times of kernel records are counted from it
        began = f"{time.time() - boottime():.3f}".encode()
        db.execute("INSERT OR IGNORE INTO kept VALUES (?, ?)", (f"began {self.boot_id}", began))
        db.execute(PRUNE)
        records = {
            (sequence, seconds, text): KernelRecord(
                sequence=sequence,
                seconds=seconds,
                priority=priority,
                text=text,
                boot_id=self.boot_id,
                jobs=numbers(jobs),
                uids=numbers(uids),
                attributed=bool(jobs),
            )
            for sequence, seconds, priority, text, jobs, uids in db.execute(
                "SELECT sequence, seconds, priority, text, jobs, uids FROM record WHERE boot_id = ?", (self.boot_id,)
            )
        }
        samples = [
            Sample(device=device, name=name, seconds=seconds, value=value)
            for device, name, seconds, value in db.execute(
                "SELECT device, name, seconds, value FROM sample WHERE boot_id = ?", (self.boot_id,)
            )
        ]
        days = _kept(db, "days")
        Days().merge(days)  # raises an error if the stored values are damaged
        xids = _decoded(db, f"xids {self.boot_id}", list[tuple[str, str, str, int]], [])
        stored = Stored(
            records=records,
            samples=samples,
            readable=frozenset(_decoded(db, "readable", list[str], [])),
            gpu_cards=_decoded(db, "boards", dict[str, str], {}),
            days=days,
            devices=frozenset(_decoded(db, f"devices {self.boot_id}", list[str], [])),
            lost=_decoded(db, f"lost {self.boot_id}", tuple[int, float], (0, 0.0)),
            gpu_labels=_decoded(db, "gpu_labels", dict[str, tuple[str, str]], {}),
            xids={(kind, address, code): count for kind, address, code, count in xids},
        )
        db.commit()
        return stored

    def _take_over(self, schema: int) -> str:
        """Keep the file of a newer release under another name, begin a new one with what this release knows of it, and return one
        line about that. Raises OSError and sqlite3.Error. The new file replaces the other one when it is complete."""
        kept, building = f"{self.path}.schema{schema}", f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(building)
        os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(building, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            lost = _copied(db, self.path)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        finally:
            db.close()
        with suppress(FileNotFoundError):
            os.unlink(kept)
        os.link(self.path, kept)
        os.replace(building, self.path)
        rest = f"; nothing of {', '.join(lost)} could be read" if lost else ""
        return f"{self.path} was written by a newer fairlead (schema {schema}); it is kept as {kept}, and goes on here{rest}"

    def _move_aside(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.replace(self.path + suffix, self.path + ".bad" + suffix)


def _copied(db: sqlite3.Connection, newer: str) -> list[str]:
    """Copy the rows and columns that this release knows from the file ``newer`` into a new database. Return the tables that could
    not be read."""
    db.executescript(_TABLES)
    source = sqlite3.connect(newer, timeout=BUSY_SECONDS, isolation_level=None)
    lost = []
    try:
        if source.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
            raise sqlite3.OperationalError("another process reads it")  # its -wal would be taken for that of the new file
        db.execute("BEGIN")
        for table in _TABLE_NAMES:
            here, there = ({row[1] for row in each.execute(f"PRAGMA table_info({table})")} for each in (db, source))
            names = sorted(here & there)
            marks = ", ".join("?" * len(names))
            try:
                rows = source.execute(f"SELECT {', '.join(names)} FROM {table}")  # noqa: S608
                db.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)  # noqa: S608
            except sqlite3.Error:
                lost.append(table)
        db.execute("COMMIT")
    finally:
        source.close()
    return lost


def numbers(text: str) -> tuple[int, ...]:
    """Return the job or user numbers of a stored record, "11,12"."""
    return tuple(int(number) for number in text.split(",") if number)


def _kept(db: sqlite3.Connection, key: str) -> bytes:
    row = db.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
    return row[0] if row else b""


def _decoded(db: sqlite3.Connection, key: str, kind: Any, otherwise: Any) -> Any:
    """Return the decoded value of a key, or ``otherwise`` if there is none. Raises msgspec's errors for a damaged value."""
    value = _kept(db, key)
    return msgspec.json.decode(value, type=kind) if value else otherwise
