"""Stores runs over the fabric in the file of ``results_store``: the runs, their pairs, the nodes that went down, and the ports.

A round's pairs are written before the round begins, and its figures when it has ended. So a run that was killed goes on with the
pairs that have no result. docs/decisions/0049 describes the tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from fairlead.errors import DataError, InputMissing
from fairlead.measure.fabric_plan import FabricPlan
from fairlead.measure.pairs.pair_table import PairValue
from fairlead.measure.pairs.port_report import NodePorts
from fairlead.measure.pairs.round_plan import PlannedRound, next_round
from fairlead.measure.results_store import ResultStore, refuse_other
from fairlead.model.json_text import NOT_JSON

_TABLES = (
    "CREATE TABLE IF NOT EXISTS fabric_run (run TEXT PRIMARY KEY, began REAL NOT NULL, ended REAL, user TEXT NOT NULL,"
    " host TEXT NOT NULL, pid INTEGER NOT NULL, job INTEGER, plan BLOB NOT NULL, fairlead TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS pair (run TEXT NOT NULL, round INTEGER NOT NULL, node_a TEXT NOT NULL, node_b TEXT NOT NULL,"
    " rail TEXT NOT NULL, stage TEXT NOT NULL, gbps REAL, failed INTEGER NOT NULL, done INTEGER NOT NULL, why TEXT NOT NULL,"
    " at REAL NOT NULL, PRIMARY KEY (run, round, node_a, node_b, rail)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS gone_node (run TEXT NOT NULL, node TEXT NOT NULL, why TEXT NOT NULL, PRIMARY KEY (run, node))"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS port (run TEXT NOT NULL, node TEXT NOT NULL, after INTEGER NOT NULL, report TEXT NOT NULL,"
    " PRIMARY KEY (run, node, after)) WITHOUT ROWID",
)


LEFT_OUT = "left out: "  # begins the reason of a node of the table gone_node that did not go down, and only starts no job


class FabricRecord(Struct, frozen=True, kw_only=True):
    """Holds a stored run. open_round: the pairs that were planned and have no result yet. gone: the nodes that went down.
    left_out: the nodes on which the job of the run could not start. ports: the reports of the nodes' ports before and after the
    run."""

    plan: FabricPlan
    began: float
    ended: float | None
    user: str
    job: int | None
    values: tuple[PairValue, ...]
    open_round: tuple[PairValue, ...]
    gone: Mapping[str, str]
    left_out: Mapping[str, str]
    ports: tuple[Mapping[str, NodePorts], Mapping[str, NodePorts]]

    @property
    def complete(self) -> bool:
        """Say whether all rounds were measured. A run that was cancelled has ended, and may lack the confirmations."""
        return not self.open_round and next_round(self.plan.pairs, self.values, self.gone, self.left_out) is None


class FabricStore:
    """Reads and writes the tables of runs over the fabric. Every method may raise HostError with a message of one line."""

    def __init__(self, store: ResultStore, *, make: bool = True) -> None:
        """Make the tables if they are missing. A file that has them is only read, so that it may be locked or read-only. With
        ``make`` false, a file without the tables of ``results_store`` is left as it is."""
        self.store = store
        there = {name for (name,) in store.read("SELECT name FROM sqlite_master")}
        if not {"fabric_run", "pair", "gone_node", "port"} <= there and (make or "node" in there):
            store.write(*((statement, [()]) for statement in _TABLES))

    def begin(self, plan: FabricPlan, *, user: str, fairlead: str) -> None:
        row = (plan.run, time.time(), user, os.uname().nodename, os.getpid(), msgspec.json.encode(plan), fairlead)
        statement = "INSERT INTO fabric_run (run, began, user, host, pid, plan, fairlead) VALUES (?,?,?,?,?,?,?)"
        self.store.write((statement, [row]))

    def taken_over(self, run: str, pid: int, host: str) -> None:
        """Record that this process continues the run of another process, which is gone. Raises UsageError if meanwhile a third
        process has done so."""
        own = (os.getpid(), os.uname().nodename)
        statement = "UPDATE fabric_run SET pid = ?, host = ?, ended = NULL WHERE run = ? AND pid = ? AND host = ?"
        self.store.write((statement, [(*own, run, pid, host)]))
        refuse_other(run, own, self.process(run)[:2])

    def job(self, run: str, job: int | None) -> None:
        self.store.write(("UPDATE fabric_run SET job = ? WHERE run = ?", [(job, run)]))

    def ended(self, run: str) -> None:
        self.store.write(("UPDATE fabric_run SET ended = ? WHERE run = ?", [(time.time(), run)]))

    def planned(self, run: str, planned: PlannedRound) -> None:
        """Write the pairs of a round that begins."""
        rows = [
            (run, planned.number, a, b, rail, planned.stage.value, time.time())
            for a, b in planned.pairs
            for rail in planned.rails
        ]
        self.store.write(("INSERT INTO pair VALUES (?,?,?,?,?,?,NULL,0,0,'',?)", rows))

    def measured(self, run: str, values: Sequence[PairValue]) -> None:
        rows = [(v.gbps, v.failed, v.why, time.time(), run, v.round, *v.pair, v.rail) for v in values]
        where = "WHERE run = ? AND round = ? AND node_a = ? AND node_b = ? AND rail = ?"
        self.store.write((f"UPDATE pair SET gbps = ?, failed = ?, done = 1, why = ?, at = ? {where}", rows))  # noqa: S608

    def gone(self, run: str, node: str, why: str) -> None:
        self.store.write(("INSERT OR IGNORE INTO gone_node VALUES (?,?,?)", [(run, node, why)]))

    def left_out(self, run: str, nodes: Mapping[str, str]) -> None:
        """Write which nodes the job of the run could not start on, and why. Nodes that were left out before take part again."""
        rows = [(run, node, f"{LEFT_OUT}{why}") for node, why in nodes.items()]
        self.store.write(
            ("DELETE FROM gone_node WHERE run = ? AND why LIKE ?", [(run, f"{LEFT_OUT}%")]),
            ("INSERT OR IGNORE INTO gone_node VALUES (?,?,?)", rows),
        )

    def ports(self, run: str, reports: Mapping[str, NodePorts], *, after: bool) -> None:
        rows = [(run, node, after, msgspec.json.encode(report).decode()) for node, report in reports.items()]
        self.store.write(("INSERT OR REPLACE INTO port VALUES (?,?,?,?)", rows))

    def runs(self) -> list[str]:
        """Return the names of the runs, the oldest first."""
        return [str(run) for (run,) in self.store.read("SELECT run FROM fabric_run ORDER BY began, run")]

    def process(self, run: str) -> tuple[int, str, float]:
        """Return the process, the host and the begin of a run."""
        pid, host, began = self.store.read("SELECT pid, host, began FROM fabric_run WHERE run = ?", (run,))[0]
        return pid, host, began

    def load(self, run: str) -> FabricRecord:
        """Return a run. Raises InputMissing, DataError."""
        rows = self.store.read("SELECT began, ended, user, job, plan FROM fabric_run WHERE run = ?", (run,))
        if not rows:
            raise InputMissing(
                f"{self.store.path} has no run {run} over the fabric", hint="fairlead accept --fabric --history lists them"
            )
        began, ended, user, job, packed = rows[0]
        try:
            plan = msgspec.json.decode(packed, type=FabricPlan)
            values = [(done, _value(row)) for done, *row in self.store.read(_PAIRS, (run,))]
            ports = tuple(
                {
                    node: msgspec.json.decode(text, type=NodePorts)
                    for node, text in self.store.read("SELECT node, report FROM port WHERE run = ? AND after = ?", (run, after))
                }
                for after in (0, 1)
            )
        except (*NOT_JSON, ValueError) as e:
            raise DataError(f"{self.store.path}: run {run} cannot be read: {e}") from None
        away = dict(self.store.read("SELECT node, why FROM gone_node WHERE run = ?", (run,)))
        return FabricRecord(
            plan=plan,
            began=began,
            ended=ended,
            user=user,
            job=job,
            values=tuple(v for done, v in values if done),
            open_round=tuple(v for done, v in values if not done),
            gone={node: why for node, why in away.items() if not why.startswith(LEFT_OUT)},
            left_out={node: why.removeprefix(LEFT_OUT) for node, why in away.items() if why.startswith(LEFT_OUT)},
            ports=(ports[0], ports[1]),
        )


_PAIRS = (
    "SELECT done, round, node_a, node_b, rail, stage, gbps, failed, why FROM pair WHERE run = ?"
    " ORDER BY round, node_a, node_b, length(rail), rail"
)


def _value(row: Sequence[object]) -> PairValue:
    round_, a, b, rail, stage, gbps, failed, why = row
    data = {
        "round": round_,
        "node_a": a,
        "node_b": b,
        "rail": rail,
        "stage": stage,
        "gbps": gbps,
        "failed": bool(failed),
        "why": why,
    }
    return msgspec.convert(data, PairValue)
