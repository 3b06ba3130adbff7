"""Which order carries a decision out, and what the agent knows of its node in Slurm after an attempt at one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState, state_after, want_of
from fairlead.drains.ledger import LedgerEntry, Phase
from fairlead.drains.outcome import Outcome, Result
from fairlead.model.finding import Finding, Level
from fairlead.model.verdict import State
from fairlead.policy import Decision, Now, Order, PolicyState
from fairlead.policy.ownership import build

NOW = Now(boot_seconds=1.0, wall_seconds=2.0, boot_id="b")
LOST = Finding(check="gpu_lost", level=Level.DRAIN, summary="GPU is lost")
ENTRY = LedgerEntry(
    node="n1", phase=Phase.DRAINED, token=build("gpu_lost", "abcdef012345", "GPU is lost"), since=7.0, machine="m"
)
DRAINED = state_after(SlurmState(), Result(outcome=Outcome.DRAINED, detail="ours"), ENTRY, ordered=True, asked=True)


def decision(order: Order, word: State = State.OK, **changes: object) -> Decision:
    made = Decision(order=order, level=Level.OK, state_word=word, text="", state=PolicyState())
    return replace(made, reason_check="gpu_lost", reason_summary="GPU is lost", **changes)


def test_a_drain_names_what_it_is_for() -> None:
    want = want_of(decision(Order.DRAIN, State.DRAIN, job=7, certain=True, counted=(LOST,)), NOW)
    assert want == CourierOrder(kind="drain", check="gpu_lost", summary="GPU is lost", job=7, certain=True)


def test_a_drain_without_room_waits_for_room() -> None:
    want = want_of(decision(Order.KEEP, State.WARN, limited=True), NOW)
    assert (want.kind, want.pending_room, want.check, want.fit) == ("keep", True, "gpu_lost", False)


@pytest.mark.parametrize(
    ("made", "now", "fit"),
    [
        (decision(Order.KEEP), NOW, True),
        (decision(Order.KEEP, State.WARN), NOW, True),
        (decision(Order.KEEP, State.UNKNOWN), NOW, False),
        (decision(Order.KEEP, counted=(LOST,)), NOW, False),
        (decision(Order.KEEP), replace(NOW, over_budget="partition"), False),
        (decision(Order.KEEP), replace(NOW, suspicion="common cause"), False),
        (decision(Order.KEEP), replace(NOW, applying=True), False),
        # What a hold suppresses says nothing of the node, and the order may be carried out after its release.
        (decision(Order.KEEP, State.WARN), replace(NOW, hold=True), False),
        (decision(Order.KEEP, State.WARN), replace(NOW, disabled=True), False),
        (decision(Order.RESUME), NOW, False),
    ],
)
def test_slurms_mark_is_lifted_only_where_jobs_may_run(made: Decision, now: Now, fit: bool) -> None:
    want = want_of(made, now)
    assert (want.fit, want.check, want.kind) == (fit, "", made.order.value)


def test_a_drain_of_ours_is_known_from_the_ledger() -> None:
    assert (DRAINED.drained, DRAINED.reason, DRAINED.check, DRAINED.since) == (True, ENTRY.token.text, "gpu_lost", 7.0)
    assert DRAINED.settled and DRAINED.confirmed == 1
    again = state_after(DRAINED, Result(outcome=Outcome.DRAINED), ENTRY, ordered=False, asked=False)
    assert again == DRAINED, "nobody asked slurmctld"


@pytest.mark.parametrize("outcome", [Outcome.BLOCKED, Outcome.FOREIGN, Outcome.ORPHAN])
def test_what_blocks_is_said_of_an_order_only(outcome: Outcome) -> None:
    result = Result(outcome=outcome, detail="ann drained it")
    ordered = state_after(SlurmState(), result, None, ordered=True, asked=True)
    assert ordered.blocked_because == "ann drained it" and ordered.settled
    assert ordered.foreign is (outcome is not Outcome.BLOCKED)
    asked = state_after(SlurmState(), result, None, ordered=False, asked=True)
    assert asked.blocked_because == "" and not asked.foreign and not asked.settled


def test_a_persons_resume_is_counted_with_what_it_covers() -> None:
    result = Result(outcome=Outcome.ACKNOWLEDGED, detail="resumed in Slurm", known=("gpu_lost/x",))
    after = state_after(DRAINED, result, None, ordered=False, asked=True)
    assert (after.drained, after.acknowledged, after.returned, after.known) == (False, 1, 1, ("gpu_lost/x",))
    later = state_after(after, Result(outcome=Outcome.FREE), None, ordered=False, asked=True)
    assert (later.acknowledged, later.known) == (1, ("gpu_lost/x",))


def test_a_drain_that_was_lost_is_no_return() -> None:
    result = Result(outcome=Outcome.LOST, detail="slurmctld began anew", known=("gpu_lost/x",))
    after = state_after(DRAINED, result, None, ordered=False, asked=True)
    assert (after.lost, after.why_lost, after.returned, after.acknowledged) == (1, "slurmctld began anew", 0, 0)


def test_words_in_place_of_ours_are_kept_until_they_go() -> None:
    taken = replace(ENTRY, phase=Phase.TAKEN)
    theirs = state_after(DRAINED, Result(outcome=Outcome.FOREIGN, detail="ann: riser"), taken, ordered=False, asked=True)
    assert theirs.taken == "ann: riser"
    silent = state_after(theirs, Result(outcome=Outcome.BLOCKED, detail="down"), taken, ordered=False, asked=True)
    assert silent.taken == "ann: riser"
    assert state_after(silent, Result(outcome=Outcome.FREE), None, ordered=False, asked=True).taken == ""


def test_whether_slurmctld_was_asked_is_known_and_stays_known() -> None:
    nothing = Result(outcome=Outcome.FREE, detail="")
    assert not SlurmState().asked and not state_after(SlurmState(), nothing, None, ordered=False, asked=False).asked
    assert DRAINED.asked and state_after(DRAINED, nothing, ENTRY, ordered=False, asked=False).asked
