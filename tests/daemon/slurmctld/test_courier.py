"""Courier and drain protocols with a slurmctld of a few lines: what commands by hand and the agent do to each other."""

from __future__ import annotations

import gc
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState
from fairlead.drains import node_writer
from fairlead.drains.ledger import Ledger, Phase
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import MANUAL
from fairlead.slurm.client import JobOn, NodeState, NodeTimes

XID = CourierOrder(kind="drain", check="xid", summary="Xid 79 on GPU 0000:1b:00.0")


class Ctld:
    """Ten nodes; the state words and reasons of slurmctld 24.11. ``before_write``: what a person does just then."""

    def __init__(self) -> None:
        idle = frozenset({"IDLE"})
        self.all = {n: NodeState(name=n, states=idle, partitions=("gpu",)) for n in (f"n{i}" for i in range(1, 11))}
        self.calls: list[str] = []
        self.booted = 0.0
        self.before_write: Callable[[], None] = lambda: None

    def node(self, name: str) -> NodeState:
        self.calls.append("node")
        return self.all[name]

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        self.calls.append("nodes")
        return tuple(n for n in self.all.values() if not names or n.name in names)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        return ()

    def began(self) -> float:
        self.calls.append("began")
        return self.booted

    def node_times(self) -> tuple[NodeTimes, ...]:
        return tuple(NodeTimes(name=n.name, reason_time=n.reason_time) for n in self.nodes())

    def drain(self, name: str, reason: str, user: str = "root") -> None:
        self.before_write()
        self.calls.append("drain")
        states, when = frozenset({"IDLE", "DRAIN"}), int(time.time())
        self.all[name] = replace(self.all[name], states=states, reason=reason, reason_user=user, reason_time=when)

    def not_after(self, seconds: float) -> None:
        assert seconds > 0

    def update_reason(self, name: str, reason: str) -> None:
        self.all[name] = replace(self.all[name], reason=reason)

    def resume(self, name: str) -> None:
        self.before_write()
        self.calls.append("resume")
        self.all[name] = replace(self.all[name], states=frozenset({"IDLE"}), reason="", reason_user="", reason_time=0)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that is slow the ledger alone can take the two seconds after which nothing is written (tests/drains)."""
    monkeypatch.setattr(node_writer, "STALE_SECONDS", 60.0)


@pytest.fixture
def ctld() -> Ctld:
    return Ctld()


@pytest.fixture
def protocol(ctld: Ctld, tmp_path: Path) -> Callable[..., DrainProtocol]:
    for sub in ("state", "run"):
        (tmp_path / sub).mkdir()

    def make(**options: Callable[[], str]) -> DrainProtocol:
        """As another process has it: the ledger is read anew from the disk."""
        ledger = Ledger(str(tmp_path / "state"), str(tmp_path / "run"), node="n1", machine="m")
        return DrainProtocol(NodeDrainState(ctld, ledger, "n1", Rules(), **options))  # type: ignore[arg-type]

    return make


@pytest.fixture
def couriers(protocol: Callable[..., DrainProtocol]) -> Iterator[Callable[..., Courier]]:
    made: list[Courier] = []

    def make(drain: DrainProtocol | None = None, **options: float) -> Courier:
        made.append(Courier(drain or protocol(), **{"reconcile_seconds": 600.0, **options}))
        made[-1].start()
        return made[-1]

    yield make
    for courier in made:
        courier.stop()


def until(courier: Courier, met: Callable[[SlurmState], bool]) -> SlurmState:
    deadline = time.monotonic() + 90
    while not met(standing := courier.take()):
        assert time.monotonic() < deadline, standing
        select.select([courier.fileno()], [], [], 0.1)
    return standing


def test_a_courier_that_is_dropped_or_closed_leaves_no_file_open(protocol: Callable[..., DrainProtocol]) -> None:
    """A process with more than 1,024 files open cannot select() any more."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        courier = Courier(protocol())
        assert len(os.listdir("/proc/self/fd")) > before
        courier.close()
        courier.close()
        Courier(protocol())
    del courier
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_stands_says_what_it_is_for(couriers: Callable[..., Courier]) -> None:
    courier = couriers()
    before = time.time()
    courier.want(XID)
    standing = until(courier, lambda s: s.drained)
    assert standing.check == "xid" and before <= standing.since <= time.time()
    courier.stop()
    again = couriers()
    assert (again.take().check, again.take().since) == ("xid", standing.since)


def test_a_persons_resume_is_seen_at_once_when_the_agent_is_told(ctld: Ctld, couriers: Callable[..., Courier]) -> None:
    courier = couriers()
    courier.want(XID)
    until(courier, lambda s: s.drained)
    ctld.resume("n1")
    courier.reconcile()
    assert until(courier, lambda s: not s.drained).acknowledged == 1


