"""What the agent remembers: the policy's state, kernel records of this boot, samples, and what happened. SQLite, WAL.

Losing it loses no safety: a damaged file is moved aside and a new one begun; where nothing can be written everything
goes on in memory and ``trouble`` says so. Drains are in the ledger, not here.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.model.check import KernelRecord, Past, Sample
from fairlead.policy.state import PolicyState

FILE = "history.sqlite"
SCHEMA = 1
SAMPLE_SECONDS = 60.0  # one value per counter and minute at most, ...
KEEP_SECONDS = 7200.0  # ... for two hours: twice the longest window of a check
RETRY_SECONDS = 60.0
EVENTS_KEPT = 1000
#: Lines of one code and device ("NVRM: Xid (PCI:0000:1b:00): 13") are one kind; of each so many first and last are kept,
#: so that a job that floods the log with its own faults cannot push another fault out.
_KIND = re.compile(r"[^()]{1,40}\([^()]{1,60}\): \d{1,4}|.{1,40}")
FIRST_KEPT, LAST_KEPT = 5, 20
_TABLES = """
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (boot_id TEXT, sequence INTEGER, seconds REAL, priority INTEGER, text TEXT,
                                   PRIMARY KEY (boot_id, sequence, seconds, text)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sample (boot_id TEXT, device TEXT, name TEXT, seconds REAL, value REAL);
CREATE TABLE IF NOT EXISTS event (unix_seconds REAL, event TEXT, text TEXT);
"""


class History:
    """History of one boot. ``state_dir``: where the file lies; ``boot_id``: records and samples of others are dropped."""

    def __init__(self, state_dir: str, boot_id: str) -> None:
        self.path = os.path.join(state_dir, FILE)
        self.boot_id = boot_id
        self.trouble = ""
        self.overrun = 0
        self._db: sqlite3.Connection | None = None
        self._retry_at = 0.0
        self._saved_state = b""
        self._records: dict[tuple[int, float, str], KernelRecord] = {}
        self._kinds: dict[str, list[tuple[int, float, str]]] = {}
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        self._unsaved: list[Sample] = []
        self._readable: set[str] = set()
        self._past: Past | None = None
        self._open()

    # -- in memory -------------------------------------------------------------------------------

    def past(self) -> Past:
        """Everything a check may know of the past, as one value."""
        if self._past is None:
            self._past = Past(
                available=True,
                records=tuple(self._records.values()),
                samples=tuple(s for series in self._samples.values() for s in series),
                readable=frozenset(self._readable),
                overrun=self.overrun,
            )
        return self._past

    def add_records(self, records: Iterable[KernelRecord]) -> int:
        """Remember kernel records; how many of them were new."""
        new: list[tuple[int, float, str]] = []
        dropped: list[tuple[int, float, str]] = []
        for record in records:
            key = (record.sequence, record.seconds, record.text)
            if key in self._records:
                continue
            kind = self._kinds.setdefault(_kind(record.text), [])
            if len(kind) >= FIRST_KEPT + LAST_KEPT:
                dropped.append(kind.pop(FIRST_KEPT))
                del self._records[dropped[-1]]
            kind.append(key)
            self._records[key] = record
            new.append(key)
        if new:
            self._past = None
            kept = [self._records[key] for key in new if key in self._records]
            rows = [(self.boot_id, r.sequence, r.seconds, r.priority, r.text) for r in kept]
            self._write("INSERT OR IGNORE INTO record VALUES (?, ?, ?, ?, ?)", rows)
            where = "boot_id = ? AND sequence = ? AND seconds = ? AND text = ?"
            self._write(f"DELETE FROM record WHERE {where}", [(self.boot_id, *key) for key in dropped])  # noqa: S608
            self.commit()
        return len(new)

    def add_samples(self, seconds: float, values: Iterable[tuple[str, str, float]]) -> None:
        """Remember counters (device, name, value) at ``seconds`` of CLOCK_BOOTTIME; at most one a minute of each."""
        for device, name, value in values:
            series = self._samples.setdefault((device, name), [])
            if series and seconds - series[-1].seconds < SAMPLE_SECONDS:
                continue
            sample = Sample(device=device, name=name, seconds=seconds, value=value)
            while series and seconds - series[0].seconds > KEEP_SECONDS:
                series.pop(0)
            series.append(sample)
            self._unsaved.append(sample)
            self._past = None

    def add_readable(self, names: frozenset[str]) -> None:
        """Remember which fields of which devices could be read."""
        if not names <= self._readable:
            self._readable |= names
            self._past = None
            self._put("readable", msgspec.json.encode(sorted(self._readable)))

    def set_overrun(self, lost: int) -> None:
        if lost != self.overrun:
            self.overrun = lost
            self._past = None

    # -- on disk ---------------------------------------------------------------------------------

    def load_state(self) -> PolicyState:
        """The policy's state as last saved; an empty one is a safe start."""
        data = self._get("state")
        if data is None:
            return PolicyState()
        try:
            state = msgspec.json.decode(data, type=PolicyState)
        except msgspec.DecodeError as e:
            self.trouble = f"{self.path}: the policy's state cannot be read and begins anew ({e})"
            return PolicyState()
        self._saved_state = data
        return state

    def save_state(self, state: PolicyState) -> None:
        """Save the policy's state when it says something new (a mere count of clean sweeps does not)."""
        data = msgspec.json.encode(replace(state, clean_sweeps=min(state.clean_sweeps, 3)))
        if data != self._saved_state:
            self._saved_state = data
            self._put("state", data)
            self.commit()

    def cursor(self) -> int | None:
        """The kernel log's sequence number up to which records were read in this boot."""
        data = self._get(f"cursor {self.boot_id}")
        return int(data) if data is not None and data.isdigit() else None

    def save_cursor(self, cursor: int | None) -> None:
        if cursor is not None:
            self._put(f"cursor {self.boot_id}", str(cursor).encode())

    def event(self, event: str, text: str) -> None:
        """Note what happened, for `fairlead why`."""
        self._write("INSERT INTO event VALUES (?, ?, ?)", [(time.time(), event, text)])
        self.commit()

    def events(self, count: int = 20) -> list[dict[str, object]]:
        """The last events, oldest first."""
        rows = self._read("SELECT unix_seconds, event, text FROM event ORDER BY rowid DESC LIMIT ?", (count,))
        return [{"unix_seconds": row[0], "event": row[1], "text": row[2]} for row in reversed(rows)]

    def save_samples(self) -> None:
        """Write what has gathered, and drop what is too old."""
        if self._unsaved:
            self._write(
                "INSERT INTO sample VALUES (?, ?, ?, ?, ?)",
                [(self.boot_id, s.device, s.name, s.seconds, s.value) for s in self._unsaved],
            )
            oldest = self._unsaved[-1].seconds - KEEP_SECONDS
            self._write("DELETE FROM sample WHERE boot_id != ? OR seconds < ?", [(self.boot_id, oldest)])
            self._unsaved.clear()
            self.commit()

    def commit(self) -> None:
        self._guard(lambda db: db.commit())

    def close(self) -> None:
        self.save_samples()
        self.commit()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        for _ in range(2):
            try:
                self._db = self._connect()
                self._load()
                self.trouble = ""
                return
            except sqlite3.OperationalError as e:
                self._fail(e)
                return
            except (sqlite3.DatabaseError, msgspec.DecodeError, TypeError, ValueError) as e:
                self._fail(e)
                self._move_aside()
        self.trouble = f"{self.path}: cannot be made anew"

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=1.0, isolation_level="DEFERRED", check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -256")
            if db.execute("PRAGMA user_version").fetchone()[0] not in (0, SCHEMA):
                raise sqlite3.DatabaseError("its schema is of another version")
            if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            db.executescript(_TABLES)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            db.close()
            raise
        return db

    def _load(self) -> None:
        self._write("DELETE FROM record WHERE boot_id != ?", [(self.boot_id,)])
        self._write("DELETE FROM kept WHERE key LIKE 'cursor %' AND key != ?", [(f"cursor {self.boot_id}",)])
        newest = "(SELECT max(rowid) FROM event)"
        self._write(f"DELETE FROM event WHERE rowid <= {newest} - ?", [(EVENTS_KEPT,)])  # noqa: S608
        for sequence, seconds, priority, text in self._read(
            "SELECT sequence, seconds, priority, text FROM record WHERE boot_id = ? ORDER BY seconds, sequence", (self.boot_id,)
        ):
            record = KernelRecord(sequence=sequence, seconds=seconds, priority=priority, text=text, boot_id=self.boot_id)
            key = (sequence, seconds, text)
            self._records[key] = record
            self._kinds.setdefault(_kind(text), []).append(key)
        for device, name, seconds, value in self._read(
            "SELECT device, name, seconds, value FROM sample WHERE boot_id = ? ORDER BY seconds", (self.boot_id,)
        ):
            self._samples.setdefault((device, name), []).append(
                Sample(device=device, name=name, seconds=seconds, value=value)
            )  # fmt: skip
        readable = self._get("readable")
        if readable is not None:
            self._readable |= set(msgspec.json.decode(readable, type=list[str]))
        self._past = None
        self.commit()

    def _move_aside(self) -> None:
        self._records.clear()
        self._kinds.clear()
        self._samples.clear()
        self._readable.clear()
        for suffix in ("", "-wal", "-shm"):
            try:
                os.replace(self.path + suffix, self.path + ".bad" + suffix)
            except OSError:
                pass

    def _fail(self, error: Exception) -> None:
        self._saved_state = b""
        self.trouble = f"{self.path}: {error}; history is kept in memory only"
        if self._db is not None:
            try:
                self._db.close()
            except sqlite3.Error:
                pass
            self._db = None

    def _guard(self, act: Callable[[sqlite3.Connection], object]) -> None:
        if self._db is None:
            if time.monotonic() < self._retry_at:
                return
            self._open()
            if self._db is None:
                return
        try:
            act(self._db)
        except sqlite3.Error as e:
            self._fail(e)
            self._retry_at = time.monotonic() + RETRY_SECONDS

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        self._guard(lambda db: db.executemany(statement, rows))

    def _read(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        self._guard(lambda db: rows.extend(db.execute(statement, values).fetchall()))
        return rows

    def _put(self, key: str, value: bytes) -> None:
        self._write("INSERT OR REPLACE INTO kept VALUES (?, ?)", [(key, value)])

    def _get(self, key: str) -> bytes | None:
        rows = self._read("SELECT value FROM kept WHERE key = ?", (key,))
        value = rows[0][0] if rows else None
        return value if isinstance(value, bytes) else None


def _kind(text: str) -> str:
    match = _KIND.match(text)
    return match[0] if match else ""
