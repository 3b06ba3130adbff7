"""Keeps the runs of jobs and their usage records in one SQLite file on the controller. Only one process writes it at a time.

A process that is killed at any moment leaves the file as it was before or after a whole transaction (WAL, synchronous=FULL).
Only the account that collects may read the file, because it says who used what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from fairlead.controller.sqlite_store import SqliteStore, StoreShape
from fairlead.errors import DataError
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_merge import SetAside
from fairlead.jobs.usage_record import BadRecord, UsageRecord, decoded, encoded
from fairlead.model.nodelist import expand, fold

FILE = "jobs.sqlite"
SCHEMA = 2
TABLES = ("run", "record", "kept")
DAY_SECONDS = 86400
ASIDE_MAX = 10_000
_TABLES = """
CREATE TABLE IF NOT EXISTS run (job INTEGER, begin_unix INTEGER, label TEXT, uid INTEGER, user TEXT, account TEXT, partition TEXT,
  state TEXT, nodes TEXT, end_unix INTEGER, gpus INTEGER, cpus INTEGER, limit_seconds INTEGER,
  tries INTEGER NOT NULL DEFAULT 0, due_unix INTEGER, comment TEXT NOT NULL DEFAULT '', comment_due INTEGER NOT NULL DEFAULT 0,
  qos TEXT NOT NULL DEFAULT '', kind TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, begin_unix)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS run_label ON run (label);
CREATE INDEX IF NOT EXISTS run_user ON run (uid, end_unix);
CREATE INDEX IF NOT EXISTS run_end ON run (end_unix);
CREATE INDEX IF NOT EXISTS run_due ON run (due_unix) WHERE due_unix IS NOT NULL;
CREATE INDEX IF NOT EXISTS run_comment ON run (end_unix) WHERE comment_due = 1;
CREATE TABLE IF NOT EXISTS record (job INTEGER, begin_unix INTEGER, node TEXT, data BLOB, PRIMARY KEY (job, begin_unix, node))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aside (job INTEGER, begin_unix INTEGER, node TEXT, why TEXT, PRIMARY KEY (job, begin_unix, node, why))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
#: What an earlier schema lacks, by its number.
_ADDED = {
    1: "ALTER TABLE run ADD COLUMN qos TEXT NOT NULL DEFAULT '';ALTER TABLE run ADD COLUMN kind TEXT NOT NULL DEFAULT '';",
}
_RUN = "job, label, user, account, partition, state, nodes, begin_unix, end_unix, uid, gpus, cpus, limit_seconds, qos, kind"
#: Says that somebody else wrote the job's AdminComment: it is never touched.
FOREIGN = "foreign"


class StoredRun(Struct, frozen=True, kw_only=True):
    """Holds a run and what was done about it. tries: how often its nodes were asked. comment: the digest of the text that was
    last written to AdminComment, ``FOREIGN``, or "" for none."""

    run: JobRun
    tries: int = 0
    comment: str = ""


SHAPE = StoreShape(file=FILE, what="store", schema=SCHEMA, tables=TABLES, sql=_TABLES, added=_ADDED)


