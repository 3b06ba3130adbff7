"""What a person's resume acknowledges: evidence by name that was known before it, and nothing newer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState
from fairlead.drains.acknowledgement import KnownEvidence, known_evidence
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.model.finding import Finding, Level
from fairlead.policy import PolicyState, Rules, acknowledge_evidence
from fairlead.policy.policy_state import Track
from tests.slurm import model

ORDER = CourierOrder(kind="drain", check="xid", summary="GPU gone")


def fault(name: str) -> Finding:
    return Finding(check="xid", level=Level.DRAIN, device=f"gpu{name}", summary="x", evidence_id=f"b:{name}")


def state_with(*names: str) -> PolicyState:
    found = [fault(name) for name in names]
    return PolicyState(tracks={f.key: Track(level=Level.DRAIN, bad=(f,), found=(f,)) for f in found})


class Node:
    """An agent's courier on a model of slurmctld, whose judgement is the faults of ``state``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.ctld = model.Ctld("26", ("n1",))
        self.state = PolicyState()
        self.start()

    def start(self) -> None:
        ledger = Ledger(str(self.folder), str(self.folder), node="n1")
        wall = lambda: self.now + 1_800_000_000  # noqa: E731
        protocol = DrainProtocol(
            NodeDrainState(self.ctld, ledger, "n1", Rules(budget_percent=100), wall=wall, clock=lambda: self.now)
        )
        self.courier = Courier(protocol, reconcile_seconds=30, clock=lambda: self.now)
        self.slurm_state = self.courier.take()

    def faults(self, *names: str) -> None:
        acknowledged = self.state.acknowledged
        self.state = acknowledge_evidence(state_with(*names), acknowledged)
        self.say()

    def say(self) -> SlurmState:
        """What the loop does after a decision and with news."""
        before, self.slurm_state = self.slurm_state, self.courier.take()
        if self.slurm_state.acknowledged > before.acknowledged:
            self.state = acknowledge_evidence(self.state, self.slurm_state.known)
        due = any(track.bad for track in self.state.tracks.values())
        self.courier.want(ORDER if due and not self.slurm_state.drained else CourierOrder(), known_evidence(self.state))
        return self.slurm_state

    def turns(self, count: int = 4) -> SlurmState:
        for _ in range(count):
            if self.courier.due() <= self.now:
                for _ in self.courier.turn():
                    pass
            self.say()
        return self.slurm_state

    def wait(self, seconds: float) -> SlurmState:
        self.now += seconds
        self.ctld.passed(int(seconds))
        return self.turns()

    def reason(self) -> str:
        return self.ctld.node("n1").reason


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.turns()
    made.faults("1")
    assert made.turns().drained
    return made


def test_what_stood_is_acknowledged(node: Node) -> None:
    node.ctld.update("n1", "UNDRAIN")
    node.wait(40)
    assert node.state.acknowledged == ("xid/gpu1#b:1",) and not node.ctld.node("n1").drained


def test_what_comes_after_the_resume_drains_again(node: Node) -> None:
    node.wait(40)
    node.ctld.update("n1", "UNDRAIN")
    node.now += 1.5
    node.faults("1", "2")
    node.turns(8)
    assert node.state.acknowledged == ("xid/gpu1#b:1",) and node.ctld.node("n1").drained


def test_what_comes_after_an_admin_lifts_their_own_words_over_ours_drains_over_a_restart_of_the_agent(node: Node) -> None:
    """The sequence that was found on real Slurm: the fault is closed as repaired meanwhile."""
    node.ctld.update("n1", "DRAIN", "ann: riser swap")
    node.wait(40)
    node.state = PolicyState()
    node.start()
    node.say()
    node.turns()
    node.ctld.update("n1", "UNDRAIN")
    node.now += 1.5
    node.faults("2")
    node.turns(8)
    assert "xid/gpu2#b:2" not in node.state.acknowledged and node.ctld.node("n1").drained


def test_what_comes_between_a_resume_and_slurms_own_mark_drains_again(node: Node) -> None:
    """The sequence that was found on real Slurm: our prolog refuses a job after the resume, and the agent reads Slurm's mark for
    that before it knows of the refusal. Nobody has resumed the node after the second fault."""
    node.ctld.update("n1", "UNDRAIN")
    node.now += 1.5
    node.ctld.update("n1", "DRAIN", "Prolog error")
    node.faults("1", "2")
    node.turns()
    node.courier.refused()
    for _ in range(4):
        node.wait(5)
    assert "xid/gpu2#b:2" not in node.state.acknowledged
    assert node.ctld.node("n1").drained and "GPU gone" in node.reason()


def test_a_restarted_agent_that_has_judged_nothing_yet_keeps_the_list(node: Node) -> None:
    node.wait(40)
    state = node.state
    node.start()
    node.now += 1
    for _ in node.courier.turn():
        pass
    node.ctld.update("n1", "UNDRAIN")
    node.now += 40
    node.state = state
    node.turns()
    assert node.state.acknowledged == ("xid/gpu1#b:1",) and not node.ctld.node("n1").drained


def test_new_evidence_is_looked_at_and_then_known(node: Node) -> None:
    node.now += 1
    node.faults("1", "2")
    node.turns()
    node.ctld.update("n1", "UNDRAIN")
    node.wait(40)
    assert set(node.state.acknowledged) == {"xid/gpu1#b:1", "xid/gpu2#b:2"}


@pytest.mark.parametrize("own", [False, True])
def test_new_evidence_does_not_wait_for_a_node_that_an_admin_has_just_given_back(tmp_path: Path, own: bool) -> None:
    """own: our drain stood before the admin's."""
    node = Node(tmp_path)
    if own:
        node.faults("1")
        node.turns()
    node.ctld.update("n1", "DRAIN", "ann: riser swap")
    node.faults("1")
    node.wait(40)
    assert "riser" in node.reason() and not node.slurm_state.drained
    node.ctld.update("n1", "UNDRAIN")
    node.now += 0.5
    node.faults("1", "2")
    node.turns(8)
    assert node.ctld.node("n1").drained and node.reason().startswith("fairlead:xid:")


def test_new_evidence_does_not_wait_for_a_reservation_that_has_just_ended(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ctld.records["n1"].flags.add("MAINTENANCE")
    node.courier.want(
        CourierOrder(kind="drain", check="driver_library", summary="other library"), known_evidence(state_with("1"))
    )
    for _ in node.courier.turn():
        pass
    assert node.courier.take().blocked_because
    node.ctld.records["n1"].flags.clear()
    node.now += 0.5
    node.courier.want(ORDER, KnownEvidence(names=("a", "b"), drains=frozenset(("a", "b"))))
    for _ in node.courier.turn():
        pass
    assert node.courier.take().drained


def test_a_flood_of_evidence_asks_slurmctld_every_five_seconds_at_most(node: Node) -> None:
    asked = 0
    for second in range(60):
        node.now += 0.5
        node.courier.want(CourierOrder(), KnownEvidence(drains=frozenset((f"fault {second}",))))
        if node.courier.due() <= node.now:
            asked += 1
            for _ in node.courier.turn():
                pass
    assert 4 <= asked <= 8, asked


def test_what_would_not_drain_wakes_nobody(node: Node) -> None:
    warning = Finding(check="ecc", level=Level.WARN, device="gpu3", summary="x")
    state = PolicyState(tracks={**node.state.tracks, warning.key: Track(level=Level.WARN, found=(warning,))})
    node.now += 6
    node.courier.want(CourierOrder(), known_evidence(state))
    assert node.courier.due() > node.now
