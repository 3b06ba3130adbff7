"""A drain of ours that a reboot has lifted, or that slurmctld has forgotten, is no person's resume: nobody acknowledges it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from fairlead.daemon.publishing import transitions
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.ledger import Ledger, LedgerEntry, Phase
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmUnavailable
from fairlead.policy.ownership import MANUAL, parse
from tests.slurm import model
from tests.slurm.conftest import ROOMY
from tests.slurm.monitor import Clock

WHY = "GPU gone"


class Ctld(model.Ctld):
    """``asked``: how often for its begin. ``backup``: it does not know it."""

    asked = 0
    backup = False

    def began(self) -> float:
        self.asked += 1
        return float("inf") if self.backup else super().began()


class Scene:
    """The protocols of n1 on a model of slurmctld, and the time of both."""

    def __init__(self, folder: Path) -> None:
        for sub in ("state", "run"):
            (folder / sub).mkdir()
        self.ctld, self.clock, self.hold, self.reconfigured = Ctld("26", ("n1", "n2")), Clock(), "", False
        ledger = Ledger(str(folder / "state"), str(folder / "run"), node="n1")
        self.protocol = DrainProtocol(
            NodeDrainState(
                self.ctld,
                ledger,
                "n1",
                ROOMY,
                barred=lambda: self.hold,
                boot_id="boot 1",
                reconfigured=lambda: self.reconfigured,
                wall=self.clock.wall,
                clock=self.clock.mono,
            )
        )

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.ctld.passed(int(seconds))

    def drain(self, check: str = "xid") -> Outcome:
        return finish(self.protocol.drain(check, WHY)).outcome

    def reconcile(self, *, refused: bool = False) -> Outcome:
        return finish(self.protocol.reconcile(prolog_refused=refused)).outcome

    def undrain(self) -> None:
        self.ctld.update("n1", "UNDRAIN")

    def killed(self) -> None:
        self.ctld.killed()
        self.ctld.register("n1")

    def restart(self) -> None:
        self.ctld.restart()
        self.ctld.register("n1")

    def emptied(self) -> None:
        """slurmctld starts without its saved state."""
        self.ctld.saved = deepcopy(model.Ctld("26", tuple(self.ctld.records)).records)
        self.killed()

    def reconfigure(self) -> None:
        """From 23.11 on slurmctld and every slurmd start anew then."""
        self.restart()
        self.ctld.slurmd_began, self.reconfigured = self.ctld.booted + 1, True

    def reboot(self, *, next_state: str = "", asap: bool = False) -> None:
        """`scontrol reboot`, to its end."""
        self.ctld.reboot("n1", asap=asap, next_state=next_state)
        self.ctld.issue_reboots()
        self.wait(100)
        self.protocol.state.boot_id = "boot 2"
        self.ctld.register("n1", booted=True)

    def entry(self) -> LedgerEntry | None:
        return self.protocol.ledger.load()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """With our drain, one second old."""
    made = Scene(tmp_path)
    assert made.drain() is Outcome.DRAINED
    made.wait(1)
    return made


def saved_and_killed(s: Scene) -> None:
    s.wait(6)
    s.killed()


def settled_then_lifted(s: Scene) -> None:
    s.wait(30)
    assert s.reconcile() is Outcome.DRAINED
    s.undrain()
    s.restart()


def lifted_then_restart(s: Scene) -> None:
    s.undrain()
    s.wait(1)
    s.restart()


def killed_later(s: Scene) -> None:
    """It was away for ten minutes, and the agent asked in vain."""
    s.killed()
    s.ctld.away = True
    s.wait(600)
    with pytest.raises(SlurmUnavailable):
        s.reconcile()
    s.ctld.away = False
    s.ctld.booted = s.ctld.clock


def lifted_by_command(s: Scene) -> None:
    assert finish(s.protocol.resume(by_hand=True)).outcome is Outcome.RESUMED
    s.restart()


def gone_and_asked_for_by_command(s: Scene) -> None:
    s.killed()
    assert finish(s.protocol.resume(by_hand=True)).outcome is Outcome.ACKNOWLEDGED


def put_over_and_lifted(s: Scene) -> None:
    s.ctld.update("n1", reason="ann: riser swap")
    assert s.reconcile() is Outcome.FOREIGN
    s.undrain()


def put_over_and_lost(s: Scene) -> None:
    s.ctld.update("n1", reason="ann: riser swap")
    assert s.reconcile() is Outcome.FOREIGN
    s.killed()


def put_over_for_long(s: Scene) -> None:
    for _ in range(2):
        s.ctld.update("n1", reason="ann: riser swap")
        assert s.reconcile() is Outcome.FOREIGN
        s.wait(30)
    s.restart()
    s.undrain()


def lost_then_drained_by_a_person(s: Scene) -> None:
    s.killed()
    s.ctld.update("n1", "DRAIN", "ann: riser swap")
    assert s.reconcile() is Outcome.FOREIGN
    s.undrain()


def emptied_next_day(s: Scene) -> None:
    s.wait(86400)
    assert s.reconcile() is Outcome.DRAINED
    s.wait(20)
    s.emptied()


def emptied_and_reconfigured_later(s: Scene) -> None:
    """Whoever has lost the state sees it and tries what helps at other times."""
    s.wait(100)
    s.emptied()
    s.wait(200)
    s.reconfigure()


def reconfigured_then_lifted(s: Scene) -> None:
    s.wait(20)
    s.reconfigure()
    s.wait(2)
    s.undrain()


def lifted_then_reconfigured(s: Scene) -> None:
    s.wait(20)
    s.undrain()
    s.wait(2)
    s.reconfigure()


def emptied_and_reconfigured_at_once(s: Scene) -> None:
    """Both between two looks: nobody has resumed the node, and nothing shows that."""
    s.wait(20)
    s.emptied()
    s.wait(2)
    s.reconfigure()


def newer_drain_survives_a_reconfiguration(s: Scene) -> None:
    s.ctld.update("n2", "DRAIN", "ann: a newer one")
    s.wait(30)
    assert s.reconcile() is Outcome.DRAINED
    s.undrain()
    s.reconfigure()


def newer_drain_survives(s: Scene) -> None:
    s.ctld.update("n2", "DRAIN", "ann: a newer one")
    s.wait(30)
    assert s.reconcile() is Outcome.DRAINED
    s.undrain()
    s.restart()


def old_state_with_an_older_drain(s: Scene) -> None:
    """A backup of the state from before our drain: the other drain's survival says nothing of ours."""
    s.ctld.records["n2"].flags.add("DRAIN")
    s.ctld.records["n2"].reason, s.ctld.records["n2"].time = "bob: PSU", s.ctld.clock - 3600
    s.wait(30)
    s.ctld.saved["n1"] = model.Record()
    s.killed()


