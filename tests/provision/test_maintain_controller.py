"""What maintenance asks of slurmctld for one change of a node, in which order, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fairlead.errors import SlurmError
from fairlead.policy.ownership import build
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, Move, NodeWork
from fairlead.slurm.client import JobOn, NodeState
from fairlead.slurm.scontrol import Scontrol
from tests.slurm.model import Ctld

TEXT, MARK = build("maintain", "aaaaaaaaaaaa", "new driver").text, build("maintain", "aaaaaaaaaaaa", "new driver; FAILED").text
WORK = NodeWork(node="n1", slurm="n1", text=TEXT, mark=MARK, detail="why")
PLAN = MaintenancePlan(reason="new driver")


class AskedCtld(Ctld):
    """A slurmctld that remembers what it was asked by root."""

    def __init__(self) -> None:
        super().__init__("24", ("n1",))
        self.asked: list[str] = []

    def nodes(self, names: Any = ()) -> tuple[NodeState, ...]:
        self.asked.append("node")
        return super().nodes(names)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        self.asked.append("jobs")
        return super().jobs_on(name)

    def update(self, name: str, state: str = "", reason: str = "", user: str = "root") -> None:
        if user == "root":
            self.asked.append(state or "reason")
        super().update(name, state, reason, user)


Change = Callable[[Controller], Move | None]


def at(step: MaintenanceStep) -> NodeWork:
    return replace(WORK, step=step)


def drain(controller: Controller) -> Move | None:
    return controller.drain(at(MaintenanceStep.DRAINING), "")[0]


def lift(controller: Controller) -> Move | None:
    return controller.lift(at(MaintenanceStep.LIFTING), PLAN)


def mark(controller: Controller) -> Move | None:
    return controller.mark(at(MaintenanceStep.MARKING))


def step(move: Move | None) -> MaintenanceStep | None:
    return move.step if move is not None else None


@pytest.mark.parametrize(
    ("change", "before", "asked", "then"),
    [
        (drain, "", ["node", "DRAIN", "jobs", "node"], MaintenanceStep.WAITING),
        (lift, TEXT, ["node", "UNDRAIN", "jobs", "node"], MaintenanceStep.RELEASED),
        (mark, TEXT, ["node", "reason"], MaintenanceStep.FAILED),
    ],
)
def test_each_change_is_read_written_and_read_back(change: Change, before: str, asked: list[str], then: MaintenanceStep) -> None:
    ctld = AskedCtld()
    if before:
        Ctld.update(ctld, "n1", "DRAIN", before)
    assert step(change(Controller(cast(Scontrol, ctld)))) is then
    assert ctld.asked == asked


@pytest.mark.parametrize(
    ("change", "then"),
    [(drain, MaintenanceStep.SKIPPED), (lift, MaintenanceStep.TAKEN), (mark, MaintenanceStep.TAKEN)],
)
def test_a_persons_drain_is_read_and_never_written_on(change: Change, then: MaintenanceStep) -> None:
    ctld = AskedCtld()
    ctld.update("n1", "DRAIN", "psu replaced", user="ann")
    assert step(change(Controller(cast(Scontrol, ctld)))) is then
    assert ctld.asked == ["node"] and ctld.records["n1"].reason == "psu replaced"


@pytest.mark.parametrize(("drained", "then"), [(0.0, MaintenanceStep.SKIPPED), (1.0, MaintenanceStep.TAKEN)])
def test_a_drain_that_slurmctld_refuses_ends_the_node(drained: float, then: MaintenanceStep) -> None:
    class Refusing(AskedCtld):
        def drain(self, name: str, reason: str) -> None:
            raise SlurmError("slurm_update error: Access/permission denied")

    controller = Controller(cast(Scontrol, Refusing()))
    move, _ = controller.drain(replace(at(MaintenanceStep.DRAINING), drained=drained, kept=True), "")
    assert move == Move(then, "not touched: slurm_update error: Access/permission denied")


def test_a_drain_that_a_person_has_replaced_at_once_is_seen_in_the_second_reading() -> None:
    class Raced(AskedCtld):
        def drain(self, name: str, reason: str) -> None:
            super().drain(name, reason)
            self.update(name, "DRAIN", "psu replaced", user="ann")

    ctld = Raced()
    assert step(drain(Controller(cast(Scontrol, ctld)))) is MaintenanceStep.TAKEN
    assert ctld.records["n1"].reason == "psu replaced"
