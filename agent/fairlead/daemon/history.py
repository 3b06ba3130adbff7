"""What the agent remembers: the policy's state, kernel records of this boot, samples, and what happened. SQLite, WAL.

Losing it loses no safety: a damaged file is moved aside and a new one begun; where nothing can be written everything
goes on in memory and ``trouble`` says so. Drains are in the ledger, not here. Only root may read it: kernel records name
processes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.host.clock import boottime
from fairlead.model.check import KernelRecord, Past, Sample
from fairlead.model.facts import Missing
from fairlead.policy.state import PolicyState
from fairlead.xid import parse

FILE = "history.sqlite"
SCHEMA = 2  # 2: a kernel record knows the jobs and users on its GPU
SAMPLE_SECONDS = 60.0  # one value per counter and minute at most, ...
KEEP_SECONDS = 7200.0  # ... for two hours: twice the longest window of a check
RETRY_SECONDS = 60.0
EVENTS_KEPT = 1000
EVENTS_SPARE = 100  # so many more before they are pruned
#: Lines that say the same of the same device are one kind; of each so many first and last are kept, so that a job that
#: floods the log with its own faults cannot push another fault out. Kinds past the limit share one.
FIRST_KEPT, LAST_KEPT = 5, 20
KINDS_MAX, OTHERS_MAX = 200, 50  # of lines that the Xid parser knows, and of others
_OTHER_CHARACTERS = 40
_TABLES = """
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (boot_id TEXT, sequence INTEGER, seconds REAL, priority INTEGER, text TEXT,
                                   jobs TEXT NOT NULL DEFAULT '', uids TEXT NOT NULL DEFAULT '',
                                   PRIMARY KEY (boot_id, sequence, seconds, text)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sample (boot_id TEXT, device TEXT, name TEXT, seconds REAL, value REAL);
CREATE TABLE IF NOT EXISTS event (unix_seconds REAL, event TEXT, text TEXT);
"""
_FROM_1 = "".join(f"ALTER TABLE record ADD COLUMN {name} TEXT NOT NULL DEFAULT '';\n" for name in ("jobs", "uids"))
_INSERT = "INSERT OR IGNORE INTO record (boot_id, sequence, seconds, priority, text, jobs, uids) VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM record WHERE boot_id = ? AND sequence = ? AND seconds = ? AND text = ?"
_PRUNE = f"DELETE FROM event WHERE rowid <= (SELECT max(rowid) FROM event) - {EVENTS_KEPT}"  # noqa: S608

Key = tuple[int, float, str]
Kind = tuple[object, ...]


class History:
    """History of one boot. ``state_dir``: where the file lies, "" for none; records and samples of other boots are dropped."""

    def __init__(self, state_dir: str, boot_id: str) -> None:
        self._folder = state_dir
        self.path = os.path.join(state_dir, FILE)
        self.boot_id = boot_id
        self.trouble = ""
        self.overrun = 0
        self.log: Missing | None = None
        self._db: sqlite3.Connection | None = None
        self._retry_at = 0.0
        self._saved_state = b""
        self._records: dict[Key, KernelRecord] = {}
        self._kinds: dict[Kind, list[Key]] = {}
        self._others = 0
        self._events = 0
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
                log=self.log,
            )
        return self._past

    def add_records(self, records: Iterable[KernelRecord], cursor: int | None = None) -> int:
        """Remember kernel records; how many of them were new. ``cursor``: how far the log is read with them, saved as one
        with them: records that made room are not read again after a crash, as news with an older number."""
        new: list[Key] = []
        dropped: list[Key] = []
        for record in records:
            key = (record.sequence, record.seconds, record.text)
            if key not in self._records:
                dropped += self._remember(key, record)
                new.append(key)
        if new:
            self._past = None
            self.save_cursor(cursor)
            self._write(_INSERT, [self._row(self._records[key]) for key in new if key in self._records])
            self._write(_DELETE, [(self.boot_id, *key) for key in dropped])
            self.commit()
        return len(new)

    def _remember(self, key: Key, record: KernelRecord) -> list[Key]:
        """Take in a record; those of its kind that make room."""
        line = parse(record.text)
        kind: Kind = (record.text[:_OTHER_CHARACTERS],)
        if line is not None:
            kind = (line.kind, line.code, line.pci, line.fatal, line.link, line.caused_by, line.recovery, record.uids)
        if kind not in self._kinds and self._others >= OTHERS_MAX and line is None:
            kind = ("other lines",)
        elif kind not in self._kinds and len(self._kinds) - self._others >= KINDS_MAX and line is not None:
            kind = ("other faults",)
        self._others += kind not in self._kinds and line is None
        keys = self._kinds.setdefault(kind, [])
        gone = [keys.pop(FIRST_KEPT)] if len(keys) >= FIRST_KEPT + LAST_KEPT else []
        for old in gone:
            del self._records[old]
        keys.append(key)
        self._records[key] = record
        return gone

    def _row(self, record: KernelRecord) -> tuple[object, ...]:
        jobs, uids = (",".join(map(str, numbers)) for numbers in (record.jobs, record.uids))
        return (self.boot_id, record.sequence, record.seconds, record.priority, record.text, jobs, uids)

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

    def forget_readable(self, devices: Collection[str], *, everything: bool = False) -> None:
        """What could be read of these devices says nothing about what comes after a repair."""
        left = {n for n in self._readable if not (everything or n.partition("/")[0] in devices)}
        if left != self._readable:
            self._readable = left
            self._past = None
            self._put("readable", msgspec.json.encode(sorted(left)))

    def set_log(self, log: Missing | None, lost: int) -> None:
        """How it is with the kernel log: why it cannot be read, and how many records were lost."""
        if (log, lost) != (self.log, self.overrun):
            self.log, self.overrun = log, lost
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
        data = msgspec.json.encode(replace(state, clean_sweeps=min(state.clean_sweeps, 3), clean_looks=min(state.clean_looks, 3)))
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
        self._events += 1
        if self._events % EVENTS_SPARE == 0:
            self._write(_PRUNE, [()])
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

    @property
    def on_disk(self) -> bool:
        """Whether what was committed last is in the file."""
        return self._db is not None

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
        if not self._folder:
            self._retry_at = float("inf")
            return
        for _ in range(2):
            try:
                self._db = self._connect()
                self._load(self._db)
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
        try:  # root's alone: records name processes; SQLite gives its -wal and -shm the mode of the file
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    fd = os.open(self.path + suffix, os.O_RDWR | os.O_CLOEXEC | (0 if suffix else os.O_CREAT), 0o600)
                    os.fchmod(fd, 0o600)
                    os.close(fd)
        except OSError as e:
            raise sqlite3.OperationalError(f"unable to open database file: {e.strerror}") from None
        db = sqlite3.connect(self.path, timeout=1.0, isolation_level="DEFERRED", check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -256")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, 1, SCHEMA):
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

    def _load(self, db: sqlite3.Connection) -> None:
        """Take up what is stored, and store what has come in while there was no file."""
        db.execute("DELETE FROM record WHERE boot_id != ?", (self.boot_id,))
        db.execute("DELETE FROM kept WHERE key LIKE 'cursor %' AND key != ?", (f"cursor {self.boot_id}",))
        db.execute("DELETE FROM kept WHERE key LIKE 'began %' AND key != ?", (f"began {self.boot_id}",))
        began = f"{time.time() - boottime():.3f}".encode()  # for replay: kernel records count from the boot
        db.execute("INSERT OR IGNORE INTO kept VALUES (?, ?)", (f"began {self.boot_id}", began))
        db.execute(_PRUNE)
        stored = {
            (sequence, seconds, text): KernelRecord(
                sequence=sequence,
                seconds=seconds,
                priority=priority,
                text=text,
                boot_id=self.boot_id,
                jobs=numbers(jobs),
                uids=numbers(uids),
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
        kept = db.execute("SELECT value FROM kept WHERE key = 'readable'").fetchone()
        readable = set(msgspec.json.decode(kept[0], type=list[str])) if kept else set()
        # from here on nothing fails: what is in memory stays
        self._merge(stored, samples)
        db.executemany(_INSERT, [self._row(r) for key, r in self._records.items() if key not in stored])
        db.executemany(_DELETE, [(self.boot_id, *key) for key in stored if key not in self._records])
        if not self._readable <= readable:
            names = msgspec.json.encode(sorted(self._readable | readable))
            db.execute("INSERT OR REPLACE INTO kept VALUES ('readable', ?)", (names,))
        self._readable |= readable
        db.commit()
        self._past = None

    def _merge(self, stored: dict[Key, KernelRecord], samples: list[Sample]) -> None:
        together = stored | self._records
        self._records, self._kinds, self._others = {}, {}, 0
        for key, record in sorted(together.items(), key=lambda item: (item[0][1], item[0][0])):
            self._remember(key, record)
        series: dict[tuple[str, str], dict[float, Sample]] = {}
        for sample in (*samples, *(s for known in self._samples.values() for s in known)):
            series.setdefault((sample.device, sample.name), {})[sample.seconds] = sample
        self._samples = {name: [s for _, s in sorted(found.items())] for name, found in series.items()}

    def _move_aside(self) -> None:
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


def numbers(text: str) -> tuple[int, ...]:
    """The job or user numbers of a stored record, "11,12"."""
    return tuple(int(number) for number in text.split(",") if number)