def drained_elsewhere_after_the_loss(s: Scene) -> None:
    s.wait(30)
    s.emptied()
    s.wait(3)
    s.ctld.update("n2", "DRAIN", "ann: what happened?")


def rebooted_and_lifted(s: Scene) -> None:
    s.wait(30)
    s.reboot(next_state="RESUME")


def seen_waiting_for_its_reboot(s: Scene) -> None:
    """The agent of the new boot looks before slurmd has registered."""
    s.ctld.reboot("n1", next_state="RESUME")
    s.ctld.issue_reboots()
    s.protocol.state.boot_id = "boot 2"
    assert s.reconcile() is Outcome.DRAINED
    s.ctld.register("n1", booted=True)


def rebooted_then_resumed_by_a_person(s: Scene) -> None:
    s.reboot()
    assert s.reconcile() is Outcome.DRAINED
    s.wait(30)
    s.undrain()


def power_cycled_with_the_drain_then_resumed(s: Scene) -> None:
    s.protocol.state.boot_id = "boot 2"
    assert s.reconcile() is Outcome.DRAINED
    s.undrain()


def an_admins_words_and_a_reboot(s: Scene) -> None:
    """ASAP lifts the admin's own drain too: they have not resumed the node."""
    s.ctld.update("n1", reason="ann: reboot it")
    assert s.reconcile() is Outcome.FOREIGN
    s.reboot(next_state="RESUME")


def clocks_apart(s: Scene) -> None:
    """This node's clock is set two hours ahead, and slurmctld loses its state."""
    s.clock.jump += 7200
    s.wait(30)
    assert s.reconcile() is Outcome.DRAINED
    s.wait(5)
    s.emptied()


def answered_by_a_backup(s: Scene) -> None:
    s.undrain()
    s.ctld.backup = True


