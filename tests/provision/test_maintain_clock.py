"""Maintenance under a clock that is set: no time limit stops or comes early, and a window is kept or said to be lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.provision.maintain.maintenance_display import SilentDisplay
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork
from tests.provision.test_maintain_invariants import MINE, Driver, driver

DAY = 86400.0
YEAR = 365 * DAY


class Clock:
    """The time of day, which a test sets."""

    def __init__(self) -> None:
        self.wrong = 0.0


class Lines(SilentDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, true = Clock(), time.time
    monkeypatch.setattr(time, "time", lambda: true() + made.wrong)
    return made


@pytest.fixture
def played() -> Iterator[Driver]:
    with driver("24") as made:
        made.shown = Lines()
        yield made


def steps(played: Driver) -> dict[str, MaintenanceStep]:
    return {w.node: w.step for w in played.works()}


def lines(played: Driver) -> list[str]:
    assert isinstance(played.shown, Lines)
    return [line for line in played.shown.lines if "clock" in line]


def turn_until(played: Driver, what: Callable[[], object], seconds: float = 20.0) -> None:
    """Take turns, with nodes that come back from their reboots."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, (steps(played), lines(played))
        for name in MINE:
            played.world.event("node comes back", name)
        played.turn()


def turns(played: Driver, count: int) -> None:
    for _ in range(count):
        played.turn()


def finished(played: Driver) -> bool:
    return played.maintenance is not None and played.maintenance._finished()


SAID = {
    -YEAR: "the clock was set back by 365.0 days: the time limits of this run are not affected; check the clock: timedatectl",
    YEAR: "the clock was set forward by 365.0 days: the time limits of this run are not affected; check the clock: timedatectl",
}


@pytest.mark.parametrize("step", [-YEAR, YEAR])
def test_a_node_that_reboots_while_the_clock_is_set_neither_fails_nor_waits_for_a_year(
    played: Driver, clock: Clock, step: float
) -> None:
    played.begin(reboot=True, seconds=(0.3, 600.0))
    played.world.sick.add("n2")
    turn_until(played, lambda: MaintenanceStep.REBOOTING in steps(played).values())
    clock.wrong = step
    turns(played, 3)
    assert MaintenanceStep.FAILED not in steps(played).values(), "600 s have not passed"
    turn_until(played, lambda: finished(played))
    assert steps(played) == {n: MaintenanceStep.FAILED if n == "n2" else MaintenanceStep.DONE for n in MINE}
    assert lines(played) == [SAID[step]]


@pytest.mark.parametrize(
    ("step", "max_wait", "then"),
    [
        (-YEAR, 0.5, MaintenanceStep.RELEASED),
        (YEAR, 600.0, MaintenanceStep.WAITING),
        (-60.0, 600.0, MaintenanceStep.WAITING),
    ],
)
def test_a_busy_node_is_given_back_after_max_wait_whatever_the_clock_says(
    played: Driver, clock: Clock, step: float, max_wait: float, then: MaintenanceStep
) -> None:
    for name in MINE:
        played.world.start_job(name)
    played.begin(reboot=False, max_wait=max_wait)
    turn_until(played, lambda: steps(played)["n1"] is MaintenanceStep.WAITING)
    clock.wrong = step
    turns(played, 3)
    turn_until(played, lambda: steps(played)["n1"] is then)
    assert lines(played) == ([SAID[step]] if step in SAID else []), "less than munge bears is no line"


def test_a_clock_that_is_set_right_again_is_said_once(played: Driver, clock: Clock) -> None:
    played.world.start_job("n1")
    played.begin(reboot=False)
    for wrong in (0.0, -YEAR, -YEAR + 5.0, 0.0, 0.0):
        clock.wrong = wrong
        turns(played, 2)
    assert lines(played) == [SAID[-YEAR], "the clock agrees again with the time since this run began"]


@pytest.mark.parametrize("step", [-YEAR, YEAR])
@pytest.mark.parametrize("opens", [-60.0, 60.0])
def test_a_window_is_not_kept_by_a_clock_that_was_set(played: Driver, clock: Clock, step: float, opens: float) -> None:
    """Nodes in work are finished, the others stay in the queue, and the run says how to go on."""
    now = time.time()
    played.begin(reboot=False, seconds=(30.0, 30.0), opens=now + opens, window=now + 8 * 3600, settle_seconds=0.5)
    turns(played, 3)
    begun = [n for n, step in steps(played).items() if step is not MaintenanceStep.QUEUED]
    assert len(begun) == (2 if opens < 0 else 0)
    clock.wrong = step
    turn_until(played, lambda: finished(played))
    assert steps(played) == {n: MaintenanceStep.DONE if n in begun else MaintenanceStep.QUEUED for n in MINE}
    way = "back" if step < 0 else "forward"
    assert played.maintenance is not None
    assert played.maintenance.closed == f"the clock was set {way} by 365.0 days, so the window cannot be kept"


