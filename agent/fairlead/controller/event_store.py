"""Keeps the queue of events in one SQLite file: each event once, by its id, and for each channel whether it was delivered.

The file is separate from the history of the fleet. One process writes it at a time. Each step is one transaction on the disk, so
a process that is killed has either done a step or not. An event that is known is never put into the queue again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.controller.sqlite_store import SqliteStore, StoreShape
from fairlead.errors import DataError
from fairlead.fleet.erased_user import ErasedUser, fleet_event_without_user, text_without_user
from fairlead.fleet.fleet_events import FleetEvent
from fairlead.model.json_text import NOT_JSON

FILE = "events.sqlite"
SCHEMA = 1
TABLES = ("event", "delivery", "source", "kept")
EVENTS_MAX = 200_000  # the oldest go first, but never one that the history of the fleet still has
NODE_EVENTS_MAX = 50  # of one node in a day: a node whose root is hostile could send thousands
DAY_SECONDS = 86400.0
WAITING, DELIVERED, GIVEN_UP, LEFT_OUT = "waiting", "delivered", "given up", "left out"
_TABLES = """
CREATE TABLE IF NOT EXISTS event (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, node TEXT, found_unix REAL,
                                  data BLOB);
CREATE INDEX IF NOT EXISTS of_node ON event (node, found_unix) WHERE data != x'';
CREATE TABLE IF NOT EXISTS delivery (seq INTEGER, channel TEXT, state TEXT NOT NULL, tries INTEGER NOT NULL, next_unix REAL,
                                     said TEXT NOT NULL, PRIMARY KEY (seq, channel)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting ON delivery (channel, next_unix) WHERE state = 'waiting';
CREATE TABLE IF NOT EXISTS source (machine TEXT, node TEXT, digest BLOB, written_unix REAL,
                                   PRIMARY KEY (machine, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
_EVENT = msgspec.msgpack.Decoder(FleetEvent)


def event_id(event: FleetEvent) -> str:
    """Return the id of an event: the same for the same node, kind, time or token, and cause."""
    return hashlib.sha256(event.key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Queued(Struct, frozen=True, kw_only=True):
    """Holds one delivery of an event by one channel. next_unix: not tried before this time. said: the last answer."""

    seq: int
    id: str
    event: FleetEvent
    found_unix: float
    channel: str = ""
    state: str = ""
    tries: int = 0
    next_unix: float = 0.0
    said: str = ""


def _today(db: sqlite3.Connection, node: str, now: float) -> int:
    """Return how many events of a node were found in the last day."""
    wanted = "SELECT count(*) FROM event WHERE node = ? AND data != x'' AND found_unix BETWEEN ? AND ?"
    count: int = db.execute(wanted, (node, now - DAY_SECONDS, now)).fetchone()[0]
    return count


class SourceSeen(Struct, frozen=True):
    digest: bytes
    written_unix: float


SHAPE = StoreShape(
    file=FILE,
    what="queue of events",
    schema=SCHEMA,
    tables=TABLES,
    sql=_TABLES,
    command="fairlead events deliver",
    option="--state",
)


class EventStore(SqliteStore):
    """Opens the queue of events in a folder (see SqliteStore)."""

    shape = SHAPE

    # -- what is found -----------------------------------------------------------------------------

    def add(
        self,
        events: Iterable[tuple[FleetEvent, bool]],
        sources: Mapping[tuple[str, str], SourceSeen],
        found_unix: float,
        channels: Mapping[str, Sequence[str]],
        kept: Mapping[str, object] = {},
    ) -> tuple[int, dict[str, int]]:
        """Put the events into the queue that are not known. Each is an event, and whether it is delivered or only remembered.
        ``channels``: by kind, those that get it. Return how many are new, and by node how many of this day are left out,
        because one node had too many."""
        new = 0
        of_node: dict[str, int] = {}
        with self.changes() as db:
            for event, wanted in events:
                values = (event_id(event), event.node, found_unix, msgspec.msgpack.encode(event) if wanted else b"")
                row = db.execute("INSERT OR IGNORE INTO event (id, node, found_unix, data) VALUES (?, ?, ?, ?)", values)
                if row.rowcount < 1 or not wanted:
                    continue
                if event.node not in of_node:
                    of_node[event.node] = _today(db, event.node, found_unix) - 1
                of_node[event.node] += 1
                new += 1
                state = WAITING if of_node[event.node] <= NODE_EVENTS_MAX else LEFT_OUT
                rows = [(row.lastrowid, channel, state, 0, 0.0, "") for channel in channels.get(event.kind, ())]
                db.executemany("INSERT INTO delivery VALUES (?, ?, ?, ?, ?, ?)", rows)
            seen = [(*key, each.digest, each.written_unix) for key, each in sources.items()]
            db.executemany("INSERT OR REPLACE INTO source VALUES (?, ?, ?, ?)", seen)
            db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", [(k, msgspec.msgpack.encode(v)) for k, v in kept.items()])
        return new, {node: count - NODE_EVENTS_MAX for node, count in of_node.items() if count > NODE_EVENTS_MAX}

    def sources(self) -> dict[tuple[str, str], SourceSeen]:
        rows = self._rows("SELECT machine, node, digest, written_unix FROM source")
        return {(machine, node): SourceSeen(digest, written) for machine, node, digest, written in rows}

    def prune(self, still_there: Callable[[], Iterable[FleetEvent]], most: int = EVENTS_MAX) -> int:
        """Forget the oldest events beyond the limit that wait for nothing. ``still_there``: returns the events that the history
        still has. They stay, because they would be found again. Return how many were forgotten."""
        over = self._rows("SELECT count(*) FROM event")[0][0] - most
        if over <= 0:
            return 0
        stay = {event_id(event) for event in still_there()}
        waiting = {seq for (seq,) in self._rows("SELECT seq FROM delivery WHERE state = ?", (WAITING,))}
        rows = self._rows("SELECT seq, id FROM event ORDER BY seq")
        gone = [(seq,) for seq, identity in rows if identity not in stay and seq not in waiting][:over]
        with self.changes() as db:
            db.executemany("DELETE FROM delivery WHERE seq = ?", gone)
            db.executemany("DELETE FROM event WHERE seq = ?", gone)
        return len(gone)

    def erase_user(self, names: Iterable[str], jobs: Iterable[int], now: float) -> int:
        """Remove a user's names and job numbers from the events, and from what receivers have answered. The ids stay, so nothing
        is sent again. Return how many events have changed."""
        user = ErasedUser(names=tuple(sorted(names)), jobs=tuple(sorted(jobs)), until_unix=now)
        changed = 0
        with self.changes() as db:
            for each in self._queued("WHERE data != x''", ()):
                new, said = fleet_event_without_user(each.event, user), text_without_user(each.said, user)
                if new != each.event:
                    db.execute("UPDATE event SET data = ? WHERE seq = ?", (msgspec.msgpack.encode(new), each.seq))
                if said != each.said:
                    db.execute("UPDATE delivery SET said = ? WHERE seq = ? AND channel = ?", (said, each.seq, each.channel))
                changed += (new, said) != (each.event, each.said)
        self.empty_wal()
        return changed

    # -- what is delivered -------------------------------------------------------------------------

    def due(self, channel: str, now: float, ahead_max: float, most: int) -> list[Queued]:
        """Return the deliveries of a channel that are due, the oldest event first. A time that lies further ahead than
        ``ahead_max`` comes from a clock that was wrong, and is due."""
        where = "WHERE channel = ? AND state = 'waiting' AND (next_unix <= ? OR next_unix > ?) ORDER BY seq LIMIT ?"
        return self._queued(where, (channel, now, now + ahead_max, most))

    def listed(self, most: int) -> list[Queued]:
        """Return the newest events with each of their deliveries, the newest first."""
        newest = "WHERE data != x'' AND seq IN (SELECT seq FROM event WHERE data != x'' ORDER BY seq DESC LIMIT ?)"
        return self._queued(f"{newest} ORDER BY seq DESC, channel", (most,))

    def _queued(self, where: str, values: Sequence[object]) -> list[Queued]:
        columns = "seq, id, data, found_unix, channel, state, tries, next_unix, said"
        rows = self._rows(f"SELECT {columns} FROM event LEFT JOIN delivery USING (seq) {where}", values)  # noqa: S608
        found = []
        for seq, identity, data, found_unix, channel, state, tries, next_unix, said in rows:
            try:
                event = _EVENT.decode(data)
            except (*NOT_JSON, TypeError) as e:
                hint = "restore a backup, or move the file away"
                raise DataError(f"{self.path}: the event {identity} is damaged: {e}", hint=hint) from None
            found.append(
                Queued(
                    seq=seq,
                    id=identity,
                    event=event,
                    found_unix=found_unix,
                    channel=channel or "",
                    state=state or "",
                    tries=tries or 0,
                    next_unix=next_unix or 0.0,
                    said=said or "",
                )
            )
        return found

    def counts(self) -> dict[str, int]:
        """Return how many deliveries are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM delivery GROUP BY state ORDER BY state"))

    def tried(self, queued: Queued, state: str, tries: int, next_unix: float, said: str) -> None:
        """Save what became of a delivery."""
        values = (state, tries, next_unix, said, queued.seq, queued.channel)
        with self.changes() as db:
            db.execute("UPDATE delivery SET state = ?, tries = ?, next_unix = ?, said = ? WHERE seq = ? AND channel = ?", values)

    def retry(self, identity: str) -> int:
        """Let the deliveries of an event ("" for all) that were given up or left out wait again. Return how many."""
        where = "state IN (?, ?) AND (? = '' OR seq IN (SELECT seq FROM event WHERE id = ?))"
        with self.changes() as db:
            statement = f"UPDATE delivery SET state = ?, tries = 0, next_unix = 0 WHERE {where}"  # noqa: S608
            return db.execute(statement, (WAITING, GIVEN_UP, LEFT_OUT, identity, identity)).rowcount

    def ids_like(self, begin: str) -> list[str]:
        """Return the ids of the events in the queue that begin so, at most two."""
        wanted = "SELECT id FROM event WHERE substr(id, 1, ?) = ? AND data != x'' LIMIT 2"
        return [identity for (identity,) in self._rows(wanted, (len(begin), begin))]

    def kept(self, key: str) -> Any:
        """Return what ``keep`` has saved under a key, or None."""
        for (data,) in self._rows("SELECT value FROM kept WHERE key = ?", (key,)):
            return msgspec.msgpack.decode(data)
        return None

    def keep(self, values: Mapping[str, object]) -> None:
        with self.changes() as db:
            rows = [(key, msgspec.msgpack.encode(value)) for key, value in values.items()]
            db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
