"""What the interleavings found, one by one, on the model of slurmctld: answers that are lost or late, and people in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from fairlead.daemon.slurmctld.courier import NO_CONF_SECONDS, NO_CONF_TRIES, Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.ledger import LATE_SECONDS, Ledger, Phase
from fairlead.drains.node_state import STALE_SECONDS, NodeDrainState
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import NoSlurmConf, SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import MANUAL
from tests.slurm import model

XID = CourierOrder(kind="drain", check="xid", summary="fallen off the bus")


class Late(model.Ctld):
    """``fate`` of the next write: answered, or sent and carried out only by ``arrive()``."""

    def __init__(self, release: str) -> None:
        super().__init__(release, ("n1",))
        self.fate = ""
        self.sent: list[Callable[[], None]] = []

    def _later(self, act: Callable[[], None]) -> None:
        fate, self.fate = self.fate, ""
        if not fate:
            act()
            return
        self.sent.append(act)
        raise SlurmUnavailable("scontrol gave no answer")

    def drain(self, name: str, reason: str) -> None:
        self._later(lambda: self.update(name, "DRAIN", reason))

    def resume(self, name: str) -> None:
        self._later(lambda: self.update(name, "UNDRAIN"))

    def arrive(self) -> None:
        self.sent.pop(0)()


class Site:
    def __init__(self, release: str, folder: Path) -> None:
        self.ctld = Late(release)
        self.folder = folder
        self.now = 1000.0

    def protocol(self) -> DrainProtocol:
        """As a new process has it."""
        ledger = Ledger(str(self.folder), str(self.folder), node="n1")
        clock = lambda: self.now  # noqa: E731
        return DrainProtocol(NodeDrainState(self.ctld, ledger, "n1", Rules(budget_percent=100), wall=clock, clock=clock))

    def courier(self) -> Courier:
        return Courier(self.protocol(), clock=lambda: self.now)

    def phase(self) -> Phase | None:
        entry = self.protocol().ledger.load()
        return entry.phase if entry else None


@pytest.fixture(params=["22", "24", "26"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(request.param, tmp_path)


def turn(courier: Courier) -> None:
    for _ in courier.turn():
        pass


def reason(site: Site) -> str:
    return site.ctld.node("n1").reason


def test_a_withdrawn_drain_that_arrives_late_is_known_and_lifted(site: Site) -> None:
    site.ctld.fate = "late"
    with pytest.raises(SlurmUnavailable):
        finish(site.protocol().drain("xid", "gone"))
    assert finish(site.protocol().reconcile()).outcome is Outcome.FREE  # withdrawn: well again
    site.now += LATE_SECONDS - 1
    site.ctld.arrive()
    assert finish(site.protocol().reconcile()).outcome is Outcome.DRAINED
    assert finish(site.protocol().resume()).outcome is Outcome.RESUMED
    assert not site.ctld.node("n1").drained


def test_another_check_drains_with_its_own_words(site: Site) -> None:
    """An intent of before that may yet arrive stays ours, and the newest words are written."""
    site.ctld.fate = "late"
    with pytest.raises(SlurmUnavailable):
        finish(site.protocol().drain("xid", "gone"))
    assert finish(site.protocol().drain("gpu_count", "7 of 8 GPUs")).outcome is Outcome.DRAINED
    assert reason(site).startswith("fairlead:gpu_count:")
    site.ctld.arrive()
    assert reason(site).startswith("fairlead:xid:")
    assert finish(site.protocol().reconcile()).outcome is Outcome.DRAINED
    assert finish(site.protocol().resume()).outcome is Outcome.RESUMED


def test_our_own_late_resume_is_no_acknowledgement(site: Site) -> None:
    finish(site.protocol().drain("xid", "gone"))
    site.ctld.fate = "late"
    with pytest.raises(SlurmUnavailable):
        finish(site.protocol().resume())
    assert finish(site.protocol().reconcile()).outcome is Outcome.DRAINED  # and meanwhile it has broken again
    site.ctld.arrive()
    assert finish(site.protocol().reconcile()).outcome is Outcome.RESUMED
    finish(site.protocol().drain("xid", "gone again"))
    site.now += LATE_SECONDS
    site.ctld.update("n1", "UNDRAIN")
    assert finish(site.protocol().reconcile()).outcome is Outcome.ACKNOWLEDGED


@pytest.mark.parametrize("alive", [True, False])
def test_a_takeover_is_remembered(site: Site, alive: bool) -> None:
    courier = site.courier()
    courier.want(XID)
    turn(courier)
    assert courier.take().drained
    site.ctld.update("n1", "DRAIN", "ticket 12")
    courier.want(CourierOrder())
    site.now += 100
    turn(courier)
    assert not courier.take().drained and site.phase() is Phase.TAKEN
    if not alive:
        courier = site.courier()
    site.ctld.update("n1", "UNDRAIN")
    courier.want(XID)  # the evidence still stands
    site.now += 100
    turn(courier)
    assert courier.take().acknowledged == 1
    assert not site.ctld.node("n1").drained and site.phase() is None


def test_an_order_from_before_does_not_lift_what_a_person_has_drained_since(site: Site) -> None:
    courier = site.courier()
    courier.want(XID)
    turn(courier)
    courier.want(CourierOrder(kind="resume"))
    assert finish(site.protocol().drain(MANUAL, "riser 2")).outcome is Outcome.DRAINED
    turn(courier)
    assert "riser 2" in reason(site) and courier.take().manual


def test_words_of_slurmctld_in_place_of_ours(site: Site) -> None:
    """slurmd registers with a GPU less: since 23.11 or so slurmctld replaces the reason of the drained node."""
    finish(site.protocol().drain("xid", "gone"))
    site.ctld.register("n1", valid=False)
    assert finish(site.protocol().reconcile()).outcome is Outcome.DRAINED
    assert "registers with less" in finish(site.protocol().resume()).detail
    site.ctld.register("n1")
    result = finish(site.protocol().resume())
    if site.ctld.release == "22":
        assert result.outcome is Outcome.RESUMED
        return
    assert result.outcome is Outcome.BLOCKED and "a person has to resume it" in result.detail
    assert finish(site.protocol().drain("xid", "gone")).outcome is Outcome.DRAINED
    assert reason(site) == model.REGISTRATION
    assert finish(site.protocol().resume(by_hand=True)).outcome is Outcome.RESUMED
    assert finish(site.protocol().reconcile()).outcome is Outcome.ACKNOWLEDGED


def test_words_of_slurmctld_in_place_of_a_persons(site: Site) -> None:
    finish(site.protocol().drain("xid", "gone"))
    site.ctld.update("n1", "DRAIN", "ticket 12")
    assert finish(site.protocol().reconcile()).outcome is Outcome.FOREIGN
    site.ctld.register("n1", valid=False)
    site.ctld.register("n1")
    assert finish(site.protocol().reconcile()).outcome is Outcome.FOREIGN
    assert finish(site.protocol().resume()).outcome is Outcome.FOREIGN
    assert site.ctld.node("n1").drained


@pytest.mark.parametrize("what", ["drain", "resume", "take over"])
def test_nothing_is_written_on_an_old_reading(site: Site, what: str) -> None:
    if what != "drain":
        finish(site.protocol().drain("xid", "gone"))
    protocol = site.protocol()
    steps = {
        "drain": lambda: protocol.drain("xid", "gone"),
        "resume": protocol.resume,
        "take over": lambda: protocol.drain(MANUAL, "riser 2"),
    }[what]()
    for step in steps:
        if step == "write":
            break
    site.now += STALE_SECONDS + 0.1
    site.ctld.update("n1", "DRAIN", "ann: riser swap")
    with pytest.raises(SlurmUnavailable, match="went by after the reading"):
        finish(steps)
    assert reason(site) == "ann: riser swap"
    assert finish(site.protocol().reconcile()).outcome in (Outcome.FOREIGN, Outcome.FREE)
    entry = site.protocol().ledger.load()
    assert entry is None or not entry.manual, "nobody has drained it by hand through us"


def test_no_words_are_put_back_over_a_persons_state(site: Site) -> None:
    finish(site.protocol().drain("xid", "gone"))
    steps = site.protocol().resume()
    for step in steps:
        if step == "read back":
            break
    site.ctld.update("n1", "FAIL", "ann: riser swap")
    finish(steps)
    assert site.ctld.node("n1").states == {"IDLE", "FAIL"} and reason(site) == "ann: riser swap"


def test_a_dry_run_says_what_would_be_refused(site: Site) -> None:
    def refused(*, lift: bool) -> str:
        return site.protocol().state.foresee(site.ctld.node("n1"), lift=lift)

    assert refused(lift=False) == "" and "no drain of fairlead" in refused(lift=True)
    finish(site.protocol().drain("xid", "gone"))
    assert refused(lift=False) == refused(lift=True) == ""
    site.ctld.update("n1", "DRAIN", "ann: riser swap")
    for lift in (False, True):
        assert refused(lift=lift).startswith("foreign: ") and "riser swap" in refused(lift=lift)
    assert finish(site.protocol().resume(by_hand=True)).outcome is Outcome.FOREIGN
    assert reason(site) == "ann: riser swap"


def test_without_slurm_conf_an_order_is_tried_again_at_once_for_a_minute(site: Site) -> None:
    """A configless node has the file when slurmd has started, and a job may come a moment later. A file that never comes costs
    no more than any silence."""
    courier = site.courier()
    courier.want(XID)
    answer, site.ctld.nodes = site.ctld.nodes, _no_conf  # type: ignore[method-assign]
    waits = []
    for _ in range(NO_CONF_TRIES + 8):
        turn(courier)
        waits.append(courier.due() - site.now)
        site.now = courier.due()
    assert set(waits[:NO_CONF_TRIES]) == {NO_CONF_SECONDS}
    assert waits[-1] > 10 * NO_CONF_SECONDS
    site.ctld.nodes = answer  # type: ignore[method-assign]
    turn(courier)
    assert courier.take().drained and reason(site).startswith("fairlead:xid:")


def _no_conf(*_: object) -> NoReturn:
    raise NoSlurmConf("sinfo: could not establish a configuration source")