BEHIND = "the clock is 365.0 days behind this run's journal: time limits begin again now; set the clock right: timedatectl"


def test_a_run_that_is_resumed_a_year_before_it_was_killed_goes_on_at_once(played: Driver, clock: Clock) -> None:
    """One node waits for its job, one is verified: neither waits for a year, and each limit begins again."""
    played.begin(reboot=True, seconds=(0.5, 600.0), max_wait=0.5, settle_seconds=0.1)
    played.world.start_job("n1")
    played.world.sick.add("n2")
    turn_until(played, lambda: steps(played)["n2"] is MaintenanceStep.VERIFYING)
    played.drop()
    clock.wrong = -YEAR
    played.turn()
    assert steps(played)["n2"] is MaintenanceStep.VERIFYING, "its limit begins again"
    turn_until(played, lambda: finished(played))
    assert steps(played) == {
        "n1": MaintenanceStep.RELEASED,
        "n2": MaintenanceStep.FAILED,
        "n3": MaintenanceStep.DONE,
        "n4": MaintenanceStep.DONE,
    }
    assert lines(played) == [BEHIND]
    assert not any(played.world.ours(n) for n in MINE if n != "n2")


def test_a_drain_that_comes_back_is_lifted_again_by_a_clock_that_is_behind(played: Driver, clock: Clock) -> None:
    played.begin(reboot=False, seconds=(30.0, 30.0))
    for name in MINE[1:]:
        played.world.start_job(name)
    turn_until(played, lambda: steps(played)["n1"] is MaintenanceStep.DONE)
    text = next(w.text for w in played.works() if w.node == "n1")
    played.drop()
    clock.wrong = -YEAR
    played.turn()
    played.world.update("n1", "DRAIN", text)  # slurmctld was killed, and has forgotten that it was lifted
    turns(played, 3)
    assert not played.world.ours("n1")


@pytest.mark.parametrize(("asked", "left"), [(False, MaintenanceStep.QUEUED), (True, MaintenanceStep.DONE)])
def test_the_window_of_a_resumed_run_is_closed_until_a_person_names_one_by_this_clock(
    played: Driver, clock: Clock, asked: bool, left: MaintenanceStep
) -> None:
    now = time.time()
    played.begin(reboot=False, seconds=(30.0, 30.0), opens=now - 60, window=now + 3600, settle_seconds=0.5)
    turns(played, 2)
    played.drop()
    clock.wrong = -YEAR
    if asked:
        journal = played._journal()
        found = journal.run(played.name)
        journal.replan(found, replace(found.plan, opens=0.0, window=time.time() + 3600))
        played.window_asked = True
    turn_until(played, lambda: finished(played))
    assert set(steps(played).values()) == {MaintenanceStep.DONE, left}
    assert lines(played) == [BEHIND]
    closed = "the clock is 365.0 days behind this run's journal, so the window cannot be kept"
    assert played.maintenance is not None and played.maintenance.closed == ("" if asked else closed)


# -- the journal ---------------------------------------------------------------------------------------


def begun(journal: Journal, node: str) -> str:
    plan = MaintenancePlan(reason="new driver")
    return journal.begin(plan, [NodeWork(node=node, slurm=node)], site="site.toml", who="ann@adm1").id


def test_the_newest_run_is_the_last_that_was_begun(tmp_path: Path, clock: Clock) -> None:
    """--resume and --abort without a name must not take up an older run."""
    journal = Journal(str(tmp_path / "m.db"))
    first = begun(journal, "n1")
    clock.wrong = -YEAR
    second = begun(journal, "n2")
    third = begun(journal, "n3")
    assert [run.id for run in journal.runs()] == [third, second, first]
    assert journal.run().id == third
    journal.end(third, "ended")
    run = journal.run(third)
    assert run.ended >= run.began
    journal.close()


@pytest.mark.parametrize("wrong", [5 * YEAR, -56 * YEAR], ids=["five years ahead", "1970"])
def test_a_wrong_clock_does_not_make_the_journal_forget(tmp_path: Path, clock: Clock, wrong: float) -> None:
    """The reasons of nodes that a run has left drained are known by the journal only."""
    journal = Journal(str(tmp_path / "m.db"))
    for number in range(20):
        clock.wrong = wrong if 15 <= number < 18 else 0.0
        journal.end(begun(journal, f"n{number}"), "ended")
    assert len(journal.runs()) == 20
    journal.close()
