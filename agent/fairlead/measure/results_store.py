"""Stores results in SQLite: the runs, the nodes with their tools' outputs, versions and serials, and the figures with their
judgements.

A node's results are written when its job has ended, so that they are not lost if the run is killed. If a node's figures are not
judged yet, its row says so. decisions/0019 describes the tables, and when they may change.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import DataError, HostError, InputMissing, UsageError
from fairlead.measure.job_output import ReportedGpu
from fairlead.measure.judge_figure import Judgement
from fairlead.measure.tool import FIGURE_MAX, FIGURE_MIN, Figure

SCHEMA = 1
RAW_MAX = 16 << 20  # bytes of one tool's output that are kept
SIBLING_DAYS = 90
KEEP_DAYS = 1100  # the results of a run are kept for three years: a warranty lasts as long
#: A run is forgotten when so many runs have begun more than KEEP_DAYS after its end: a clock that was wrong once forgets none.
KEEP_RUNS = 12
BUSY_SECONDS = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS run (run TEXT PRIMARY KEY, began REAL NOT NULL, ended REAL, user TEXT NOT NULL, host TEXT NOT NULL,
  pid INTEGER NOT NULL, folder TEXT NOT NULL, plan BLOB NOT NULL, fairlead TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node (run TEXT NOT NULL, node TEXT NOT NULL, job INTEGER, class TEXT NOT NULL, kind TEXT NOT NULL,
  outcome TEXT NOT NULL, why TEXT NOT NULL, at REAL NOT NULL, driver TEXT NOT NULL, PRIMARY KEY (run, node)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu (run TEXT NOT NULL, node TEXT NOT NULL, number INTEGER NOT NULL, uuid TEXT NOT NULL,
  serial TEXT NOT NULL, pci TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (run, node, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS result (run TEXT NOT NULL, node TEXT NOT NULL, tool TEXT NOT NULL, command TEXT NOT NULL,
  outcome TEXT NOT NULL, why TEXT NOT NULL, notes TEXT NOT NULL, seconds INTEGER NOT NULL, versions TEXT NOT NULL,
  out BLOB NOT NULL, err BLOB NOT NULL, PRIMARY KEY (run, node, tool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS figure (run TEXT NOT NULL, node TEXT NOT NULL, tool TEXT NOT NULL, name TEXT NOT NULL,
  bytes INTEGER NOT NULL, device TEXT NOT NULL, value REAL NOT NULL, unit TEXT NOT NULL, outcome TEXT, why TEXT, median REAL,
  mad REAL, nodes INTEGER, reference REAL, notes TEXT, PRIMARY KEY (run, node, tool, name, bytes, device)) WITHOUT ROWID;
"""

Kind = tuple[str, int, str]  #: name, bytes and unit of a figure; only equal kinds are compared


class StoredResult(Struct, frozen=True, kw_only=True):
    """Holds the result of one tool on one node. ``outcome``: the outcome by the tool's output alone. The figures are judged
    separately."""

    tool: str
    command: str
    outcome: str
    why: str = ""
    notes: tuple[str, ...] = ()
    seconds: int = 0
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    out: str = ""
    err: str = ""


def default_path() -> str:
    """Return the default path of the file: for root below /var/lib/fairlead, for another user below the user's state folder (XDG
    Base Directory Specification)."""
    if os.geteuid() == 0:
        return "/var/lib/fairlead/accept.sqlite"
    return os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "fairlead/accept.sqlite")