def test_resumed_before_it_was_read_back_it_is_drained_again(ctld: Ctld, couriers: Callable[..., Courier]) -> None:
    """Nobody has seen what the first drain was for, so the resume acknowledges nothing and the order still stands."""
    read, resumed = ctld.nodes, threading.Event()

    def nodes(names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        if ctld.all["n1"].reason and not resumed.is_set():
            resumed.set()
            ctld.resume("n1")
        return read(names)

    ctld.nodes = nodes  # type: ignore[method-assign]
    courier = couriers()
    courier.want(XID)
    standing = until(courier, lambda s: s.drained)
    assert resumed.is_set() and ctld.calls.count("drain") == 2 and ctld.node("n1").drained
    assert standing.acknowledged == 0


def test_orders_of_a_loop_that_has_not_heard_of_the_acknowledgement_are_void(
    ctld: Ctld, couriers: Callable[..., Courier]
) -> None:
    """The order that was carried out still stands then, until whoever gave it has heard of the acknowledgement."""
    courier = couriers()
    courier.want(XID)
    until(courier, lambda s: s.drained)
    ctld.resume("n1")
    courier.reconcile()
    deadline = time.monotonic() + 90
    while not courier._state.acknowledged:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    courier.want(XID)  # by a loop that has not heard of it yet
    time.sleep(0.1)
    assert ctld.calls.count("drain") == 1 and not ctld.node("n1").drained
    courier.take()
    courier.want(XID)  # new evidence
    until(courier, lambda s: s.drained)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_drain_that_a_person_took_over_is_acknowledged_when_they_lift_it(
    ctld: Ctld, couriers: Callable[..., Courier], ordered: bool
) -> None:
    courier = couriers()
    courier.want(XID)
    until(courier, lambda s: s.drained)
    courier.want(CourierOrder())
    ctld.drain("n1", "ticket 12", user="ann")
    courier.reconcile()
    until(courier, lambda s: not s.drained)
    if ordered:  # the evidence still stands
        courier.want(XID)
        assert "ticket 12" in until(courier, lambda s: s.foreign).blocked_because
    ctld.resume("n1")
    courier.reconcile()
    while not courier._state.acknowledged:
        time.sleep(0.01)
    if ordered:
        courier.want(XID)  # by a loop that has not heard of it yet
        time.sleep(0.1)
    assert until(courier, lambda s: s.acknowledged == 1).blocked_because == ""
    time.sleep(0.1)
    assert ctld.calls.count("drain") == 2 and not ctld.node("n1").drained
    courier.want(XID)  # new evidence
    until(courier, lambda s: s.drained)


@pytest.mark.parametrize("alive", [True, False])
def test_fairlead_resume_is_an_acknowledgement(
    ctld: Ctld, couriers: Callable[..., Courier], protocol: Callable[..., DrainProtocol], alive: bool
) -> None:
    """Also when the agent was not running just then: started again it must not drain for the same evidence."""
    courier = couriers()
    courier.want(XID)
    until(courier, lambda s: s.drained)
    if not alive:
        courier.stop()
    assert finish(protocol().resume(by_hand=True)).outcome is Outcome.RESUMED
    assert not ctld.node("n1").drained
    if alive:
        courier.reconcile()
    else:
        courier = couriers()
    assert until(courier, lambda s: s.acknowledged == 1 and not s.drained).reason == ""
    assert protocol().ledger.load() is None


@pytest.mark.parametrize("kill_before", ["read", "write", "read back"])
def test_fairlead_resume_killed(ctld: Ctld, protocol: Callable[..., DrainProtocol], kill_before: str) -> None:
    finish(protocol().drain("xid", "x"))
    steps = protocol().resume(by_hand=True)
    for step in steps:
        if step == kill_before:
            break
    steps.close()
    outcome = finish(protocol().reconcile()).outcome
    assert outcome is (Outcome.ACKNOWLEDGED if kill_before == "read back" else Outcome.DRAINED)
    assert ctld.node("n1").drained == (outcome is Outcome.DRAINED)


def test_fairlead_drain_takes_over_the_agents_own_drain(ctld: Ctld, protocol: Callable[..., DrainProtocol]) -> None:
    """Else the agent would lift by itself what a person asked for."""
    finish(protocol().drain("xid", "x"))
    for _ in range(2):
        result = finish(protocol().drain(MANUAL, "riser 2"))
        assert result.outcome is Outcome.DRAINED and "riser 2" in ctld.node("n1").reason
        entry = protocol().ledger.load()
        assert entry is not None and (entry.token.check, entry.phase) == (MANUAL, Phase.DRAINED)
    assert ctld.calls.count("drain") == 2


def test_fairlead_drain_past_the_budget_leaves_the_agents_drain(ctld: Ctld, protocol: Callable[..., DrainProtocol]) -> None:
    finish(protocol().drain("xid", "x"))
    for other in ("n2", "n3", "n4"):
        ctld.drain(other, "an admin's")
    assert finish(protocol().drain(MANUAL, "riser 2")).outcome is Outcome.DRAINED
    assert ctld.node("n1").drained and ctld.calls.count("resume") == 0


def test_fairlead_drain_just_after_an_unnoticed_resume(ctld: Ctld, protocol: Callable[..., DrainProtocol]) -> None:
    finish(protocol().drain("xid", "x"))
    ctld.resume("n1")
    assert finish(protocol().drain(MANUAL, "riser 2")).outcome is Outcome.DRAINED
    assert ctld.node("n1").drained


def test_nothing_is_written_while_a_person_holds_the_node(ctld: Ctld, protocol: Callable[..., DrainProtocol]) -> None:
    def pending_room() -> str:
        return "held by an admin"

    assert finish(protocol(barred=pending_room).drain("xid", "x")).outcome is Outcome.BLOCKED
    assert protocol().ledger.load() is None
    finish(protocol().drain("xid", "x"))
    assert finish(protocol(barred=pending_room).resume()).outcome is Outcome.BLOCKED
    assert ctld.node("n1").drained and ctld.calls.count("drain") == 1 and ctld.calls.count("resume") == 0
    assert finish(protocol(barred=pending_room).reconcile()).outcome is Outcome.DRAINED


def test_a_hold_waits_for_what_is_under_way(ctld: Ctld, protocol: Callable[..., DrainProtocol], tmp_path: Path) -> None:
    """`fairlead hold` returns only when no write of the agent can come any more."""
    from fairlead.cli import main

    reached, go = threading.Event(), threading.Event()

    def slow() -> None:
        reached.set()
        assert go.wait(90)

    ctld.before_write = slow
    drain = protocol()

    def agent() -> None:
        with drain.ledger.locked():
            finish(drain.drain("xid", "x"))

    writing = threading.Thread(target=agent)
    writing.start()
    assert reached.wait(90)
    options = ["--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "run"), "--reason", "riser 2"]
    done: list[int] = []
    holding = threading.Thread(target=lambda: done.append(main(["hold", *options])))
    holding.start()
    while not (tmp_path / "state/hold").exists():
        time.sleep(0.005)
    holding.join(0.2)
    assert holding.is_alive() and not done
    go.set()
    holding.join(90)
    writing.join(90)
    assert done == [0] and ctld.node("n1").drained


def test_fairlead_resume_takes_back_a_verdict_that_no_agent_would(
    ctld: Ctld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the agent down its last word was drain, and the prolog would refuse every job on the resumed node."""
    from fairlead.cli import main
    from fairlead.drains import from_document
    from tests.daemon.conftest import Agent

    agent = Agent(tmp_path)  # never started: the document and the folders
    for folder in (agent.run_dir, agent.state_dir):
        folder.mkdir()
    (agent.run_dir / "verdict").write_text("1\tdrain\t99999999\t7\txid: gone\n")
    seen: list[bool] = []
    ctld.before_write = lambda: seen.append((agent.run_dir / "verdict").exists())
    monkeypatch.setattr(from_document, "slurm_client", lambda options: ctld)
    assert main(["drain", "--document", str(agent.document), "--reason", "riser 2"]) == 0
    assert main(["resume", "--document", str(agent.document)]) == 0
    assert not ctld.node("n1").drained and seen == [True, False]


@pytest.mark.parametrize("states", [{"IDLE", "POWERING_DOWN"}, {"DOWN", "POWERED_DOWN"}])
def test_a_drain_that_powering_down_lifted_is_not_acknowledged(
    ctld: Ctld, couriers: Callable[..., Courier], protocol: Callable[..., DrainProtocol], states: set[str]
) -> None:
    """slurmctld's power_save.c clears DRAIN. What is still wrong when the node is back drains it again."""
    courier = couriers(reconcile_seconds=0.1)
    courier.want(XID)
    reason = until(courier, lambda s: s.drained).reason
    powered = f"{reason} : ResumeTimeout reached" if "DOWN" in states else ""
    ctld.all["n1"] = replace(ctld.all["n1"], states=frozenset(states), reason=powered)
    courier.reconcile()
    assert until(courier, lambda s: not s.drained).acknowledged == 0
    assert ctld.calls.count("drain") == 1
    ctld.all["n1"] = replace(ctld.all["n1"], states=frozenset({"IDLE"}), reason="")
    assert until(courier, lambda s: s.drained).acknowledged == 0


def test_less_hardware_than_slurm_conf_has_is_not_put_back_into_service(
    ctld: Ctld, protocol: Callable[..., DrainProtocol]
) -> None:
    finish(protocol().drain("xid", "x"))
    ctld.all["n1"] = replace(ctld.all["n1"], states=frozenset({"IDLE", "DRAIN", "INVALID_REG"}))
    result = finish(protocol().resume())
    assert result.outcome is Outcome.BLOCKED and "less than slurm.conf says" in result.detail