TABLE: dict[str, tuple[Callable[[Scene], None], Outcome, int]] = {
    # what happens, what the next look finds, how often slurmctld was asked for its begin
    "killed": (Scene.killed, Outcome.LOST, 1),
    "killed, back after ten minutes": (killed_later, Outcome.LOST, 1),
    "saved, then killed": (saved_and_killed, Outcome.DRAINED, 0),
    "restarted": (Scene.restart, Outcome.DRAINED, 0),
    "lifted": (Scene.undrain, Outcome.ACKNOWLEDGED, 1),
    "lifted, then restarted at once: cannot be told": (lifted_then_restart, Outcome.LOST, 1),
    "seen 30 s later, lifted, restarted at once: cannot be told": (settled_then_lifted, Outcome.LOST, 1),
    "emptied the next day": (emptied_next_day, Outcome.LOST, 1),
    "emptied, and reconfigured minutes later": (emptied_and_reconfigured_later, Outcome.LOST, 1),
    "reconfigured, then lifted": (reconfigured_then_lifted, Outcome.LOST, 1),
    "lifted, then reconfigured": (lifted_then_reconfigured, Outcome.LOST, 1),
    "emptied and reconfigured at once": (emptied_and_reconfigured_at_once, Outcome.LOST, 1),
    "lifted, reconfigured, and a newer drain is still known": (newer_drain_survives_a_reconfiguration, Outcome.ACKNOWLEDGED, 1),
    "lifted, restarted, and a newer drain is still known": (newer_drain_survives, Outcome.ACKNOWLEDGED, 1),
    "an old state, with an older drain of another": (old_state_with_an_older_drain, Outcome.LOST, 1),
    "emptied, and somebody drains another node": (drained_elsewhere_after_the_loss, Outcome.LOST, 1),
    "rebooted by slurmctld, which lifts it": (rebooted_and_lifted, Outcome.LOST, 0),
    "the same, looked at before slurmd has registered": (seen_waiting_for_its_reboot, Outcome.LOST, 0),
    "rebooted, and then a person lifts it": (rebooted_then_resumed_by_a_person, Outcome.ACKNOWLEDGED, 1),
    "power-cycled, and then a person lifts it": (power_cycled_with_the_drain_then_resumed, Outcome.ACKNOWLEDGED, 1),
    "an admin's words in place of ours, lifted by a reboot": (an_admins_words_and_a_reboot, Outcome.LOST, 1),
    "emptied, and this node's clock is wrong": (clocks_apart, Outcome.LOST, 1),
    "lifted by fairlead resume, restarted": (lifted_by_command, Outcome.ACKNOWLEDGED, 0),
    "killed, then fairlead resume": (gone_and_asked_for_by_command, Outcome.ACKNOWLEDGED, 0),
    "another's words, lifted": (put_over_and_lifted, Outcome.ACKNOWLEDGED, 2),
    "another's words, both forgotten": (put_over_and_lost, Outcome.LOST, 2),
    "another's words for long, restarted, lifted: cannot be told": (put_over_for_long, Outcome.LOST, 2),
    "killed, and a person drained it for a while": (lost_then_drained_by_a_person, Outcome.FREE, 1),
    "a backup answers": (answered_by_a_backup, Outcome.LOST, 1),
}


@pytest.mark.parametrize("row", TABLE)
def test_lost_or_lifted(scene: Scene, row: str) -> None:
    happens, outcome, asked = TABLE[row]
    happens(scene)
    assert scene.reconcile() is outcome
    assert scene.ctld.asked == asked
    entry = scene.entry()
    assert (entry is not None and entry.ours) == (outcome is Outcome.DRAINED)


XID, GONE = "xid/0000:1b:00.0#0d6a4f0e-5b1c-4f65-9a39-3f1f6f9b7c21:812", "gpu_count/#gpus=7"