class JobStore(SqliteStore):
    """Opens the store of jobs in a folder (see SqliteStore)."""

    shape = SHAPE

    # -- runs --------------------------------------------------------------------------------------

    def add_runs(self, runs: Iterable[JobRun], due_unix: int) -> int:
        """Add runs that have ended, or renew what Slurm says of them. Return how many have changed. Runs of an erased user are
        left out."""
        erased = self.erased()
        new = 0
        with self.changes() as db:
            for run in runs:
                if run.end_unix is None or (run.uid is not None and run.end_unix <= erased.get(run.uid, -1)):
                    continue
                values = (
                    *(run.job, run.begin_unix, run.label, run.uid, run.user, run.account, run.partition, run.state),
                    *(fold(run.nodes), run.end_unix, run.gpus, run.cpus, run.limit_seconds, run.qos, run.kind, due_unix),
                )
                names = "job, begin_unix, label, uid, user, account, partition, state, nodes, end_unix, gpus, cpus, limit_seconds"
                found = db.execute(
                    f"INSERT INTO run ({names}, qos, kind, due_unix) VALUES ({', '.join('?' * 16)}) "  # noqa: S608
                    "ON CONFLICT (job, begin_unix) DO UPDATE SET state = excluded.state, end_unix = excluded.end_unix, "
                    "label = excluded.label "
                    "WHERE (state, end_unix, label) != (excluded.state, excluded.end_unix, excluded.label) "
                    "RETURNING tries",
                    values,
                ).fetchone()
                new += found is not None
        return new

    def has(self, run: JobRun) -> bool:
        return bool(self._rows("SELECT 1 FROM run WHERE job = ? AND begin_unix = ?", (run.job, run.begin_unix)))

    def due_runs(self, now: float, most: int) -> list[StoredRun]:
        """Return the runs whose nodes are to be asked now, the oldest first. A time that is further ahead than any wait is of a
        clock that was ahead of the present one, and counts as past."""
        due = "(due_unix <= ? OR due_unix > ?)"
        return self._runs(f"{due} ORDER BY due_unix, end_unix LIMIT ?", (int(now), int(now) + DAY_SECONDS, most))

    def runs_to_comment(self, most: int) -> list[StoredRun]:
        return self._runs("comment_due = 1 ORDER BY end_unix LIMIT ?", (most,))

    def runs_of(self, label: str) -> list[StoredRun]:
        """Return the runs of a job, the newest first. ``label``: its raw id, or its id in an array."""
        number = int(label) if label.isascii() and label.isdigit() and len(label) <= 10 else -1
        return self._runs("(label = ? OR job = ?) ORDER BY begin_unix DESC", (label, number))

    def runs_between(self, begin_unix: float, end_unix: float) -> list[JobRun]:
        """Return the runs of which a part lies in a time, the oldest end first."""
        found = self._runs("end_unix > ? AND begin_unix < ? ORDER BY end_unix", (begin_unix, end_unix))
        return [each.run for each in found]

    def each_run(self, begin_unix: float, end_unix: float) -> Iterator[JobRun]:
        """Yield the runs of which a part lies in a time, in no order. Half a year of runs needs no more memory than they do."""
        names = _RUN.split(", ")
        for cells in self._each(f"SELECT {_RUN} FROM run WHERE end_unix > ? AND begin_unix < ?", (begin_unix, end_unix)):  # noqa: S608
            fields: dict[str, Any] = dict(zip(names, cells, strict=True))
            yield JobRun(**{**fields, "nodes": _expanded(str(fields["nodes"]))})

    def first_end(self) -> int | None:
        """Return when the run ended that ended first, or None if there is no run."""
        value = self._rows("SELECT min(end_unix) FROM run")[0][0]
        return None if value is None else int(value)

    def first_begin(self) -> int | None:
        """Return when the run began that began first, or None if there is no run."""
        value = self._rows("SELECT min(begin_unix) FROM run")[0][0]
        return None if value is None else int(value)

    def last_end(self) -> int | None:
        """Return when the run ended that ended last, or None if there is no run."""
        value = self._rows("SELECT max(end_unix) FROM run")[0][0]
        return None if value is None else int(value)

    def runs_of_array(self, array: int) -> list[StoredRun]:
        return self._runs("label LIKE ? ORDER BY job, begin_unix", (f"{array}\\_%",), escape=True)

    def runs_of_user(self, uid: int, most: int) -> list[StoredRun]:
        """Return the runs of a user, the one that ended last first."""
        return self._runs("uid = ? ORDER BY end_unix DESC LIMIT ?", (uid, most))

    def runs_since(self, begin_unix: float) -> list[StoredRun]:
        """Return the runs that ended since a time, the oldest first."""
        return self._runs("end_unix >= ? ORDER BY end_unix", (int(begin_unix),))

    def _runs(self, condition: str, values: Sequence[object], *, escape: bool = False) -> list[StoredRun]:
        if escape:
            condition = condition.replace("LIKE ?", "LIKE ? ESCAPE '\\'")
        found = []
        for *cells, tries, comment in self._rows(f"SELECT {_RUN}, tries, comment FROM run WHERE {condition}", values):  # noqa: S608
            fields: dict[str, Any] = dict(zip(_RUN.split(", "), cells, strict=True))
            fields["nodes"] = _expanded(str(fields["nodes"]))
            found.append(StoredRun(run=JobRun(**fields), tries=tries, comment=comment))
        return found

    def asked(self, run: JobRun, due_unix: int | None, *, comment_due: bool) -> None:
        """Note that the nodes of a run were asked. due_unix: when to ask again, or None for never."""
        with self.changes() as db:
            db.execute(
                "UPDATE run SET tries = tries + 1, due_unix = ?, "
                "comment_due = CASE WHEN comment = ? THEN 0 WHEN ? THEN 1 ELSE comment_due END WHERE job = ? AND begin_unix = ?",
                (due_unix, FOREIGN, comment_due, run.job, run.begin_unix),
            )

    def commented(self, run: JobRun, comment: str | None) -> None:
        """Note that a comment was dealt with. comment: the digest of the text that is there now, ``FOREIGN``, or None to leave
        what is noted."""
        with self.changes() as db:
            db.execute(
                "UPDATE run SET comment_due = 0, comment = coalesce(?, comment) WHERE job = ? AND begin_unix = ?",
                (comment, run.job, run.begin_unix),
            )

    # -- records -----------------------------------------------------------------------------------

    def records(self, run: JobRun) -> tuple[UsageRecord, ...]:
        """Return the records of a run. Raises DataError for a record that is damaged."""
        rows = self._rows("SELECT data FROM record WHERE job = ? AND begin_unix = ?", (run.job, run.begin_unix))
        try:
            return tuple(decoded(data) for (data,) in rows if isinstance(data, bytes))
        except BadRecord as e:
            raise self._damaged(run.job, e) from None

    def _damaged(self, job: int, error: BadRecord) -> DataError:
        return DataError(f"{self.path}: a record of job {job} {error}", hint="restore a copy (fairlead collect --restore)")

    def records_with(self, text: bytes) -> Iterator[tuple[tuple[int, int], UsageRecord | None]]:
        """Yield the key of the run of each record, with the record if its JSON has a text. Raises DataError for a damaged one."""
        for job, begin, data in self._each("SELECT job, begin_unix, CASE WHEN instr(data, ?) THEN data END FROM record", (text,)):
            try:
                yield (job, begin), None if data is None else decoded(data)
            except BadRecord as e:
                raise self._damaged(job, e) from None

    def put_records(self, run: JobRun, records: Iterable[UsageRecord], aside: Iterable[SetAside]) -> None:
        with self.changes() as db:
            for record in records:
                values = (run.job, run.begin_unix, record.node, encoded(record))
                db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?)", values)
            for each in aside:
                db.execute("INSERT OR IGNORE INTO aside VALUES (?, ?, ?, ?)", (run.job, run.begin_unix, each.node, each.why))

    def set_aside(self, run: JobRun) -> list[SetAside]:
        """Return which records of a run were not merged, and why."""
        rows = self._rows("SELECT node, why FROM aside WHERE job = ? AND begin_unix = ?", (run.job, run.begin_unix))
        return [SetAside(job=run.job, node=str(node), why=str(why)) for node, why in rows]

    # -- the rest ----------------------------------------------------------------------------------

    def kept(self, key: str) -> str:
        rows = self._rows("SELECT value FROM kept WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else ""

    def keep(self, key: str, value: str) -> None:
        with self.changes() as db:
            db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (key, value))

    def prune(self, before_unix: int) -> int:
        """Remove the runs that ended before a time, with their records. Return how many."""
        return self._remove("end_unix < ?", (before_unix,))

    def known_of(self, uid: int, until_unix: float) -> tuple[frozenset[str], frozenset[int]]:
        """Return the names and the job numbers of a user, of the runs that ended until a time."""
        rows = self._rows("SELECT job, user FROM run WHERE uid = ? AND end_unix <= ?", (uid, int(until_unix)))
        return frozenset(str(name) for _, name in rows if name), frozenset(int(job) for job, _ in rows)

    def erased(self) -> dict[int, int]:
        """Return when each erased user was erased, by the number of the user."""
        return {int(key[7:]): int(at) for key, at in self._rows("SELECT key, value FROM kept WHERE key LIKE 'erased %'")}

    def erase_user(self, uid: int, now: float) -> int:
        """Remove the runs of a user that ended until now. They are not taken up again. Return how many runs."""
        self.keep(f"erased {uid}", str(int(now)))
        count = self._remove("uid = ? AND end_unix <= ?", (uid, int(now)))
        self.empty_wal()
        return count

    def _remove(self, condition: str, values: Sequence[object]) -> int:
        with self.changes() as db:
            for table in ("record", "aside"):
                db.execute(
                    f"DELETE FROM {table} WHERE (job, begin_unix) IN (SELECT job, begin_unix FROM run WHERE {condition})",  # noqa: S608
                    values,
                )
            return db.execute(f"DELETE FROM run WHERE {condition}", values).rowcount  # noqa: S608

    def counts(self) -> dict[str, int]:
        """Return how many runs, records and runs with missing records there are."""
        names = {"runs": "run", "records": "record", "set_aside": "aside", "waiting": "run WHERE due_unix IS NOT NULL"}
        return {name: int(self._rows(f"SELECT count(*) FROM {table}")[0][0]) for name, table in names.items()}  # noqa: S608


@lru_cache(maxsize=16384)
def _expanded(nodelist: str) -> tuple[str, ...]:
    return tuple(expand(nodelist))
