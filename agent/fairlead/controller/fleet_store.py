"""Keeps the history of the fleet in one SQLite file on the controller: service records, and Slurm's node events.

There is one row for each machine and NodeName, which is merged with each new record: to merge a record twice changes nothing.
Only one process writes the file at a time. A process that is killed leaves it as it was before or after a whole transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fairlead.controller.sqlite_store import SqliteStore, StoreShape
from fairlead.errors import DataError
from fairlead.fleet.erased_user import ErasedUser, event_without_users, without_users
from fairlead.fleet.node_events import NodeOut
from fairlead.fleet.service_merge import merged, since
from fairlead.fleet.service_record import DAY_SECONDS, KEEP_DAYS, ServiceRecord
from fairlead.model.json_text import NOT_JSON

FILE = "fleet.sqlite"
SCHEMA = 1
TABLES = ("service", "event", "kept")
ERASED = "erased"  # the key of what nodes may send again of erased users
_TABLES = """
CREATE TABLE IF NOT EXISTS service (machine TEXT, node TEXT, data BLOB NOT NULL, PRIMARY KEY (machine, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event (node TEXT, begin_unix REAL, data BLOB NOT NULL, PRIMARY KEY (node, begin_unix)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_RECORD = msgspec.msgpack.Decoder(ServiceRecord)
_EVENT = msgspec.msgpack.Decoder(NodeOut)


SHAPE = StoreShape(file=FILE, what="history of the fleet", schema=SCHEMA, tables=TABLES, sql=_TABLES)


class FleetStore(SqliteStore):
    """Opens the history of the fleet in a folder (see SqliteStore)."""

    shape = SHAPE

    # -- service records ---------------------------------------------------------------------------

    def add(self, records: Iterable[ServiceRecord], before_unix: float) -> int:
        """Merge records into the store. Forget what ended before a time. Return how many rows have changed."""
        changed = 0
        erased = self.erased()
        with self.changes() as db:
            for record in (without_users(each, erased) for each in records):
                key = (record.machine, record.node)
                rows = db.execute("SELECT data FROM service WHERE machine = ? AND node = ?", key).fetchall()
                old = self._decoded(_RECORD, rows[0][0], record.node) if rows else None
                new = since(record if old is None else merged(old, record), before_unix)
                if new != old:
                    db.execute("INSERT OR REPLACE INTO service VALUES (?, ?, ?)", (*key, msgspec.msgpack.encode(new)))
                    changed += 1
        return changed

    def records(self) -> Iterator[ServiceRecord]:
        """Yield the merged record of each machine and NodeName."""
        for node, data in self._each("SELECT node, data FROM service ORDER BY node, machine"):
            yield self._decoded(_RECORD, data, node)

    def raw_records(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield machine, NodeName and encoded record of each row. A reader finds out without decoding what has changed."""
        yield from self._each("SELECT machine, node, data FROM service ORDER BY machine, node")

    def records_of(self, machine: str, node: str) -> list[ServiceRecord]:
        """Return all records of a machine. Without a machine's id, only that of this NodeName."""
        where, values = ("machine = ? AND node = ?", (machine, node)) if not machine else ("machine = ?", (machine,))
        rows = self._each(f"SELECT node, data FROM service WHERE {where}", values)  # noqa: S608
        return [self._decoded(_RECORD, data, name) for name, data in rows]

    def written(self) -> dict[str, float]:
        """Return when the newest record of each NodeName was written."""
        found: dict[str, float] = {}
        for record in self.records():
            found[record.node] = max(found.get(record.node, 0.0), record.written_unix)
        return found

    def _decoded(self, decoder: msgspec.msgpack.Decoder[Any], data: bytes, node: str) -> Any:
        try:
            return decoder.decode(data)
        except (*NOT_JSON, TypeError) as e:
            hint = "restore a copy (fairlead collect --restore), or move the file away"
            raise DataError(f"{self.path}: the history of {node} is damaged: {e}", hint=hint) from None

    # -- events ------------------------------------------------------------------------------------

    def add_events(self, events: Iterable[NodeOut], before_unix: float) -> None:
        """Add or renew Slurm's events. Forget those that ended before a time."""
        erased = self.erased()
        with self.changes() as db:
            for event in (event_without_users(each, erased) for each in events):
                row = (event.node, event.begin_unix, msgspec.msgpack.encode(event))
                db.execute("INSERT OR REPLACE INTO event VALUES (?, ?, ?)", row)
            db.execute("DELETE FROM event WHERE begin_unix < ?", (before_unix,))

    def events(self) -> tuple[NodeOut, ...]:
        rows = self._each("SELECT node, data FROM event ORDER BY begin_unix, node")
        return tuple(self._decoded(_EVENT, data, node) for node, data in rows)

    # -- users and copies --------------------------------------------------------------------------

    def erased(self) -> tuple[ErasedUser, ...]:
        """Return the erased users of whom nodes may send something again."""
        return tuple(msgspec.convert(each, ErasedUser) for each in self.kept(ERASED) or ())

    def erase_user(self, names: Iterable[str], jobs: Iterable[int], now: float) -> int:
        """Remove a user's names and job numbers. Nodes send their history again for ``KEEP_DAYS`` days: so long the names and
        numbers are kept here, so that they are not taken up again. Return how many rows have changed."""
        user = ErasedUser(names=tuple(sorted(names)), jobs=tuple(sorted(jobs)), until_unix=now + (KEEP_DAYS + 1) * DAY_SECONDS)
        changed = 0
        with self.changes() as db:
            for machine, node, data in db.execute("SELECT machine, node, data FROM service").fetchall():
                new = msgspec.msgpack.encode(without_users(self._decoded(_RECORD, data, node), (user,)))
                if new != data:
                    db.execute("UPDATE service SET data = ? WHERE machine = ? AND node = ?", (new, machine, node))
                    changed += 1
            for node, begin, data in db.execute("SELECT node, begin_unix, data FROM event").fetchall():
                new = msgspec.msgpack.encode(event_without_users(self._decoded(_EVENT, data, node), (user,)))
                if new != data:
                    db.execute("UPDATE event SET data = ? WHERE node = ? AND begin_unix = ?", (new, node, begin))
                    changed += 1
            left = [each for each in self.erased() if each.until_unix > now]
            kept = msgspec.msgpack.encode([*left, *([user] if user.names or user.jobs else [])])
            db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (ERASED, kept))
            db.execute("DELETE FROM kept WHERE key = 'states'")  # reasons in Slurm, which the next round reads again
        self.empty_wal()
        return changed

    def forget_erased(self, now: float) -> None:
        """Forget the names and numbers of erased users that no node can send again."""
        known = self.erased()
        left = [each for each in known if each.until_unix > now]
        if len(left) < len(known):
            self.keep({ERASED: left})

    # -- the rest ----------------------------------------------------------------------------------

    def kept(self, key: str) -> Any:
        """Return what ``keep`` has saved under a key, or None."""
        for (data,) in self._each("SELECT value FROM kept WHERE key = ?", (key,)):
            return msgspec.msgpack.decode(data)
        return None

    def keep(self, values: Mapping[str, object]) -> None:
        with self.changes() as db:
            rows = [(key, msgspec.msgpack.encode(value)) for key, value in values.items()]
            db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
