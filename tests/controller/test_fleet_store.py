"""The store of the fleet's history: one writer, idempotent, whole after SIGKILL, refused where it is newer or damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.controller.fleet_collection import EACH_SECONDS, FleetCollection
from fairlead.controller.fleet_folder import from_store
from fairlead.controller.fleet_store import FleetStore
from fairlead.errors import DataError, InputMissing, NodeBusy, SlurmError
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_record import encoded
from fairlead.slurm.client import NodeState
from fairlead.slurm.node_groups import NodeGroup
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, drained, history, record, resumed

ROOT = Path(__file__).resolve().parents[2]
T = BEGIN + 10 * DAY


def test_the_same_record_changes_nothing(tmp_path: Path) -> None:
    with FleetStore(str(tmp_path), write=True) as store:
        assert store.add([record(drained(T))], 0.0) == 1 and store.add([record(drained(T))], 0.0) == 0
        assert store.add([record(drained(T), resumed(T + HOUR))], 0.0) == 1
    with FleetStore(str(tmp_path), write=False) as store:
        (found,) = store.records()
    assert len(found.entries) == 2 and (tmp_path / "fleet.sqlite").stat().st_mode & 0o777 == 0o600


def test_what_a_node_has_forgotten_stays(tmp_path: Path) -> None:
    old = record(drained(T), resumed(T + HOUR), written_unix=T + DAY, watched=((BEGIN, T + DAY),))
    new = record(drained(T + 40 * DAY), watched=((T + 11 * DAY, NOW),))
    with FleetStore(str(tmp_path), write=True) as store:
        store.add([old], 0.0)
        store.add([new], 0.0)
        store.add_events([NodeOut(node="n1", begin_unix=T, end_unix=None, whose=Whose.PERSON)], 0.0)
        store.add_events([NodeOut(node="n1", begin_unix=T, end_unix=T + 5, whose=Whose.PERSON)], 0.0)
        assert [e.end_unix for e in store.events()] == [T + 5]
    found = from_store(str(tmp_path))
    assert len(history(*found.records).incidents) == 2 and found.events is None, "no round has asked for events"
    assert len(found.records[0].watched) == 2


def test_one_writer_and_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        FleetStore(str(tmp_path), write=False)
    with FleetStore(str(tmp_path), write=True), pytest.raises(NodeBusy):
        FleetStore(str(tmp_path), write=True)


@pytest.mark.parametrize("damage", ["newer", "rubbish", "row"])
def test_a_store_that_cannot_be_used_is_named(tmp_path: Path, damage: str) -> None:
    with FleetStore(str(tmp_path), write=True) as store:
        store.add([record()], 0.0)
        if damage == "newer":
            store._db.execute("PRAGMA user_version = 9")
        if damage == "row":
            store._db.execute("UPDATE service SET data = x'c1'")
    if damage == "rubbish":
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"fleet.sqlite{suffix}").unlink(missing_ok=True)
        (tmp_path / "fleet.sqlite").write_bytes(b"x" * 8192)
    with pytest.raises(DataError):
        from_store(str(tmp_path))


WRITER = """
import sys
from fairlead.controller.fleet_store import FleetStore
from tests.fleet.made_records import T0, drained, record
with FleetStore(sys.argv[1], write=True) as store:
    n = 0
    while True:
        n += 1
        store.add([record(drained(T0 + n), node=f"n{k}", machine=f"m{k}") for k in range(20)], 0.0)
        print(n, flush=True)
""".replace("T0, ", "BEGIN, ").replace("T0", "BEGIN")


def test_a_writer_that_is_killed_leaves_whole_records(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}"}
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        last = [int(process.stdout.readline()) for _ in range(3)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with FleetStore(str(tmp_path), write=False) as store:
            counts = {len(found.entries) for found in store.records()}
        assert len(counts) == 1 and counts.pop() >= last


# -- rounds --------------------------------------------------------------------------------------------


class Slurm:
    """Slurm as a test says it is: what scontrol and sacctmgr would answer."""

    def __init__(self) -> None:
        self.states = {"n1": ("IDLE", ""), "n2": ("IDLE", "")}
        self.events: str | None = ""

    def nodes(self) -> tuple[NodeState, ...]:
        made = []
        for name, (states, reason) in self.states.items():
            made.append(NodeState(name=name, states=frozenset(states.split("+")), reason=reason))
        return tuple(made)

    def ask(self, command: list[str]) -> str:
        if self.events is None:
            raise SlurmError("sacctmgr: no slurmdbd")
        assert command[:5] == ["sacctmgr", "-n", "-P", "show", "event"]
        return self.events

    def topology(self) -> tuple[NodeGroup, ...]:
        return (NodeGroup("switch", "s1", frozenset(("n1", "n2"))),)


class Nodes:
    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {"n1": {"service-record.json": encoded(record())}}
        self.asked: list[list[str]] = []

    def fetch(self, nodes: list[str]) -> dict[str, tuple[dict[str, bytes], str]]:
        self.asked.append(list(nodes))
        return {node: (self.files.get(node, {}), "" if node in self.files else "no route to host") for node in nodes}


def test_rounds(tmp_path: Path) -> None:
    slurm, nodes, said = Slurm(), Nodes(), list[str]()
    now = [NOW]

    def round_() -> None:
        with FleetStore(str(tmp_path), write=True) as store:
            FleetCollection(store, slurm, nodes, say=said.append, clock=lambda: now[0]).round()  # type: ignore[arg-type]

    round_()
    assert nodes.asked == [["n1", "n2"]] and said == ["n2: no route to host"]
    round_()
    assert len(nodes.asked) == 1, "nothing has changed"
    slurm.states["n1"] = ("IDLE+DRAIN", "fairlead:xid:aaaaaaaaaaa1 x")
    nodes.files["n1"] = {"service-record.json": encoded(record(drained(NOW - 60)))}
    round_()
    assert nodes.asked[1:] == [["n1"]], "its reason has changed"
    slurm.states["n1"] = ("ALLOCATED+DRAIN", "fairlead:xid:aaaaaaaaaaa1 x")
    round_()
    assert len(nodes.asked) == 2, "a job is no news"
    now[0] += 601
    round_()
    assert nodes.asked[2:] == [["n2"]], "a node that did not answer is asked again after ten minutes"
    now[0] += EACH_SECONDS
    slurm.events = "n1|1793000000|0|DRAIN|fairlead:xid:aaaaaaaaaaa1 x\n"
    round_()
    assert nodes.asked[-1] == ["n1", "n2"]
    slurm.states["n2"] = ("IDLE+POWERED_DOWN", "")
    now[0] += EACH_SECONDS
    round_()
    assert nodes.asked[-1] == ["n1"], "slurmctld has switched n2 off"
    found = from_store(str(tmp_path))
    assert found.events is not None and len(found.events) == 1 and found.groups["n1"] == ("switch s1",)
    assert found.owned == ("n1", "n2") and len(history(*found.records).incidents) == 1
    slurm.events = None
    said.clear()
    round_()
    round_()
    assert len([line for line in said if "no slurmdbd" in line]) == 1, "said once"


def test_a_hostile_answer_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    nodes, said = Nodes(), list[str]()
    nodes.files["n2"] = {"service-record.json": encoded(record()), "x.json": b"[" * 100_000}
    with FleetStore(str(tmp_path), write=True) as store:
        FleetCollection(store, Slurm(), nodes, say=said.append, clock=time.time).round()  # type: ignore[arg-type]
        assert [found.node for found in store.records()] == ["n1"]
    assert any("n2: service-record.json is of the node n1" in line for line in said) and all(line.isprintable() for line in said)
