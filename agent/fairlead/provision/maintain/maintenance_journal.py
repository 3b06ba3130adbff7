"""Stores the journal of maintenance on the admin host, in one SQLite file. Every step is in the file before it is done.

SQLite uses a rollback journal (not WAL) with synchronous FULL. When `put` has returned, its data is on the disk and in this
one file. Therefore a copy of the file is complete, and the file can be read on a read-only file system
(https://www.sqlite.org/pragma.html#pragma_synchronous, https://www.sqlite.org/wal.html#read_only_databases). A new file
appears with all its tables or not at all. So an empty file is a journal whose content was lost.

A node is in one unfinished run at most. A spare file beside the journal reserves room on the disk. When the disk is full, the
spare file is deleted, so that the last steps of the nodes in work can be written. From then on ``full`` has the error, and no
further node may begin.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from fairlead.errors import DataError, FairleadError, HostError, InputMissing, next_step
from fairlead.model.verdict import one_line
from fairlead.provision.ansible_lock import lock_owner
from fairlead.provision.maintain.maintenance_steps import IN_WORK, MaintenancePlan, MaintenanceStep, NodeWork

T = TypeVar("T")

PATH = "/var/lib/fairlead/maintain.db"
SCHEMA = 1
SPARE_BYTES = 1 << 20
KEEP_DAYS = 1100  # a run that has ended is kept for three years
#: A run is forgotten when so many runs have begun more than KEEP_DAYS after its end: a clock that was wrong once forgets none.
KEEP_RUNS = 12
_TABLES = """
CREATE TABLE IF NOT EXISTS run (id TEXT PRIMARY KEY, began REAL, ended REAL, state TEXT, who TEXT, site TEXT, plan BLOB)
                                WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node (run TEXT, place INTEGER, node TEXT, slurm TEXT, text TEXT, mark TEXT, ended REAL, work BLOB,
                                 PRIMARY KEY (run, place)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS step (run TEXT, node TEXT, unix_seconds REAL, step TEXT, detail TEXT);
"""
#: The runs in the order in which they were begun, whatever the clock said then: each run adds a step without a node at its begin.
_NEWEST_FIRST = (
    "FROM run LEFT JOIN (SELECT run, min(rowid) AS first FROM step GROUP BY run) ON run = id"
    " ORDER BY first DESC, began DESC, id DESC"
)
_CONNECT: dict[str, Any] = {"timeout": 30, "isolation_level": None, "uri": True}
_NODE = "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class MaintenanceRun(Struct, frozen=True, kw_only=True):
    """Describes a run. state: ``running`` (a process drives the run now, or was stopped or killed), ``ended`` or ``aborted``.
    Times are in Unix seconds. ended is 0 for an unfinished run."""

    id: str
    began: float
    ended: float
    state: str
    who: str
    site: str
    plan: MaintenancePlan
    works: tuple[NodeWork, ...] = ()


class JournalStep(Struct, frozen=True, kw_only=True):
    """Holds one step that a node has taken."""

    node: str
    unix_seconds: float
    step: str
    detail: str


class Journal:
    """Reads and writes the journal. Raises HostError where the file cannot be written or read, DataError where it is damaged."""

    def __init__(self, path: str = PATH, *, write: bool = True) -> None:
        self.path = path
        self.full = ""
        self._writes = write
        self._db = self._open(write)

    def _open(self, write: bool) -> sqlite3.Connection:
        try:
            if not os.path.exists(self.path):
                if not write:
                    raise InputMissing(f"{self.path}: no journal", hint="no maintenance has run here; --journal names another")
                self._make()
            if not os.path.isfile(self.path):  # the hint of _lost would have the admin move a folder or a device away
                raise InputMissing(f"{self.path}: not a regular file", hint="--journal names the file of a journal")
            if not os.path.getsize(self.path):
                raise DataError(f"{self.path}: it is empty (0 bytes): its runs are lost", hint=self._lost)
            if write:
                os.close(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
                self._reserve()
            return self._writing() if write else self._reading()
        except sqlite3.Error as e:
            raise self._trouble(e) from None
        except OSError as e:
            why = next_step(e) or "--journal names another file"
            raise HostError(f"{self.path}: {e.strerror}", hint=f"{why}; {self._in_work()}" if write else "") from None

    def _make(self) -> None:
        """Make an empty journal under another name, and link it to ``path`` when it is complete. After a kill only the file of
        the other name may be left."""
        folder = os.path.dirname(self.path) or "."
        os.makedirs(folder, mode=0o755, exist_ok=True)
        fd, new = tempfile.mkstemp(prefix=f"{os.path.basename(self.path)}.new.", dir=folder)  # mode 0600
        os.close(fd)
        try:
            db = sqlite3.connect(new, isolation_level=None)
            try:
                db.executescript(f"PRAGMA synchronous = FULL;BEGIN;{_TABLES}PRAGMA user_version = {SCHEMA};COMMIT;")
            finally:
                db.close()
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.path.exists(self.path):  # another process was quicker
                    return
                for end in ("-journal", "-wal", "-shm"):  # left by a journal that was moved away; SQLite would read them
                    with suppress(FileNotFoundError):
                        os.rename(self.path + end, f"{self.path}{end}.lost")
                os.link(new, self.path)
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            os.unlink(new)

    def _writing(self) -> sqlite3.Connection:
        db = self._checked(sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=rw", **_CONNECT))
        try:
            with suppress(sqlite3.OperationalError):  # fairlead 0.1.0 writes the journal now: the mode changes at a later start
                db.execute("PRAGMA journal_mode = TRUNCATE")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA wal_autocheckpoint = 50")  # in pages: the WAL of fairlead 0.1.0 then fits into the spare file
        except BaseException:
            db.close()
            raise
        return db

    def _reading(self) -> sqlite3.Connection:
        """Open the journal for reading, even in a read-only folder. If a killed run has left a half-written transaction, SQLite
        recovers it in a copy of the journal."""
        try:
            return self._checked(sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", **_CONNECT))
        except sqlite3.OperationalError:
            with tempfile.TemporaryDirectory(prefix="fairlead-maintain.") as folder:
                copy = os.path.join(folder, "copy.db")
                for end in ("", "-journal", "-wal"):
                    with suppress(FileNotFoundError):
                        shutil.copyfile(self.path + end, copy + end)
                return self._checked(sqlite3.connect(copy, **_CONNECT))  # the copy stays readable after its files are removed

    def _checked(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Return ``db`` if it is a complete journal of this schema. Raises DataError."""
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise DataError(f"{self.path}: schema {version}, this fairlead writes {SCHEMA}", hint="use the newer fairlead")
            if version == 0:
                why = f"it has no tables: it is no journal, or {self.path}-wal of fairlead 0.1.0 is lost"
                raise DataError(f"{self.path}: {why}", hint=self._lost)
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise DataError(f"{self.path}: damaged: {one_line(str(found))}", hint=self._lost)
        except BaseException:
            db.close()
            raise
        return db

    @property
    def _lost(self) -> str:
        return f"move it away, so that a new one is made: mv {self.path} {self.path}.lost; its drains may still be in Slurm"

    def _trouble(self, error: sqlite3.Error) -> FairleadError:
        """Convert an error of SQLite: to DataError (exit code 65) if the file is damaged, else to HostError (69)."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return DataError(f"{self.path}: damaged: {error}", hint=self._lost)
        return HostError(f"{self.path}: {error}", hint=self._in_work() if self._writes else "")

    def _in_work(self) -> str:
        """Return a hint that names the nodes in work, which stay as they are while the journal cannot be written."""
        try:
            journal = Journal(self.path, write=False)
            runs = [journal.run(run.id) for run in journal.runs() if not run.ended]
            journal.close()
        except InputMissing:
            return "no node was touched"
        except FairleadError:
            return "nothing was done now; which nodes are in work is not known"
        said = [f"{', '.join(nodes)} of run {r.id}" for r in runs if (nodes := [w.node for w in r.works if w.step in IN_WORK])]
        if not said:
            return "no node was touched, and none is in work"
        return f"nothing was done now; in work, and left as they are: {'; '.join(said)} (--show, later --resume)"

    def _reserve(self) -> None:
        """Make the spare file, which reserves room for the last steps of the nodes in work in case the disk becomes full. Raises
        OSError if the disk has no room for the spare file."""
        spare = self.path + ".spare"
        if os.path.exists(spare) and os.path.getsize(spare) >= SPARE_BYTES:
            return
        fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, SPARE_BYTES)
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    # -- one run at a time ----------------------------------------------------------------------------

    @contextmanager
    def driving(self, run: str) -> Iterator[None]:
        """Lock the run for the ``with`` block, so that only this process drives it. Raises HostError if another process drives
        it."""
        path = f"{self.path}.{run}.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=f"{next_step(e)}; {self._in_work()}".strip("; ")) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
                raise HostError(f"run {run} is being driven by process {pid}", hint="stop that one first (Ctrl-C)") from None
            with suppress(OSError):  # the disk may be full; the lock works without the process id in it
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            yield
            with suppress(OSError):
                if not lock_owner(self.ansible_lock(run)):
                    os.unlink(self.ansible_lock(run))
            with suppress(OSError):
                os.unlink(path)
        finally:
            os.close(lock)

    def ansible_lock(self, run: str) -> str:
        """Return the path of the file that the run's Ansible locks as long as it runs (provision/ansible_lock.py)."""
        return f"{self.path}.{run}.ansible"

    # -- writing ---------------------------------------------------------------------------------------

    def begin(self, plan: MaintenancePlan, works: Sequence[NodeWork], *, site: str, who: str) -> MaintenanceRun:
        """Add a new run and return it. Forget the runs that ended too long ago (see ``KEEP_RUNS``). If another unfinished run is
        not done with a node, the new run skips that node, and the node's detail names the other run."""
        now = time.time()
        name = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + "-" + secrets.token_hex(2)

        def act() -> tuple[NodeWork, ...]:
            runs = self._db.execute(f"SELECT id, began, ended {_NEWEST_FIRST}").fetchall()
            late = sorted((began for _, began, _ in runs), reverse=True)[KEEP_RUNS - 1 : KEEP_RUNS]
            gone = [(name,) for name, _, ended in runs[KEEP_RUNS:] if 0 < ended < late[0] - KEEP_DAYS * 86400.0]
            for table, key in (("step", "run"), ("node", "run"), ("run", "id")):
                self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", gone)  # noqa: S608
            query = "SELECT slurm, run FROM node JOIN run ON run.id = node.run WHERE run.ended = 0 AND node.ended = 0"
            busy = dict(self._db.execute(query))
            mine = []
            for index, work in enumerate(works):
                other = busy.get(work.slurm, "")
                why = f"not touched: it is in run {other}; resume or abort that one first"
                mine.append(work.at(MaintenanceStep.SKIPPED, now, why) if other else work)
                self._node(name, index, mine[-1])
            values = (name, now, who, site, msgspec.json.encode(plan))
            self._db.execute("INSERT INTO run VALUES (?, ?, 0, 'running', ?, ?, ?)", values)
            self._db.execute("INSERT INTO step VALUES (?, '', ?, 'begun', '')", (name, now))
            return tuple(mine)

        mine = self._write(act)
        return MaintenanceRun(id=name, began=now, ended=0.0, state="running", who=who, site=site, plan=plan, works=mine)

    def put(self, run: str, index: int, work: NodeWork, *, new: bool = True) -> None:
        """Write the node with its next step, before that step is done. new: the step differs from the step written before, so
        it is also added to the log."""

        def act() -> None:
            self._node(run, index, work)
            if not new:
                return
            self._db.execute(
                "INSERT INTO step VALUES (?, ?, ?, ?, ?)", (run, work.node, work.since, work.step.value, work.detail)
            )

        self._write(act)

    def replan(self, run: MaintenanceRun, plan: MaintenancePlan) -> MaintenanceRun:
        """Replace the plan of a run that is resumed. Return the run with the new plan."""
        self._write(lambda: self._db.execute("UPDATE run SET plan = ? WHERE id = ?", (msgspec.json.encode(plan), run.id)))
        return msgspec.structs.replace(run, plan=plan)

    def end(self, run: str, state: str) -> None:
        values = (time.time(), state, run)
        self._write(lambda: self._db.execute("UPDATE run SET ended = max(?, began), state = ? WHERE id = ?", values))

    def _node(self, run: str, index: int, work: NodeWork) -> None:
        row = (run, index, work.node, work.slurm, work.text, work.mark, work.ended, msgspec.json.encode(work))
        self._db.execute(_NODE, row)

    def _write(self, act: Callable[[], T]) -> T:
        """Call ``act`` in one transaction. If the transaction fails, for example on a full disk, delete the spare file and try
        once more. Raises HostError if the second try fails too, and DataError if the journal is damaged."""
        try:
            return self._transaction(act)
        except sqlite3.Error as e:
            if isinstance(trouble := self._trouble(e), DataError):
                raise trouble from None
            self.full = self.full or f"{self.path}: {e}"
            with suppress(OSError):
                os.unlink(self.path + ".spare")
        try:
            return self._transaction(act)
        except sqlite3.Error as e:
            hint = "make room there, then `fairlead maintain --resume`: the nodes are as --show says"
            raise HostError(f"{self.path}: {e}", hint=hint) from None

    def _transaction(self, act: Callable[[], T]) -> T:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            done = act()
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        return done

    # -- reading ---------------------------------------------------------------------------------------

    def runs(self) -> tuple[MaintenanceRun, ...]:
        """Return all runs without their nodes, the newest first."""
        rows = self._read(f"SELECT id, began, ended, state, who, site, plan {_NEWEST_FIRST}")
        return tuple(self._run(row) for row in rows)

    def run(self, name: str = "") -> MaintenanceRun:
        """Return the run ``name`` with its nodes, or for "" the newest run that has not ended. Raises InputMissing if there is
        no such run."""
        found = self.runs()
        chosen = next((r for r in found if r.id == name), None) if name else next((r for r in found if not r.ended), None)
        if chosen is None:
            raise InputMissing(
                f"{name or 'maintenance'}: no such run in {self.path}" if name else f"{self.path}: no unfinished run"
            )
        rows = self._read("SELECT work FROM node WHERE run = ? ORDER BY place", (chosen.id,))
        return msgspec.structs.replace(chosen, works=tuple(self._decoded(row[0], NodeWork) for row in rows))

    def log(self, run: str) -> tuple[JournalStep, ...]:
        query = "SELECT node, unix_seconds, step, detail FROM step WHERE run = ? AND node != '' ORDER BY rowid"
        rows = self._read(query, (run,))
        return tuple(JournalStep(node=n, unix_seconds=at, step=step, detail=detail) for n, at, step, detail in rows)

    def earlier_reasons(self, slurm: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return by Slurm name the exact reasons that ended runs of this journal have written to the node."""
        found: dict[str, set[str]] = {}
        wanted = set(slurm)
        for name, text, mark in self._read("SELECT slurm, text, mark FROM node WHERE ended > 0 AND text != ''"):
            if name in wanted:
                found.setdefault(name, set()).update(filter(None, (text, mark)))
        return {name: frozenset(texts) for name, texts in found.items()}

    def done_with(self, slurm: Iterable[str]) -> list[tuple[str, MaintenancePlan, NodeWork]]:
        """Return (run id, plan, node) for each of these nodes and each ended run that was to drain it. ``slurm``: Slurm names."""
        query = "SELECT run.id, run.plan, node.work FROM node JOIN run ON run.id = node.run"
        query += " WHERE run.ended > 0 AND node.text != '' AND node.slurm = ?"
        rows = [row for name in slurm for row in self._read(query, (name,))]
        return [(name, self._decoded(p, MaintenancePlan), self._decoded(w, NodeWork)) for name, p, w in rows]

    def knows(self, slurm: str, text: str) -> bool:
        """Say whether any run of this journal has written this exact reason to the node."""
        return bool(self._read("SELECT 1 FROM node WHERE slurm = ? AND ? IN (text, mark)", (slurm, text)))

    def _read(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise self._trouble(e) from None

    def _decoded(self, text: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, TypeError) as e:
            raise DataError(f"{self.path}: damaged: {e}", hint=self._lost) from None

    def _run(self, row: tuple[Any, ...]) -> MaintenanceRun:
        name, began, ended, state, who, site, plan = row
        return MaintenanceRun(
            id=name, began=began, ended=ended, state=state, who=who, site=site, plan=self._decoded(plan, MaintenancePlan)
        )