@pytest.mark.parametrize(
    ("happens", "known"),
    [
        (lifted_then_reconfigured, (XID,)),
        (reconfigured_then_lifted, (XID,)),
        (emptied_and_reconfigured_at_once, (XID,)),
        (emptied_and_reconfigured_later, ()),
        (newer_drain_survives_a_reconfiguration, (XID, GONE)),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(len(value)),
)
def test_of_a_reconfiguration_only_the_past_may_be_acknowledged(
    tmp_path: Path, happens: Callable[[Scene], None], known: tuple[str, ...]
) -> None:
    """slurmctld may have begun without its state before it, so a GPU that is still lost drains again, whoever was there."""
    made = Scene(tmp_path)
    made.protocol.state.known = (XID, GONE)
    assert made.drain() is Outcome.DRAINED
    made.wait(1)
    happens(made)
    assert finish(made.protocol.reconcile()).known == known


def test_a_drain_by_hand_is_made_again_after_a_reconfiguration_that_leaves_it_open(tmp_path: Path) -> None:
    made = Scene(tmp_path)
    assert made.drain(MANUAL) is Outcome.DRAINED
    emptied_and_reconfigured_at_once(made)
    assert made.reconcile() is Outcome.DRAINED and made.ctld.node("n1").drained


def test_what_is_asked_where_a_drain_has_gone(scene: Scene) -> None:
    """Each question once: the node, since when slurmctld runs, and the times of all nodes."""
    scene.killed()
    asked: list[str] = []
    for name in ("node", "nodes", "began", "node_times"):
        real = getattr(scene.ctld, name)
        setattr(scene.ctld, name, lambda *a, n=name, r=real: (asked.append(n), r(*a))[1])
    assert scene.reconcile() is Outcome.LOST
    assert [name for name in asked if name != "nodes"] == ["node", "began", "node_times"]


def test_the_next_drain_is_a_drain_like_any_other(scene: Scene) -> None:
    """And whoever lifts that one is heard."""
    scene.killed()
    assert scene.reconcile() is Outcome.LOST
    scene.wait(1)
    assert scene.drain() is Outcome.DRAINED
    scene.undrain()
    assert scene.reconcile() is Outcome.ACKNOWLEDGED


def test_the_mark_of_our_prolog_on_a_node_whose_drain_was_lost(scene: Scene) -> None:
    """The verdict still said drain, so the prolog refused the job that came."""
    scene.killed()
    scene.ctld.start_job("n1")
    scene.ctld.mark("n1", "Prolog error")
    scene.ctld.end_job("n1")
    found = finish(scene.protocol.reconcile(prolog_refused=True))
    assert found.outcome is Outcome.LOST and found.marked
    assert finish(scene.protocol.drain("xid", WHY, prolog_refused=True)).outcome is Outcome.DRAINED


@pytest.mark.parametrize("row", TABLE)
def test_what_the_trail_and_the_log_say_of_it(scene: Scene, row: str, tmp_path: Path) -> None:
    """Of each row: "resumed by a person" stands where the look has found that, and nowhere else."""
    happens, outcome, _ = TABLE[row]
    courier = Courier(scene.protocol, clock=scene.clock.mono)
    before = courier.take()
    happens(scene)
    courier.reconcile()
    for _ in courier.turn():
        pass
    trail = Trail(str(tmp_path / "state"), str(tmp_path / "run"))
    transitions.slurm(trail, before, courier.take(), {})
    courier.close()
    told = [f"{e.what}: {e.detail}" for e in trail.read()]
    by_a_person = [line for line in told if line.startswith("resumed by a person")]
    assert bool(by_a_person) == (outcome is Outcome.ACKNOWLEDGED), told
    assert any("drain lost" in line and "what is still wrong drains again" in line for line in told) == (
        outcome is Outcome.LOST
    ), told


def test_a_begin_that_nobody_tells_leaves_the_question_open(scene: Scene) -> None:
    scene.killed()
    steps = scene.protocol.reconcile()
    while next(steps) != "ask":
        pass
    scene.ctld.away = True
    with pytest.raises(SlurmUnavailable):
        finish(steps)
    scene.ctld.away = False
    entry = scene.entry()
    assert entry is not None and entry.phase is Phase.DRAINED and entry.written
    assert scene.reconcile() is Outcome.LOST


def test_a_drain_by_hand_is_made_again_by_whoever_looks(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.drain(MANUAL) is Outcome.DRAINED
    first = scene.ctld.node("n1").reason
    scene.wait(1)
    scene.killed()
    assert scene.reconcile() is Outcome.DRAINED
    again = parse(scene.ctld.node("n1").reason)
    assert again is not None and again.text != first and (again.check, again.summary) == (MANUAL, WHY)


def test_a_drain_by_hand_is_kept_in_mind_while_a_hold_forbids_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.drain(MANUAL)
    scene.killed()
    scene.hold = "ann works here"
    assert scene.reconcile() is Outcome.BLOCKED
    entry = scene.entry()
    assert entry is not None and entry.manual and not scene.ctld.node("n1").drained
    scene.hold = ""
    assert scene.reconcile() is Outcome.DRAINED and scene.ctld.node("n1").drained


def test_lost_between_the_write_and_its_reading_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    steps = scene.protocol.drain("xid", WHY)
    while next(steps) != "read back":
        pass
    scene.killed()
    assert finish(steps).outcome is Outcome.FREE, "no reading has shown it, so nobody can have resumed it"
    assert scene.drain() is Outcome.DRAINED


def test_the_courier_says_lost_and_not_acknowledged(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    courier = Courier(scene.protocol, reconcile_seconds=30, clock=scene.clock.mono)
    courier.want(CourierOrder(kind="drain", check="xid", summary=WHY))
    for _ in courier.turn():
        pass
    assert courier.take().drained
    courier.want(CourierOrder())
    scene.wait(1)
    scene.killed()
    scene.clock.now += 40
    for _ in courier.turn():
        pass
    standing = courier.take()
    courier.close()
    assert (standing.drained, standing.acknowledged, standing.lost) == (False, 0, 1)


def test_a_resume_before_our_drain_was_read_back_acknowledges_nothing(tmp_path: Path) -> None:
    """Somebody resumes a whole partition in that moment: nobody has seen what the drain is for, and it is made again."""
    scene = Scene(tmp_path)
    scene.protocol.state.known = ("gpu_count/0000:1b:00.0#lost",)
    steps = scene.protocol.drain("gpu_count", WHY)
    for step in steps:
        if step == "read back":
            break
    scene.undrain()
    result = finish(steps)
    assert (result.outcome, result.known) == (Outcome.FREE, ())
    assert scene.drain() is Outcome.DRAINED
