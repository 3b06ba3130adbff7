"""Two maintenance runs of two admin hosts over one partition, in any interleaving and killed at any write: the floor that both
have holds whenever a node is changed, and both come to their end.

The engine and slurmctld's model are those of test_maintain_invariants.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.provision.maintain import begin_limits, drain_room, maintenance_steps
from fairlead.provision.maintain.maintenance_steps import ApplyOutcome, MaintenancePlan, MaintenanceStep, NodeWork
from tests.provision.test_maintain_invariants import Driver, World, hold
from tests.slurm.model import Ctld

FLOOR = 4  # of five nodes
OWN = (("n1", "n2"), ("n3", "n4"))


class Shared(World):
    """``meet``: the other run takes a whole turn between the next drain's reading and its writing. turning: whose turn it is."""

    drivers: Sequence[Own] = ()
    turning: Driver | None = None
    meet = False
    meetings = 0
    undone = 0

    def drain(self, name: str, reason: str) -> None:
        self._answer()
        hold(self.free(name) or self.ours(name), f"drained {name}, which was {self.records[name]}")
        if self.meet:
            self.meet, self.meetings, mine = False, self.meetings + 1, self.turning
            next(driver for driver in self.drivers if driver is not mine).turn()
            self.turning = mine
        self.texts.add(reason)
        self.acting(lambda: Ctld.drain(self, name, reason))
        self.reasons_seen.add(reason)

    def resume(self, name: str) -> None:
        self.undone += name not in self.applied
        super().resume(name)

    def apply(self, nodes: Sequence[str], *, check: bool) -> dict[str, ApplyOutcome]:
        held = [name for name, record in self.records.items() if "DRAIN" in record.flags]
        hold(check or len(held) <= len(self.records) - FLOOR, f"{nodes} are changed while {held} are drained")
        return super().apply(nodes, check=check)


class Own(Driver):
    """A run over its own two nodes, of its own admin host."""

    def begin_own(self, names: Sequence[str]) -> None:
        plan = MaintenancePlan(reason="new driver", batch=2, floors={"main": FLOOR}, settle_seconds=0.0)
        self.name = self._journal().begin(plan, [NodeWork(node=n, slurm=n) for n in names], site="", who="").id

    def turn(self) -> None:
        self.world.turning = self  # type: ignore[attr-defined]
        super().turn()

    def ended(self) -> bool:
        return self.maintenance is not None and self.maintenance._finished()


@contextmanager
def both() -> Iterator[tuple[Shared, list[Own]]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_steps, "LATE_SECONDS", 0.1)
        patch.setattr(begin_limits, "CONTEST_SECONDS", 0.05)
        patch.setattr(begin_limits, "ANSWER_SECONDS", 0.1)
        patch.setattr(drain_room, "AGAIN_SECONDS", (0.0, 0.01))
        world, made = Shared("24"), []
        for number, names in enumerate(OWN):
            (Path(folder) / str(number)).mkdir()
            made.append(Own(world, Path(folder) / str(number)))
            made[-1].begin_own(names)
        world.drivers = made
        try:
            yield world, made
        finally:
            for driver in made:
                driver.drop()
                for journal in driver.journals:
                    journal.close()


def to_the_end(world: Shared, drivers: list[Own]) -> None:
    for _ in range(2000):
        for driver in drivers:
            driver.turn()
        world.event("time goes by", "n5")
        if all(driver.ended() for driver in drivers):
            break
    works = [work for driver in drivers for work in driver.works()]
    assert {w.node: w.step for w in works} == {n: MaintenanceStep.DONE for names in OWN for n in names}
    assert not any(world.ours(name) for name in world.records)


def test_a_drain_that_was_undone_and_stands_again_is_gone_on_from() -> None:
    """slurmctld was killed before it had saved the undo: its node is in the queue, and our own drain stands."""
    with both() as (world, drivers):
        for driver in drivers:
            driver.turn()
        world.meet = True
        for _ in range(4):
            for driver in drivers:
                driver.turn()
            queued = [w for driver in drivers for w in driver.works() if w.step is MaintenanceStep.QUEUED and w.text]
            if queued:
                break
        world.update(queued[0].slurm, "DRAIN", queued[0].text)
        for driver in drivers:
            if any(name == queued[0].node for name in OWN[drivers.index(driver)]):
                driver.maintenance._begin(driver.maintenance._controller.listing())  # type: ignore[union-attr]
        to_the_end(world, drivers)


#: Whose turn, whether the other one comes in between its reading and its writing, and after how many writes a kill comes.
turns = st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from([0, 0, 0, 1, 2, 4])), min_size=2, max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=turns)
def test_in_any_interleaving_the_floor_holds_and_both_end(script: list[tuple[int, bool, int]]) -> None:
    with both() as (world, drivers):
        for who, meets, kill in script:
            world.meet = meets
            if kill:
                world.countdown, world.late = kill, meets
            drivers[who].turn()
            world.passed(1)
        world.meet, world.countdown = False, -1
        to_the_end(world, drivers)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killed_at_every_write_while_both_have_drained(late: bool) -> None:
    kills = 0
    for at in range(1, 200):
        with both() as (world, drivers):
            for driver in drivers:
                driver.turn()
            world.meet = True
            world.countdown, world.late = at, late
            for _ in range(3):
                for driver in drivers:
                    driver.turn()
            reached = world.countdown <= 0
            world.countdown, world.meet = -1, False
            to_the_end(world, drivers)
            assert world.meetings == 1
        if not reached:
            assert world.undone >= 1
            break
        kills += 1
    assert 10 <= kills < 199
