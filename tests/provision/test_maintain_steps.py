"""One node's way through maintenance, and which nodes may begin: tables."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fairlead.errors import UsageError
from fairlead.provision.maintain import maintenance_steps, node_verification
from fairlead.provision.maintain.begin_limits import Budget, NodeAvailability, batch_of, choose, floor_of, overshoot
from fairlead.provision.maintain.maintenance_plan import floors
from fairlead.provision.maintain.maintenance_report import node_report
from fairlead.provision.maintain.maintenance_steps import (
    ApplyOutcome,
    DrainOwner,
    MaintenancePlan,
    MaintenanceStep,
    Move,
    NodeInSlurm,
    NodeReading,
    NodeWork,
)

PLAN = MaintenancePlan(reason="new driver")
WORK = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.WAITING, since=100.0, began=90.0, text="ours", drained=95.0)
OURS, FREE = NodeInSlurm(hand=DrainOwner.OURS), NodeInSlurm(hand=DrainOwner.FREE)
OTHER = NodeInSlurm(hand=DrainOwner.OTHER, who="idle+drain by ann: psu")
COVERED = NodeInSlurm(hand=DrainOwner.COVERED, who="idle+drain by slurm: gres/gpu count")


REBOOTED_ONCE = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.VERIFYING, boot_before="a", boot_after="b")


def step(move: Move | None) -> MaintenanceStep | None:
    return move.step if move else None


@pytest.mark.parametrize(
    ("seen", "adopt", "again", "then"),
    [
        (FREE, False, False, None),
        (OURS, False, False, MaintenanceStep.WAITING),
        (OTHER, False, False, MaintenanceStep.SKIPPED),
        (OTHER, True, False, None),
        (OTHER, False, True, MaintenanceStep.TAKEN),
        (COVERED, False, False, MaintenanceStep.SKIPPED),
        (NodeInSlurm(hand=DrainOwner.FREE, off="powering up"), False, False, MaintenanceStep.SKIPPED),
        (NodeInSlurm(hand=DrainOwner.FREE, off="not registered yet"), False, True, MaintenanceStep.DRAINING),
    ],
)
def test_before_the_drain(seen: NodeInSlurm, adopt: bool, again: bool, then: MaintenanceStep | None) -> None:
    work = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.DRAINING, drained=95.0 if again else 0.0)
    assert step(maintenance_steps.before_drain(work, seen, adopt=adopt)) is then


@pytest.mark.parametrize(
    ("seen", "now", "aborting", "then"),
    [
        (OURS, 110.0, False, MaintenanceStep.APPLYING),
        (OURS, 101.0, False, None),  # not settled yet
        (NodeInSlurm(hand=DrainOwner.OURS, jobs=1), 110.0, False, None),
        (NodeInSlurm(hand=DrainOwner.OURS, jobs=1), 200.0, False, MaintenanceStep.LIFTING),  # --max-wait
        (OURS, 110.0, True, MaintenanceStep.LIFTING),
        (OTHER, 110.0, False, MaintenanceStep.TAKEN),
        (COVERED, 110.0, False, MaintenanceStep.FAILED),
        (FREE, 110.0, False, MaintenanceStep.TAKEN),
        (NodeInSlurm(hand=DrainOwner.FREE, lost=True), 110.0, False, MaintenanceStep.DRAINING),
    ],
)
def test_waiting_for_jobs(seen: NodeInSlurm, now: float, aborting: bool, then: MaintenanceStep | None) -> None:
    assert step(maintenance_steps.waiting(WORK, seen, now, MaintenancePlan(reason="r", max_wait=60.0), aborting=aborting)) is then


REBOOTED = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.REBOOTING, since=100.0, boot_before="a", machine="serial 1")


@pytest.mark.parametrize(
    ("reading", "now", "then", "why"),
    [
        (NodeReading(boot="b", machine="serial 1"), 110.0, MaintenanceStep.VERIFYING, "back"),
        (NodeReading(boot="a", machine="serial 1"), 110.0, None, ""),
        (NodeReading(trouble="No route to host"), 110.0, None, ""),
        (
            NodeReading(trouble="No route to host"),
            3000.0,
            MaintenanceStep.MARKING,
            "did not come back in 1800 s: No route to host",
        ),
        (NodeReading(boot="a", machine="serial 1"), 3000.0, MaintenanceStep.MARKING, "it has not rebooted"),
        (NodeReading(boot="b", machine="serial 2"), 110.0, MaintenanceStep.MARKING, "it was serial 1, now serial 2"),
        (NodeReading(boot="b"), 110.0, MaintenanceStep.MARKING, "now without a serial"),
        (NodeReading(stranger="10.0.0.1 has another host key"), 110.0, MaintenanceStep.MARKING, "another host key"),
    ],
)
def test_after_the_reboot(reading: NodeReading, now: float, then: MaintenanceStep | None, why: str) -> None:
    move = node_verification.rebooting(REBOOTED, reading, now, PLAN)
    assert step(move) is then and (move is None or why in move.why)


WELL = {"boot": "b", "machine": "serial 1", "verdict": "ok", "age_seconds": 1.0, "verdict_boot": "b"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"verdict": "warn"}, ""),
        ({"verdict": "drain", "text": "GPU lost"}, "the agent says drain: GPU lost"),
        ({"verdict": "unknown"}, "unknown"),
        ({"verdict": "none"}, "none"),
        ({"verdict": "stale"}, "stale"),
        ({"age_seconds": 11.0}, "has made no sweep since then"),
        ({"age_seconds": None}, "has made no sweep since then"),
        ({"verdict_boot": "a"}, "earlier boot"),
        ({"boot": "c"}, "rebooted again"),
        ({"machine": "serial 2"}, "not the same machine"),
        ({"trouble": "timed out"}, "timed out"),
        ({"worse": ("gpu_count: 7",)}, "gpu_count: 7"),
        ({"bad": ("ecc: 1",)}, ""),  # stood before, in a check that only observes
        ({"bad": ("ecc: 2",)}, "new since the maintenance began: ecc: 2"),
    ],
)
def test_is_it_well(changed: dict[str, object], why: str) -> None:
    work = NodeWork(
        node="n1", slurm="n1", step=MaintenanceStep.VERIFYING, since=100.0, boot_after="b", machine="serial 1", known=("ecc: 1",)
    )
    reading = NodeReading(**{**WELL, **changed})  # type: ignore[arg-type]
    said = node_verification.unwell(work, reading, 110.0)
    assert (why in said) if why else not said


def test_what_waits_for_a_reboot_nobody_asked_for_is_no_failure() -> None:
    said = ApplyOutcome(pending=("kernel_cmdline: iommu=pt",))
    assert step(maintenance_steps.verified(WORK, said, PLAN)) is MaintenanceStep.RESUMING
    assert (
        "not in effect after the reboot" in maintenance_steps.verified(WORK, said, MaintenancePlan(reason="r", reboot=True)).why
    )
    other = ApplyOutcome(changed=("nccl: missing",))
    assert maintenance_steps.verified(WORK, other, PLAN) == Move(MaintenanceStep.MARKING, "not as declared: nccl: missing")
    assert step(maintenance_steps.verified(REBOOTED_ONCE, other, PLAN)) is MaintenanceStep.APPLYING
    assert step(maintenance_steps.verified(replace(REBOOTED_ONCE, again=True), other, PLAN)) is MaintenanceStep.MARKING
    assert step(maintenance_steps.applied(WORK, said, PLAN)) is MaintenanceStep.VERIFYING
    assert step(maintenance_steps.applied(WORK, said, MaintenancePlan(reason="r", reboot=True))) is MaintenanceStep.REBOOTING
    assert step(maintenance_steps.applied(WORK, ApplyOutcome(trouble="no space"), PLAN)) is MaintenanceStep.MARKING


def test_a_lift_that_was_sent_and_not_answered_is_waited_for() -> None:
    lifting = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.LIFTING, sent=100.0)
    assert maintenance_steps.lifted(lifting, FREE, 105.0, PLAN) is None
    assert step(maintenance_steps.lifted(lifting, FREE, 120.0, PLAN)) is MaintenanceStep.RELEASED
    resuming = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.RESUMING)
    assert step(maintenance_steps.lifted(resuming, FREE, 105.0, PLAN)) is MaintenanceStep.DONE
    assert maintenance_steps.lifted(resuming, OURS, 105.0, PLAN) is None
    assert step(maintenance_steps.lifted(resuming, OTHER, 105.0, PLAN)) is MaintenanceStep.TAKEN
    assert step(maintenance_steps.lifted(resuming, COVERED, 105.0, PLAN)) is MaintenanceStep.FAILED


def test_a_node_is_done_once_slurmctld_hears_from_it() -> None:
    """UNDRAIN and RESUME make it NOT_RESPONDING until the next ping, and no job starts there meanwhile."""
    resuming = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.RESUMING, since=100.0)
    silent = NodeInSlurm(hand=DrainOwner.FREE, silent=True)
    assert maintenance_steps.lifted(resuming, silent, 105.0, PLAN) is None
    move = maintenance_steps.lifted(resuming, silent, 500.0, PLAN)
    assert move == Move(MaintenanceStep.FAILED, "resumed, and does not answer slurmctld after 360 s")
    said = node_report(resuming.at(move.step, 500.0, move.why))
    assert said.condition == "not drained any more, and not in service" and not said.reason


def test_every_step_has_a_condition_in_words() -> None:
    assert all(node_report(NodeWork(node="n1", slurm="n1", step=s)).condition for s in MaintenanceStep)


# -- who may begin --------------------------------------------------------------------------------------

NAMES = tuple(f"n{i}" for i in range(1, 9))
QUEUE = tuple(NodeWork(node=n, slurm=n) for n in NAMES)


def availability(**changed: NodeAvailability) -> dict[str, NodeAvailability]:
    return {n: changed.get(n, NodeAvailability(name=n, partitions=("main",))) for n in NAMES}


def begin(
    plan: MaintenancePlan,
    at: dict[str, NodeAvailability] | None = None,
    works: tuple[NodeWork, ...] = QUEUE,
    budget: Budget | None = None,
) -> object:
    budgets = dict.fromkeys(NAMES, budget or Budget())
    choice = choose(works, at or availability(), plan, 1000.0, budgets=budgets, expected_seconds=100.0)
    return choice.over or choice.closed or choice.waits_because or choice.begin


def out(name: str, **more: object) -> NodeAvailability:
    return NodeAvailability(name=name, partitions=("main",), usable=False, out=True, **more)  # type: ignore[arg-type]


def test_batch_and_floor() -> None:
    assert begin(MaintenancePlan(reason="r")) == ("n1",)
    assert begin(MaintenancePlan(reason="r", batch=3)) == ("n1", "n2", "n3")
    assert begin(MaintenancePlan(reason="r", batch=8, floors={"main": 6})) == ("n1", "n2")
    assert begin(MaintenancePlan(reason="r", batch=8, floors={"main": 6}), availability(n8=out("n8")), works=QUEUE[:4]) == ("n1",)
    working = (QUEUE[0].at(MaintenanceStep.DRAINING, 1.0), *QUEUE[1:])
    assert begin(MaintenancePlan(reason="r", batch=2), works=working) == ("n2",)
    assert begin(MaintenancePlan(reason="r", batch=1), works=working) == ()


def test_a_node_that_does_not_answer_keeps_no_floor_and_uses_no_budget() -> None:
    """IDLE+NOT_RESPONDING, as each node is for a moment that was just resumed: no job starts there."""
    silent = availability(n8=NodeAvailability(name="n8", partitions=("main",), usable=False))
    floor = MaintenancePlan(reason="r", batch=8, floors={"main": 7})
    assert begin(floor) == ("n1",)
    assert begin(floor, silent, works=QUEUE[:4]) == "floor of partition main: 7 nodes are usable, 7 must stay usable"
    assert begin(floor, silent, works=QUEUE[7:]) == ("n8",)  # by which nothing more is taken
    assert begin(MaintenancePlan(reason="r", batch=2), silent, works=QUEUE[:4], budget=Budget(12)) == ("n1", "n2")


def test_of_two_runs_that_drained_at_once_the_later_gives_back() -> None:
    """Ranked by (time, name) over all runs; whoever has room left waits for the others first, and then gives back too."""
    plan = MaintenancePlan(reason="r", floors={"main": 6})
    drained = {n: out(n, maintained=True, since=at) for n, at in (("n1", 50.0), ("n2", 51.0), ("n3", 50.0))}
    at = availability(**drained)
    first, second, third = (overshoot(n, at, plan, waited=0.0) for n in ("n1", "n3", "n2"))
    assert first is not None and first.wait and second is not None and second.wait and third is not None and not third.wait
    assert third.why == "floor of partition main: 5 nodes are usable, 6 must stay usable"
    last = overshoot("n1", at, plan, waited=3.0)  # the other run has no floor, and keeps what it has
    assert last is not None and not last.wait
    assert overshoot("n1", availability(n1=drained["n1"], n3=drained["n3"]), plan, waited=0.0) is None
    assert overshoot("n1", at, MaintenancePlan(reason="r", floors={"other": 8}), waited=0.0) is None
    broken = overshoot("n1", availability(n1=drained["n1"], n7=out("n7"), n8=out("n8")), plan, waited=0.0)
    assert broken is not None and not broken.wait  # nobody else can give anything back
    undone = availability(n1=drained["n1"], n3=drained["n3"], n2=NodeAvailability(name="n2", partitions=("main",), usable=False))
    answers = overshoot("n3", undone, plan, waited=5.0)  # n2 has been given back, and slurmctld has not heard from it yet
    assert answers is not None and answers.wait
    silent = overshoot("n3", undone, plan, waited=15.0)
    assert silent is not None and not silent.wait


def test_a_node_that_an_earlier_run_has_left_is_never_given_back_untouched() -> None:
    took = replace(WORK, replaced_reason="fairlead:maintain:abcdef123456 new driver; FAILED: 7 of 8 GPUs")
    move = maintenance_steps.waiting(took, OURS, 110.0, PLAN, aborting=True)
    assert move is not None and move.step is MaintenanceStep.MARKING and move.why.endswith("new driver; FAILED: 7 of 8 GPUs")
    assert step(maintenance_steps.abort(replace(took, step=MaintenanceStep.DRAINING))) is MaintenanceStep.MARKING
    assert step(maintenance_steps.abort(replace(WORK, step=MaintenanceStep.UNDOING))) is MaintenanceStep.LIFTING


def test_who_resumes_a_node_that_reboots_is_told_of_it() -> None:
    ordered = replace(REBOOTED, registered_before="1")
    move = maintenance_steps.drain_lost(ordered, FREE)
    assert move is not None and move.step is MaintenanceStep.TAKEN and "after its reboot was ordered" in move.why
    assert "reboot" not in (maintenance_steps.drain_lost(REBOOTED, FREE) or Move(MaintenanceStep.TAKEN)).why
    assert maintenance_steps.announced(MaintenancePlan(reason="r", reboot=True)) == "r (node will reboot)"


def test_broken_nodes_use_the_drain_budget_and_maintenance_does_not() -> None:
    held = begin(
        MaintenancePlan(reason="r", batch=8), availability(n8=out("n8"), n7=out("n7")), works=QUEUE[:4], budget=Budget(25)
    )
    assert held == "drain budget of partition main is used up by others: 2 of 8 nodes are out"
    ours = availability(n8=out("n8", maintained=True), n7=out("n7", maintained=True))
    assert begin(MaintenancePlan(reason="r", batch=2), ours, works=QUEUE[:4], budget=Budget(25)) == ("n1", "n2")


def test_idle_nodes_first_and_none_whose_jobs_outlast_the_window() -> None:
    busy = availability(n1=NodeAvailability(name="n1", partitions=("main",), jobs=1, jobs_end=1050.0))
    assert begin(MaintenancePlan(reason="r", batch=2), busy) == ("n2", "n3")
    assert begin(MaintenancePlan(reason="r", batch=8, window=2000.0), busy, works=QUEUE[:1]) == ("n1",)
    forever = {n: NodeAvailability(name=n, partitions=("main",), jobs=1, jobs_end=math.inf) for n in NAMES}
    assert (
        begin(MaintenancePlan(reason="r", batch=8, window=2000.0), forever)
        == "the jobs of the nodes that are left may run past the window"
    )
    assert begin(MaintenancePlan(reason="r", window=1050.0)) == "the window ends before another node would be done (100 s)"
    assert begin(MaintenancePlan(reason="r", window=900.0)) == "the window has ended"
    assert begin(MaintenancePlan(reason="r", opens=1001.0, window=9000.0)) == "the window has not begun"
    assert begin(MaintenancePlan(reason="r", opens=1000.0, window=9000.0)) == ("n1",)


def test_failed_nodes_end_the_beginning() -> None:
    failed = (NodeWork(node="n1", slurm="n1", step=MaintenanceStep.FAILED, ended=1.0), *QUEUE[1:])
    assert begin(MaintenancePlan(reason="r"), works=failed) == "1 failed, --max-failed is 1"
    assert begin(MaintenancePlan(reason="r", max_failed=2), works=failed) == ("n2",)


def test_words_of_the_command_line() -> None:
    assert [batch_of("3", 8), batch_of("25%", 8), batch_of("1%", 8)] == [3, 2, 1]
    assert [floor_of("3", 8), floor_of("70%", 8), floor_of("0", 8)] == [3, 6, 0]
    for wrong in ("0", "", "x", "-1", "101%", "1.5"):
        with pytest.raises(ValueError, match="neither"):
            batch_of(wrong, 8)
    assert floors(["main=50%"], availability()) == {"main": 4}
    for wrong in ("main", "other=1", "main=8", "main=x"):
        with pytest.raises(UsageError, match="--floor"):
            floors([wrong], availability())
