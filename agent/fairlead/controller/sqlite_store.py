"""Opens an SQLite file on the controller as a store: one process writes it at a time, and each change is one transaction.

A process that is killed at any moment leaves the file as it was before or after a whole transaction (WAL, synchronous=FULL).
Only the account that collects may read the file. A file that root makes there belongs to that account, too.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self
from urllib.parse import quote

from msgspec import Struct

from fairlead.controller.store_file import backed_up, failed, locked, made, refuse_damaged, refuse_foreign
from fairlead.errors import DataError, HostError, InputMissing, next_step

BUSY_SECONDS = 10.0


class StoreShape(Struct, frozen=True, kw_only=True):
    """Describes a kind of store. what: what the file holds, for messages. tables: those that such a file must have. sql: makes
    what is not there. added: what an earlier schema lacks, by its number. command: the command that writes it. option: the
    command's option that names the folder."""

    file: str
    what: str
    schema: int
    tables: tuple[str, ...]
    sql: str
    added: Mapping[int, str] = {}
    command: str = "fairlead collect"
    option: str = "--store"


class SqliteStore:
    """Opens the file in a folder. ``write``: make it if it is not there, and hold the writer's lock until ``close``.

    Raises NodeBusy if another process writes it, DataError for a foreign, newer, older or damaged file, InputMissing, HostError.
    """

    shape: ClassVar[StoreShape]

    def __init__(self, folder: str, *, write: bool) -> None:
        self.path = os.path.join(folder, self.shape.file)
        self._lock = locked(folder, self.path, by=self.shape.command) if write else None
        try:
            self._db = self._opened(write)
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _opened(self, write: bool) -> sqlite3.Connection:
        if not write:
            self._check_there()
        mode = "rwc" if write else "rw"  # a reader of a WAL file needs its -shm, which it may have to make
        try:
            if write:
                made(self.path)
            with suppress(PermissionError):
                os.chmod(self.path, 0o600)
            name = f"file:{quote(os.path.abspath(self.path))}?mode={mode}"
            db = sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        except (OSError, sqlite3.Error) as e:
            raise failed(self.path, e) from None
        try:
            self._begin(db, write=write)
        except sqlite3.Error as e:
            db.close()
            raise failed(self.path, e) from None
        except BaseException:
            db.close()
            raise
        return db

    def _begin(self, db: sqlite3.Connection, *, write: bool) -> None:
        """Refuse a file that this release cannot use, and bring an older one up to date if this process writes."""
        shape = self.shape
        version = db.execute("PRAGMA user_version").fetchone()[0]
        known = f"(schema {version}, and this one knows {shape.schema})"
        if version > shape.schema:
            hint = f"update fairlead on this machine, or name another folder with {shape.option}"
            raise DataError(f"{self.path}: was written by a newer fairlead {known}", hint=hint)
        if not write and 0 < version < shape.schema:
            hint = f"the next round of `{shape.command}` brings it up to date"
            raise DataError(f"{self.path}: was written by an older fairlead {known}", hint=hint)
        refuse_foreign(db, self.path, shape.tables, empty=write)
        if not write:
            db.execute("PRAGMA query_only = ON")
            return
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        db.executescript(f"BEGIN IMMEDIATE;{shape.added.get(version, '')}{shape.sql}PRAGMA user_version = {shape.schema};COMMIT;")

    def _check_there(self) -> None:
        """Raise InputMissing if there is no store, and HostError if this user may not read it."""
        try:
            with open(self.path, "rb"):
                pass
        except FileNotFoundError:
            hint = f"`{self.shape.command}` makes it, on the controller"
            raise InputMissing(f"{self.path}: there is no {self.shape.what}", hint=hint) from None
        except OSError as e:
            hint = "only root and the account that collects may read it" if isinstance(e, PermissionError) else next_step(e)
            raise HostError(f"{self.path}: {e.strerror}", hint=hint) from None

    @contextmanager
    def changes(self) -> Iterator[sqlite3.Connection]:
        """Make all changes in the ``with`` block, or none of them. An inner block belongs to the outer one. Raises HostError,
        DataError."""
        if self._db.in_transaction:
            yield self._db
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as e:
            raise failed(self.path, e) from None

    def backup(self, path: str) -> None:
        """Write a copy of the store to a file, as one whole state, for this account only. Raises HostError, DataError."""
        backed_up(self._db, path)

    def refuse_damaged(self) -> None:
        """Raise DataError if SQLite finds damage in the store."""
        try:
            refuse_damaged(self._db, self.path)
        except sqlite3.Error as e:
            raise failed(self.path, e) from None

    def empty_wal(self) -> None:
        """Move all changes into the file itself, so that nothing erased stays in another file. Raises HostError, DataError."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as e:
            raise failed(self.path, e) from None

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise failed(self.path, e) from None

    def _each(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows one by one, because all of them may be too many for memory."""
        try:
            yield from self._db.execute(statement, values)
        except sqlite3.Error as e:
            raise failed(self.path, e) from None