class ResultStore:
    """Reads and writes the file at ``path``. Every method may raise HostError with a message of one line. A write is done
    completely or not at all."""

    def __init__(self, path: str, *, make: bool = True) -> None:
        """Open the file. Raises InputMissing if it does not exist and ``make`` is false, and DataError for another schema."""
        self.path = path
        if not make and not os.path.isfile(path):
            raise InputMissing(
                f"{path}: no results yet", hint="fairlead accept NODELIST measures nodes; --store names another file"
            )
        with self._errors():
            if make:
                os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
                # only the owner may read the file, because outputs name users and paths
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise DataError(f"{path}: written by another version of fairlead (schema {version})", hint="give another --store")
            if version == 0:
                self._db.executescript(f"BEGIN;\n{_TABLES}\nPRAGMA user_version = {SCHEMA};\nCOMMIT;")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as e:
            said = getattr(e, "strerror", None) or str(e)
            hint = "make room or give another --store; what was written before is whole"
            if "locked" in said:
                hint = f"another program has locked it: fuser {self.path} names it; what was written before is whole"
            raise HostError(f"{self.path}: {said}", hint=hint) from None

    def write(self, *statements: tuple[str, Sequence[Sequence[object]]]) -> None:
        """Execute all of the statements, or none."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def read(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._db.execute(statement, values).fetchall()

    # -- writing ----------------------------------------------------------------------------------

    def begin(self, run: str, *, user: str, host: str, folder: str, plan: bytes, fairlead: str) -> None:
        row = (run, time.time(), user, host, os.getpid(), folder, plan, fairlead)
        late = self.read("SELECT began FROM run ORDER BY began DESC LIMIT 1 OFFSET ?", (KEEP_RUNS - 1,))
        old = [(began - KEEP_DAYS * 86400,) for (began,) in late]
        gone = "SELECT run FROM run WHERE ended < ?"
        tables = ("figure", "result", "gpu", "node")
        self.write(*((f"DELETE FROM {table} WHERE run IN ({gone})", old) for table in tables))  # noqa: S608
        self.write(("DELETE FROM run WHERE ended < ?", old))
        self.write(("INSERT INTO run (run, began, user, host, pid, folder, plan, fairlead) VALUES (?,?,?,?,?,?,?,?)", [row]))

    def taken_over(self, run: str, pid: int, host: str) -> None:
        """Record that this process continues the run of another process, which is gone. Raises UsageError if meanwhile a third
        process has done so."""
        own = (os.getpid(), os.uname().nodename)
        self.write(("UPDATE run SET pid = ?, host = ? WHERE run = ? AND pid = ? AND host = ?", [(*own, run, pid, host)]))
        refuse_other(run, own, self.read("SELECT pid, host FROM run WHERE run = ?", (run,))[0])

    def submitted(self, run: str, node: str, class_name: str, job: int | None) -> None:
        row = (run, node, job, class_name, "", "unknown", "not measured", time.time(), "")
        self.write(("INSERT OR REPLACE INTO node VALUES (?,?,?,?,?,?,?,?,?)", [row]))

    def measured(
        self,
        run: str,
        node: str,
        outcome: str,
        why: str,
        *,
        kind: str,
        driver: str,
        gpus: Sequence[ReportedGpu],
        results: Sequence[StoredResult],
    ) -> None:
        """Write the results of a node's job, before they are judged. kind: the model and number of the node's GPUs."""
        data = [
            (
                *(run, node, r.tool, r.command, r.outcome, r.why, _packed(r.notes), r.seconds, _packed(r.versions)),
                *(zlib.compress(text.encode("utf-8", "replace")[:RAW_MAX]) for text in (r.out, r.err)),
            )
            for r in results
        ]
        figures = [(run, node, r.tool, f.name, f.bytes, f.device, f.value, f.unit) for r in results for f in r.figures]
        self.write(
            (
                "UPDATE node SET outcome = ?, why = ?, at = ?, kind = ?, driver = ? WHERE run = ? AND node = ?",
                [(outcome, why, time.time(), kind, driver, run, node)],
            ),
            (
                "INSERT OR REPLACE INTO gpu VALUES (?,?,?,?,?,?,?)",
                [(run, node, g.index, g.uuid, g.serial, g.pci, g.name) for g in gpus],
            ),
            ("INSERT OR REPLACE INTO result VALUES (?,?,?,?,?,?,?,?,?,?,?)", data),
            (
                "INSERT OR REPLACE INTO figure (run, node, tool, name, bytes, device, value, unit) VALUES (?,?,?,?,?,?,?,?)",
                figures,
            ),
        )

    def judged(self, run: str, node: str, outcome: str, why: str, judgements: Mapping[tuple[str, Figure], Judgement]) -> None:
        """Write the judgements of a node's figures, and the node's outcome."""
        rows = [
            (
                j.outcome,
                j.why,
                j.median,
                j.mad,
                j.nodes,
                j.reference,
                _packed(j.notes),
                run,
                node,
                tool,
                f.name,
                f.bytes,
                f.device,
            )
            for (tool, f), j in judgements.items()
        ]
        where = "WHERE run = ? AND node = ? AND tool = ? AND name = ? AND bytes = ? AND device = ?"
        self.write(
            (f"UPDATE figure SET outcome=?, why=?, median=?, mad=?, nodes=?, reference=?, notes=? {where}", rows),  # noqa: S608
            ("UPDATE node SET outcome = ?, why = ? WHERE run = ? AND node = ?", [(outcome, why, run, node)]),
        )

    def ended(self, run: str) -> None:
        self.write(("UPDATE run SET ended = ? WHERE run = ?", [(time.time(), run)]))

    # -- reading ----------------------------------------------------------------------------------

    def siblings(
        self, *, without: Sequence[str], class_name: str, kind: str, driver: str, tool: str, command: str
    ) -> dict[Kind, dict[str, list[float]]]:
        """Return the newest figures of a tool by kind and node, of nodes with the same class, GPUs, driver and command. The nodes
        in ``without`` are left out, and so are stored figures that no tool can have measured."""
        rows = self.read(
            "SELECT node, name, bytes, unit, value FROM (SELECT node.node AS node, name, bytes, unit, value,"
            " RANK() OVER (PARTITION BY node.node, name, bytes, unit ORDER BY node.at DESC, node.run DESC) AS age"
            " FROM node CROSS JOIN result USING (run, node) CROSS JOIN figure USING (run, node, tool)"
            " WHERE class = ? AND kind = ? AND driver = ? AND tool = ? AND command = ? AND node.at > ?"
            " AND result.outcome IN ('pass', 'warn')) WHERE age = 1 AND value >= ? AND value < ?",
            (class_name, kind, driver, tool, command, time.time() - SIBLING_DAYS * 86400, FIGURE_MIN, FIGURE_MAX),
        )
        found: dict[Kind, dict[str, list[float]]] = {}
        left_out = set(without)
        for node, name, size, unit, value in rows:
            if node not in left_out:
                found.setdefault((name, size, unit), {}).setdefault(node, []).append(value)
        return found

    def raw(self, run: str, node: str, tool: str) -> tuple[str, str]:
        """Return standard output and standard error of a tool. Raises InputMissing, DataError."""
        rows = self.read("SELECT out, err FROM result WHERE run = ? AND node = ? AND tool = ?", (run, node, tool))
        if not rows:
            raise InputMissing(f"run {run} has no output of {tool} on {node}")
        try:
            out, err = (zlib.decompress(blob).decode("utf-8", "replace") for blob in rows[0])
        except zlib.error as e:
            raise DataError(f"{self.path}: the output of {tool} on {node} in run {run} is damaged: {e}") from None
        return out, err


def refuse_other(run: str, own: tuple[int, str], recorded: tuple[Any, ...]) -> None:
    """Raise UsageError unless the recorded process of the run is this one. own, recorded: process and host."""
    if recorded != own:
        raise UsageError(f"run {run}: another process goes on with it (process {recorded[0]} on {recorded[1]})")


def _packed(data: object) -> str:
    return msgspec.json.encode(data).decode()
