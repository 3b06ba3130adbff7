"""Maintenance against a model of slurmctld, with people, jobs, faults and kills at any point: what must hold whatever happens.

The engine, its journal and its steps are the real ones; slurmctld is the model that tests/slurm/test_model.py holds to the real
ones, and the machines are three lines of state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.errors import SlurmError
from fairlead.policy.ownership import strip_suffixes
from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_display import SilentDisplay
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_loop import Maintenance
from fairlead.provision.maintain.maintenance_steps import (
    NEXT,
    ApplyOutcome,
    MaintenancePlan,
    MaintenanceStep,
    NodeReading,
    NodeWork,
)
from fairlead.slurm.scontrol import Scontrol
from tests.slurm.model import Ctld

NODES = ("n1", "n2", "n3", "n4", "n5")
MINE = NODES[:4]
FLOOR, BATCH = 2, 2


class Killed(BaseException):
    """SIGKILL: nothing of ours catches it."""


class Violation(BaseException):
    """A property that does not hold."""


def hold(true: bool, said: str) -> None:
    if not true:
        raise Violation(said)


@dataclass
class World(Ctld):
    """slurmctld, the machines, and the watch over both. ``countdown``: so many writes, then the kill; ``late``: after it."""

    release: str

    def __init__(self, release: str) -> None:
        super().__init__(release, NODES)
        self.boots = dict.fromkeys(NODES, 1)
        self.up = dict.fromkeys(NODES, True)
        self.sick: set[str] = set()
        self.kills = 0
        self.applied: set[str] = set()
        self.texts: set[str] = set()
        self.reasons_seen: set[str] = set()
        self.countdown, self.late = -1, False

    def acting(self, act: Callable[[], Any]) -> Any:
        """A write of any kind, or the death right before or after it."""
        self.countdown -= 1
        if self.countdown == 0 and not self.late:
            raise Killed
        done = act()
        if self.countdown == 0:
            raise Killed
        return done

    def ours(self, name: str) -> bool:
        n = self.records[name]
        return "DRAIN" in n.flags and strip_suffixes(n.reason or "") in self.texts

    def unheard(self, name: str) -> bool:
        """Resumed, and slurmctld has not heard from it since (_require_node_reg): until whatever comes next."""
        return "NOT_RESPONDING" in self.records[name].flags

    def free(self, name: str) -> bool:
        n = self.records[name]
        return n.base in ("IDLE", "ALLOCATED") and not n.flags & {"DRAIN", "FAIL"}

    # -- SlurmClient, watched ----------------------------------------------------------------------------

    def drain(self, name: str, reason: str) -> None:
        self._answer()
        hold(self.free(name) or self.ours(name), f"drained {name}, which was {self.records[name]}")
        if (
            self.free(name) and reason not in self.reasons_seen
        ):  # one that slurmctld has lost is drained again, whatever the others do
            left = sum(self.free(n) and not self.unheard(n) for n in NODES if n != name)
            hold(left >= FLOOR, f"{name} goes below the floor")
            working = [n for n in NODES if self.ours(n) and "FAILED" not in (self.records[n].reason or "")]
            # A killed slurmctld may bring back the drain of a node that the run has ended with: not in work, but it looks so.
            hold(self.kills > 0 or len(working) < BATCH, f"{name} is more than the batch")
        self.texts.add(reason)
        self.acting(lambda: super(World, self).drain(name, reason))
        self.reasons_seen.add(reason)

    def update_reason(self, name: str, reason: str) -> None:
        self._answer()
        hold(self.ours(name), f"another reason for {name}, which was {self.records[name]}")
        self.texts.add(reason)
        self.acting(lambda: super(World, self).update_reason(name, reason))

    def resume(self, name: str) -> None:
        self._answer()
        hold(self.ours(name), f"resumed {name}, which was {self.records[name]}")
        self.acting(lambda: super(World, self).resume(name))
        self.records[name].flags.add("NOT_RESPONDING")

    def resume_down(self, name: str) -> None:
        self._answer()
        hold(self.ours(name), f"brought back {name}, which was {self.records[name]}")
        self.acting(lambda: super(World, self).resume_down(name))
        self.records[name].flags.add("NOT_RESPONDING")

    def queue(self, *words: str) -> str:
        self._answer()
        return "".join(f"{i}|R|N/A|{name}\n" for i, (name, n) in enumerate(self.records.items()) if n.jobs)

    def ask(self, command: Sequence[str]) -> str:
        self._answer()
        name = command[-1]
        return f"NodeName={name} SlurmdStartTime={self.boots[name] if self.up[name] else 0}"

    # -- NodeSide ------------------------------------------------------------------------------------------

    def read(self, node: str) -> NodeReading:
        if not self.up[node]:
            return NodeReading(trouble="No route to host")
        bad = ("gpu_count: 7 of 8",) if node in self.sick else ()
        return NodeReading(boot=str(self.boots[node]), machine="s1", verdict="ok", age_seconds=0.0, bad=bad, worse=bad)

    def reboot(self, node: str, boot: str) -> str:
        hold(self.ours(node) and not self.records[node].jobs, f"rebooted {node}, which was {self.records[node]}")
        if self.up[node] and boot == str(self.boots[node]):
            self.boots[node] += 1
            self.up[node] = False
        return ""

    def apply(self, nodes: Sequence[str], *, check: bool) -> dict[str, ApplyOutcome]:
        for node in () if check else nodes:
            hold(self.ours(node) and not self.records[node].jobs, f"changed {node}, which was {self.records[node]}")
            self.applied.add(node)
        return {n: ApplyOutcome(changed=() if not check or n in self.applied else ("numa_balancing: is 1",)) for n in nodes}

    def forget(self, node: str) -> None:
        return None

    # -- people, jobs, faults --------------------------------------------------------------------------------

    def event(self, what: str, name: str) -> None:
        n = self.records[name]
        self.passed(3)
        for record in self.records.values():
            record.flags.discard("NOT_RESPONDING")
        if what == "admin drains":
            self.update(name, "DRAIN", "psu replaced", user="ann")
        elif what == "admin resumes" and n.flags & {"DRAIN"}:
            with suppress(SlurmError):
                self.update(name, "UNDRAIN")
        elif what == "job starts":
            self.start_job(name)
        elif what == "job ends":
            self.end_job(name)
        elif what == "node is silent" and not self.up[name]:
            self.silent(name)
        elif what == "node comes back" and not self.up[name]:
            self.up[name] = True
            self.register(name, booted=True)
            if n.base == "DOWN":  # ReturnToService=2
                n.base = "IDLE"
        elif what == "node falls sick":
            self.sick.add(name)
        elif what == "slurmctld is killed":
            self.kills += 1
            self.killed()
            for other in NODES:
                if self.up[other]:
                    self.register(other)


class Watched(Journal):
    """A journal whose writes may be the last."""

    world: World

    def _write(self, act: Callable[[], Any]) -> Any:
        return self.world.acting(lambda: super(Watched, self)._write(act))


EVENTS = (
    *(
        "admin drains",
        "admin resumes",
        "job starts",
        "job ends",
        "job ends",
        "node is silent",
        "node comes back",
        "node comes back",
    ),
    *("node falls sick", "slurmctld is killed", "killed", "killed late", "aborted"),
)
Script = list[tuple[str, int, int]]
scripts = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 4), st.integers(1, 6)), max_size=24)


@dataclass
class Driver:
    """Whoever starts the run again after each kill."""

    world: World
    folder: Path
    name: str = ""
    aborting: bool = False
    maintenance: Maintenance | None = None
    journals: list[Journal] = field(default_factory=list)
    shown: SilentDisplay = field(default_factory=SilentDisplay)
    window_asked: bool = False

    def begin(self, *, reboot: bool, seconds: tuple[float, float] = (0.05, 0.2), **more: float) -> None:
        """``seconds``: how long a node may take to be well, and to come back; time passes here as on the machine. ``more``: other
        limits of the plan."""
        plan = MaintenancePlan(
            reason="new driver", batch=BATCH, floors={"main": FLOOR}, reboot=reboot, max_failed=2, settle_seconds=0.0
        )
        plan = replace(plan, verify_seconds=seconds[0], reboot_seconds=seconds[1], **more)
        self.name = self._journal().begin(plan, [NodeWork(node=n, slurm=n) for n in MINE], site="", who="").id

    def _journal(self) -> Journal:
        journal = Watched.__new__(Watched)
        journal.world = self.world
        journal.__init__(str(self.folder / "m.db"))  # type: ignore[misc]
        self.journals.append(journal)
        return journal

    def turn(self) -> None:
        if self.maintenance is None:
            journal = self._journal()
            controller = Controller(cast(Scontrol, self.world))
            m = Maintenance(
                journal.run(self.name),
                journal,
                controller,
                self.world,
                budgets={},
                shown=self.shown,
                aborting=self.aborting,
                window_asked=self.window_asked,
                poll_seconds=0.0,
            )
            self.maintenance = m
            self._alive(m._take_up)
        elif not self._alive(self.maintenance._turn):
            return
        if self.maintenance is not None:
            wait(self.maintenance._flying)
            for future in self.maintenance._flying:
                error = future.exception()
                if isinstance(error, Violation):
                    raise error

    def _alive(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Killed:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        if self.maintenance is not None:
            self.maintenance._pool.shutdown(wait=True)
        self.maintenance = None

    def works(self) -> tuple[NodeWork, ...]:
        return self._journal().run(self.name).works


@contextmanager
def driver(release: str) -> Iterator[Driver]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance_steps, "LATE_SECONDS", 0.1)  # the model has no late answers
        made = Driver(World(release), Path(folder))
        try:
            yield made
        finally:
            made.drop()
            for journal in made.journals:
                journal.close()


def play(release: str, script: Script, *, reboot: bool) -> None:
    with driver(release) as d:
        world = d.world
        d.begin(reboot=reboot)
        for what, node, count in script:
            if what.startswith("killed"):
                world.countdown, world.late = count, what == "killed late"
            elif what == "aborted":
                d.drop()
                d.aborting = True
            else:
                world.event(what, NODES[node])
            for _ in range(count):
                d.turn()
        world.countdown = -1
        for turn in range(400):  # nothing disturbs any more: jobs end, nodes come back
            for name in NODES:
                world.event("job ends", name)
                world.event("node comes back", name)
            d.turn()
            if d.maintenance is not None and d.maintenance._finished():
                break
            if turn == 200:
                d.drop()  # people hold too many nodes: a run waits for them, or is aborted
                d.aborting = True
        for work in d.works():
            ended(world, work, reboot=reboot, aborted=d.aborting)


def ended(world: World, work: NodeWork, *, reboot: bool, aborted: bool) -> None:
    stands = world.ours(work.node)
    record = world.records[work.node]
    hold(work.ended > 0, f"{work} has not ended")
    # A slurmctld that was killed may forget a person's last word too: then ours stands again, and is left to people.
    may = work.step is MaintenanceStep.FAILED or (work.step is MaintenanceStep.TAKEN and world.kills > 0)
    hold(stands <= may, f"{work.node} is {work.step}, and our drain stands")
    if work.step is MaintenanceStep.DONE:
        hold(work.node in world.applied, f"{work.node} is done, and nothing was applied")
        hold(not reboot or bool(work.boot_after) or aborted, f"{work.node} is done, and was not rebooted")
        hold(work.node not in world.sick or record.base != "DOWN", f"{work.node} is sick and done")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(release=st.sampled_from(["22", "24", "26"]), script=scripts, reboot=st.booleans())
def test_what_must_hold_does(release: str, script: Script, reboot: bool) -> None:
    play(release, script, reboot=reboot)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(release=st.sampled_from(["22", "24", "26"]), script=scripts, reboot=st.booleans())
def test_what_must_hold_does_for_long(release: str, script: Script, reboot: bool) -> None:
    play(release, script, reboot=reboot)


@pytest.mark.parametrize(
    ("reboot", "late"),
    [
        pytest.param(True, False, id="reboot-before"),
        pytest.param(False, True, id="no reboot-after"),
        pytest.param(True, True, id="reboot-after", marks=pytest.mark.slow),
        pytest.param(False, False, id="no reboot-before", marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_write(reboot: bool, late: bool) -> None:
    """Of the journal and of Slurm: the run that is driven again comes to the same end."""
    kills = 0
    for at in range(1, 200):
        with driver("24") as d:
            d.begin(reboot=reboot, seconds=(60.0, 60.0))
            d.world.countdown, d.world.late = at, late
            for _ in range(300):
                for name in MINE:
                    d.world.event("node comes back", name)
                d.turn()
                if d.maintenance is not None and d.maintenance._finished():
                    break
            works = d.works()
            assert {w.node: w.step for w in works} == dict.fromkeys(MINE, MaintenanceStep.DONE), at
            assert not any(d.world.ours(n) for n in NODES)
            assert all((d.world.boots[n] == 2) is reboot for n in MINE)
            if d.world.countdown > 0:
                break
            kills += 1
    assert 36 <= kills < 199


def test_every_step_leads_to_an_end() -> None:
    for step in MaintenanceStep:
        reached, todo = {step}, [step]
        while todo:
            for after in NEXT[todo.pop()]:
                if after not in reached:
                    reached.add(after)
                    todo.append(after)
        assert any(not NEXT[s] for s in reached)
    with pytest.raises(ValueError, match="does not follow"):
        NodeWork(node="n1", slurm="n1").at(MaintenanceStep.DONE, 1.0)
