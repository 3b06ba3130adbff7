"""One node's way through maintenance, and which nodes may begin: tables."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fairlead.errors import UsageError
from fairlead.provision.maintain import maintenance_steps, node_verification
from fairlead.provision.maintain.begin_limits import Budget, Place, batch_of, choose, floor_of, overshoot
from fairlead.provision.maintain.maintenance_plan import floors
from fairlead.provision.maintain.maintenance_report import node_report
from fairlead.provision.maintain.maintenance_steps import Applied, Hand, Looked, Move, Plan, Seen, Step, Work

PLAN = Plan(reason="new driver")
WORK = Work(node="n1", slurm="n1", step=Step.WAITING, since=100.0, began=90.0, text="ours", drained=95.0)
OURS, FREE = Seen(hand=Hand.OURS), Seen(hand=Hand.FREE)
OTHER = Seen(hand=Hand.OTHER, who="idle+drain by ann: psu")
COVERED = Seen(hand=Hand.COVERED, who="idle+drain by slurm: gres/gpu count")


REBOOTED_ONCE = Work(node="n1", slurm="n1", step=Step.VERIFYING, boot_before="a", boot_after="b")


def step(move: Move | None) -> Step | None:
    return move.step if move else None


@pytest.mark.parametrize(
    ("seen", "adopt", "again", "then"),
    [
        (FREE, False, False, None),
        (OURS, False, False, Step.WAITING),
        (OTHER, False, False, Step.SKIPPED),
        (OTHER, True, False, None),
        (OTHER, False, True, Step.TAKEN),
        (COVERED, False, False, Step.SKIPPED),
        (Seen(hand=Hand.FREE, off="powering up"), False, False, Step.SKIPPED),
        (Seen(hand=Hand.FREE, off="not registered yet"), False, True, Step.DRAINING),
    ],
)
def test_before_the_drain(seen: Seen, adopt: bool, again: bool, then: Step | None) -> None:
    work = Work(node="n1", slurm="n1", step=Step.DRAINING, drained=95.0 if again else 0.0)
    assert step(maintenance_steps.first(work, seen, adopt=adopt)) is then


@pytest.mark.parametrize(
    ("seen", "now", "aborting", "then"),
    [
        (OURS, 110.0, False, Step.APPLYING),
        (OURS, 101.0, False, None),  # not settled yet
        (Seen(hand=Hand.OURS, jobs=1), 110.0, False, None),
        (Seen(hand=Hand.OURS, jobs=1), 200.0, False, Step.LIFTING),  # --max-wait
        (OURS, 110.0, True, Step.LIFTING),
        (OTHER, 110.0, False, Step.TAKEN),
        (COVERED, 110.0, False, Step.FAILED),
        (FREE, 110.0, False, Step.TAKEN),
        (Seen(hand=Hand.FREE, lost=True), 110.0, False, Step.DRAINING),
    ],
)
def test_waiting_for_jobs(seen: Seen, now: float, aborting: bool, then: Step | None) -> None:
    assert step(maintenance_steps.waiting(WORK, seen, now, Plan(reason="r", max_wait=60.0), aborting=aborting)) is then


REBOOTED = Work(node="n1", slurm="n1", step=Step.REBOOTING, since=100.0, boot_before="a", machine="serial 1")


@pytest.mark.parametrize(
    ("look", "now", "then", "why"),
    [
        (Looked(boot="b", machine="serial 1"), 110.0, Step.VERIFYING, "back"),
        (Looked(boot="a", machine="serial 1"), 110.0, None, ""),
        (Looked(trouble="No route to host"), 110.0, None, ""),
        (Looked(trouble="No route to host"), 3000.0, Step.MARKING, "did not come back in 1800 s: No route to host"),
        (Looked(boot="a", machine="serial 1"), 3000.0, Step.MARKING, "it has not rebooted"),
        (Looked(boot="b", machine="serial 2"), 110.0, Step.MARKING, "it was serial 1, now serial 2"),
        (Looked(boot="b"), 110.0, Step.MARKING, "now without a serial"),
        (Looked(stranger="10.0.0.1 has another host key"), 110.0, Step.MARKING, "another host key"),
    ],
)
def test_after_the_reboot(look: Looked, now: float, then: Step | None, why: str) -> None:
    move = node_verification.rebooting(REBOOTED, look, now, PLAN)
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
        ({"age_seconds": 11.0}, "has not looked since"),
        ({"age_seconds": None}, "has not looked since"),
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
    work = Work(node="n1", slurm="n1", step=Step.VERIFYING, since=100.0, boot_after="b", machine="serial 1", known=("ecc: 1",))
    look = Looked(**{**WELL, **changed})  # type: ignore[arg-type]
    said = node_verification.unwell(work, look, 110.0)
    assert (why in said) if why else not said


def test_what_waits_for_a_reboot_nobody_asked_for_is_no_failure() -> None:
    said = Applied(pending=("kernel_cmdline: iommu=pt",))
    assert step(maintenance_steps.verified(WORK, said, PLAN)) is Step.RESUMING
    assert "not in effect after the reboot" in maintenance_steps.verified(WORK, said, Plan(reason="r", reboot=True)).why
    other = Applied(changed=("nccl: missing",))
    assert maintenance_steps.verified(WORK, other, PLAN) == Move(Step.MARKING, "not as declared: nccl: missing")
    assert step(maintenance_steps.verified(REBOOTED_ONCE, other, PLAN)) is Step.APPLYING
    assert step(maintenance_steps.verified(replace(REBOOTED_ONCE, again=True), other, PLAN)) is Step.MARKING
    assert step(maintenance_steps.applied(WORK, said, PLAN)) is Step.VERIFYING
    assert step(maintenance_steps.applied(WORK, said, Plan(reason="r", reboot=True))) is Step.REBOOTING
    assert step(maintenance_steps.applied(WORK, Applied(trouble="no space"), PLAN)) is Step.MARKING


def test_a_lift_that_was_sent_and_not_answered_is_waited_for() -> None:
    lifting = Work(node="n1", slurm="n1", step=Step.LIFTING, sent=100.0)
    assert maintenance_steps.lifted(lifting, FREE, 105.0, PLAN) is None
    assert step(maintenance_steps.lifted(lifting, FREE, 120.0, PLAN)) is Step.GIVEN_BACK
    resuming = Work(node="n1", slurm="n1", step=Step.RESUMING)
    assert step(maintenance_steps.lifted(resuming, FREE, 105.0, PLAN)) is Step.DONE
    assert maintenance_steps.lifted(resuming, OURS, 105.0, PLAN) is None
    assert step(maintenance_steps.lifted(resuming, OTHER, 105.0, PLAN)) is Step.TAKEN
    assert step(maintenance_steps.lifted(resuming, COVERED, 105.0, PLAN)) is Step.FAILED


def test_a_node_is_done_once_slurmctld_hears_from_it() -> None:
    """UNDRAIN and RESUME make it NOT_RESPONDING until the next ping, and no job starts there meanwhile."""
    resuming = Work(node="n1", slurm="n1", step=Step.RESUMING, since=100.0)
    silent = Seen(hand=Hand.FREE, silent=True)
    assert maintenance_steps.lifted(resuming, silent, 105.0, PLAN) is None
    move = maintenance_steps.lifted(resuming, silent, 500.0, PLAN)
    assert move == Move(Step.FAILED, "resumed, and does not answer slurmctld after 300 s")
    said = node_report(resuming.at(move.step, 500.0, move.why))
    assert said.condition == "not drained any more, and not in service" and not said.reason


def test_every_step_has_a_condition_in_words() -> None:
    assert all(node_report(Work(node="n1", slurm="n1", step=s)).condition for s in Step)


# -- who may begin --------------------------------------------------------------------------------------

NAMES = tuple(f"n{i}" for i in range(1, 9))
QUEUE = tuple(Work(node=n, slurm=n) for n in NAMES)


def places(**changed: Place) -> dict[str, Place]:
    return {n: changed.get(n, Place(name=n, partitions=("main",))) for n in NAMES}


def begin(
    plan: Plan, at: dict[str, Place] | None = None, works: tuple[Work, ...] = QUEUE, budget: Budget | None = None
) -> object:
    budgets = dict.fromkeys(NAMES, budget or Budget())
    choice = choose(works, at or places(), plan, 1000.0, budgets=budgets, expected_seconds=100.0)
    return choice.over or choice.closed or choice.held or choice.begin


def out(name: str, **more: object) -> Place:
    return Place(name=name, partitions=("main",), usable=False, out=True, **more)  # type: ignore[arg-type]


def test_batch_and_floor() -> None:
    assert begin(Plan(reason="r")) == ("n1",)
    assert begin(Plan(reason="r", batch=3)) == ("n1", "n2", "n3")
    assert begin(Plan(reason="r", batch=8, floors={"main": 6})) == ("n1", "n2")
    assert begin(Plan(reason="r", batch=8, floors={"main": 6}), places(n8=out("n8")), works=QUEUE[:4]) == ("n1",)
    working = (QUEUE[0].at(Step.DRAINING, 1.0), *QUEUE[1:])
    assert begin(Plan(reason="r", batch=2), works=working) == ("n2",)
    assert begin(Plan(reason="r", batch=1), works=working) == ()


def test_a_node_that_does_not_answer_keeps_no_floor_and_uses_no_budget() -> None:
    """IDLE+NOT_RESPONDING, as each node is for a moment that was just resumed: no job starts there."""
    silent = places(n8=Place(name="n8", partitions=("main",), usable=False))
    floor = Plan(reason="r", batch=8, floors={"main": 7})
    assert begin(floor) == ("n1",)
    assert begin(floor, silent, works=QUEUE[:4]) == "floor of partition main: 7 nodes are usable, 7 must stay usable"
    assert begin(floor, silent, works=QUEUE[7:]) == ("n8",)  # by which nothing more is taken
    assert begin(Plan(reason="r", batch=2), silent, works=QUEUE[:4], budget=Budget(12)) == ("n1", "n2")


def test_of_two_runs_that_drained_at_once_the_later_gives_back() -> None:
    """Ranked by (time, name) over all runs; whoever has room left waits for the others first, and then gives back too."""
    plan = Plan(reason="r", floors={"main": 6})
    drained = {n: out(n, maintained=True, since=at) for n, at in (("n1", 50.0), ("n2", 51.0), ("n3", 50.0))}
    at = places(**drained)
    first, second, third = (overshoot(n, at, plan, waited=0.0) for n in ("n1", "n3", "n2"))
    assert first is not None and first.wait and second is not None and second.wait and third is not None and not third.wait
    assert third.why == "floor of partition main: 5 nodes are usable, 6 must stay usable"
    last = overshoot("n1", at, plan, waited=3.0)  # the other run has no floor, and keeps what it has
    assert last is not None and not last.wait
    assert overshoot("n1", places(n1=drained["n1"], n3=drained["n3"]), plan, waited=0.0) is None
    assert overshoot("n1", at, Plan(reason="r", floors={"other": 8}), waited=0.0) is None
    broken = overshoot("n1", places(n1=drained["n1"], n7=out("n7"), n8=out("n8")), plan, waited=0.0)
    assert broken is not None and not broken.wait  # nobody else can give anything back
    undone = places(n1=drained["n1"], n3=drained["n3"], n2=Place(name="n2", partitions=("main",), usable=False))
    answers = overshoot("n3", undone, plan, waited=5.0)  # n2 has been given back, and slurmctld has not heard from it yet
    assert answers is not None and answers.wait
    silent = overshoot("n3", undone, plan, waited=15.0)
    assert silent is not None and not silent.wait


def test_a_node_that_an_earlier_run_has_left_is_never_given_back_untouched() -> None:
    took = replace(WORK, took="fairlead:maintain:abcdef123456 new driver; FAILED: 7 of 8 GPUs")
    move = maintenance_steps.waiting(took, OURS, 110.0, PLAN, aborting=True)
    assert move is not None and move.step is Step.MARKING and move.why.endswith("new driver; FAILED: 7 of 8 GPUs")
    assert step(maintenance_steps.abort(replace(took, step=Step.DRAINING))) is Step.MARKING
    assert step(maintenance_steps.abort(replace(WORK, step=Step.UNDOING))) is Step.LIFTING


def test_who_resumes_a_node_that_reboots_is_told_of_it() -> None:
    ordered = replace(REBOOTED, registered_before="1")
    move = maintenance_steps.standing(ordered, FREE)
    assert move is not None and move.step is Step.TAKEN and "after its reboot was ordered" in move.why
    assert "reboot" not in (maintenance_steps.standing(REBOOTED, FREE) or Move(Step.TAKEN)).why
    assert maintenance_steps.announced(Plan(reason="r", reboot=True)) == "r (node will reboot)"


def test_broken_nodes_use_the_drain_budget_and_maintenance_does_not() -> None:
    held = begin(Plan(reason="r", batch=8), places(n8=out("n8"), n7=out("n7")), works=QUEUE[:4], budget=Budget(25))
    assert held == "drain budget of partition main is used up by others: 2 of 8 nodes are out"
    ours = places(n8=out("n8", maintained=True), n7=out("n7", maintained=True))
    assert begin(Plan(reason="r", batch=2), ours, works=QUEUE[:4], budget=Budget(25)) == ("n1", "n2")


def test_idle_nodes_first_and_none_whose_jobs_outlast_the_window() -> None:
    busy = places(n1=Place(name="n1", partitions=("main",), jobs=1, jobs_end=1050.0))
    assert begin(Plan(reason="r", batch=2), busy) == ("n2", "n3")
    assert begin(Plan(reason="r", batch=8, window=2000.0), busy, works=QUEUE[:1]) == ("n1",)
    forever = {n: Place(name=n, partitions=("main",), jobs=1, jobs_end=math.inf) for n in NAMES}
    assert (
        begin(Plan(reason="r", batch=8, window=2000.0), forever) == "the jobs of the nodes that are left may run past the window"
    )
    assert begin(Plan(reason="r", window=1050.0)) == "the window ends before another node would be done (100 s)"
    assert begin(Plan(reason="r", window=900.0)) == "the window has ended"
    assert begin(Plan(reason="r", opens=1001.0, window=9000.0)) == "the window has not begun"
    assert begin(Plan(reason="r", opens=1000.0, window=9000.0)) == ("n1",)


def test_failed_nodes_end_the_beginning() -> None:
    failed = (Work(node="n1", slurm="n1", step=Step.FAILED, ended=1.0), *QUEUE[1:])
    assert begin(Plan(reason="r"), works=failed) == "1 failed, --max-failed is 1"
    assert begin(Plan(reason="r", max_failed=2), works=failed) == ("n2",)


def test_words_of_the_command_line() -> None:
    assert [batch_of("3", 8), batch_of("25%", 8), batch_of("1%", 8)] == [3, 2, 1]
    assert [floor_of("3", 8), floor_of("70%", 8), floor_of("0", 8)] == [3, 6, 0]
    for wrong in ("0", "", "x", "-1", "101%", "1.5"):
        with pytest.raises(ValueError, match="neither"):
            batch_of(wrong, 8)
    assert floors(["main=50%"], places()) == {"main": 4}
    for wrong in ("main", "other=1", "main=8", "main=x"):
        with pytest.raises(UsageError, match="--floor"):
            floors([wrong], places())
