"""decide(): when a node that was drained may come back, and what holds it."""

from __future__ import annotations

import pytest

from fairlead.model.finding import Finding, Level, Mode, Service
from fairlead.model.verdict import State
from fairlead.policy import CheckPolicy, Order, PolicyState, Rules, acknowledge, decide
from fairlead.policy.policy_state import Track, remembered_findings
from fairlead.policy.tracks import of_this_boot
from tests.policy.test_decide import CHECKS, RULES, bad, now, run


def test_resume_only_after_the_recovery_window() -> None:
    state = run([bad()])[0].state
    orders = [d.order for d in run([], [], [], [], state=state, drained=True)]
    assert orders == [Order.KEEP, Order.KEEP, Order.RESUME, Order.RESUME]
    words = [d.state_word for d in run([], [], [], state=state, drained=True)]
    assert words == [State.DRAIN, State.DRAIN, State.OK]


@pytest.mark.parametrize("change", [{"hold": True}, {"disabled": True}, {"applying": True}, {"full_sweep": False}])
def test_what_holds_a_resume(change: dict[str, object]) -> None:
    state = run([bad()])[0].state
    decisions = run([], [], [], [], [], state=state, drained=True, **change)
    assert {d.order for d in decisions} == {Order.KEEP}


def test_a_missing_reading_is_not_a_clean_one() -> None:
    state = run([bad()])[0].state
    unknown = [bad(level=Level.UNKNOWN)]
    blind = [Finding(check="xid", level=Level.UNKNOWN, summary="saw nothing")]
    for missing in (unknown, blind):
        decisions = run([], [], missing, [], [], state=state, drained=True)
        assert {d.order for d in decisions} == {Order.KEEP}
    assert run([], [], unknown, [], [], [], [], [], state=state, drained=True)[-1].order is Order.RESUME


def test_a_broken_node_is_not_resumed_because_its_check_only_observes_now() -> None:
    state = run([bad()])[0].state
    site = run(*([[bad()]] * 5), state=state, rules=Rules(mode=Mode.OBSERVE), drained=True)
    assert {d.order for d in site} == {Order.KEEP}
    softer = {**CHECKS, "xid": CheckPolicy(mode=Mode.OBSERVE)}
    for place in range(5):
        decision = decide([bad()], softer, state, now(place, drained=True), RULES)
        state = decision.state
        assert decision.order is Order.KEEP


def test_a_check_that_sees_nothing_is_not_clean_because_it_only_observes_now() -> None:
    """Found by tests/policy/test_safety.py: the device that drained was well before, and is out of sight now."""
    state = run([bad()])[0].state
    softer = Rules(mode=Mode.OBSERVE)
    blind = [Finding(check="xid", level=Level.UNKNOWN, summary="saw nothing", service=Service.KEEP)]
    decisions = run([], [], blind, [], [], [], state=state, rules=softer, drained=True)
    assert [d.order for d in decisions] == [Order.KEEP] * 5 + [Order.RESUME]


def test_kernel_log_evidence_stands_until_a_reboot_or_a_person() -> None:
    """A ring buffer that has moved on, or a history that was cut, is no repair."""
    state = run([bad(evidence_id="b1:7")])[0].state
    gone = run(*([[]] * 6), state=state, drained=True)
    assert {(d.order, d.state_word) for d in gone} == {(Order.KEEP, State.DRAIN)}
    known = run(*([[]] * 3), state=acknowledge(gone[-1].state, remembered_findings(gone[-1].state)), drained=True)
    assert known[-1].order is Order.RESUME
    rebooted = run(*([[]] * 3), state=gone[-1].state, drained=True, boot_id="b2")
    assert [d.order for d in rebooted] == [Order.KEEP, Order.KEEP, Order.RESUME]


def test_a_lost_history_does_not_resume_what_the_kernel_log_condemned() -> None:
    lost = {"drained": True, "drain_check": "xid", "drain_since_seconds": 1e9 - 900}
    decisions = run(*([[]] * 5), **lost)
    assert {d.order for d in decisions} == {Order.KEEP} and "resume by hand" in decisions[-1].text
    remap = run([bad("late")], *([[]] * 5), **lost)  # something else that drains comes and goes meanwhile
    assert remap[0].state.drained_for and {d.order for d in remap} == {Order.KEEP}
    assert run(*([[]] * 5), **{**lost, "drain_since_seconds": 1e9 - 1100})[-1].order is Order.RESUME
    assert run(*([[]] * 5), **{**lost, "drain_check": "link"})[-1].order is Order.RESUME
    other = run(*([[]] * 5), **{**lost, "drain_check": "row_remap"})[-1]
    assert (other.order, other.text) == (Order.KEEP, "drained by fairlead, check row_remap does not run any more: resume by hand")


def test_an_observed_finding_that_did_not_drain_does_not_hold_a_resume() -> None:
    state = run([bad()])[0].state
    assert run(*([[bad("ecc")]] * 4), state=state, drained=True)[-1].order is Order.RESUME


def test_a_check_that_was_switched_off_leaves_the_resume_to_a_person() -> None:
    state = run([bad()])[0].state
    fewer = {name: policy for name, policy in CHECKS.items() if name != "xid"}
    for place in range(5):
        decision = decide([], fewer, state, now(place, drained=True), RULES)
        state = decision.state
    assert decision.order is Order.KEEP
    assert decision.text == "drained by fairlead, check xid does not run any more: resume by hand"


def test_records_of_an_earlier_boot_do_not_drain_a_node_whose_drain_a_reboot_has_lifted() -> None:
    """The reboot is what they asked for; what this boot has found of the same device counts."""
    boot = f"{'0' * 8}-0000-0000-0000-{'0' * 12}"
    old = Finding(check="xid", level=Level.DRAIN, device="gpu1", summary="Xid 79", evidence_id=f"{boot}:7")
    new = Finding(check="gpu_count", level=Level.DRAIN, summary="7 of 8 GPUs")
    state = PolicyState(tracks={f.key: Track(level=Level.DRAIN, bad=(f,), found=(f,)) for f in (old, new)})
    after = of_this_boot(state, f"{'1' * 8}-1111-1111-1111-{'1' * 12}")
    assert (after.tracks[old.key].level, after.tracks[old.key].bad) == (Level.WARN, ())
    assert after.tracks[new.key] == state.tracks[new.key]


@pytest.mark.parametrize("drained_before", [True, False], ids=["its drain was lifted by the reboot", "a reboot waited"])
@pytest.mark.parametrize("check", ["link", "xid"])
def test_after_a_boot_only_what_this_boot_says_drains(check: str, drained_before: bool) -> None:
    """A GPU that was lost while a reboot waited, and is well since: nothing is carried out that the former boot has ordered.
    One that is lost in this boot too drains once this boot has confirmed it."""
    fault = bad(check, evidence_id="lost=1")
    state = run([fault], [fault], drained=drained_before)[-1].state
    boot = {"boot_id": "b2"}
    first = decide([], CHECKS, state, now(3, drained=drained_before, **boot), RULES)
    second = decide([], CHECKS, first.state, now(4, **boot), RULES)  # slurmctld says: not drained
    assert (second.order, second.state_word) == (Order.KEEP, State.WARN)
    assert second.text == f"{check}: {check} is bad (seen before the reboot, not since)"
    assert run([], [], [], state=second.state, **boot)[-1].state_word is State.OK
    again = decide([fault], CHECKS, second.state, now(5, **boot), RULES)
    if check == "link":  # 2 of 3 sweeps
        assert again.order is Order.KEEP
        again = decide([fault], CHECKS, again.state, now(6, **boot), RULES)
    assert (again.order, again.reason_check) == (Order.DRAIN, check)


@pytest.mark.parametrize("confirmed", ["before its first sweep", "after a bad sweep"])
def test_boot_grace_holds_for_what_was_confirmed_before_the_reboot(confirmed: str) -> None:
    """A reboot has lifted the drain, and the agent hears of that before or after its first sweep of this boot."""
    state = run([], [bad("late")], [bad("late")], boot_seconds=1000.0)[-1].state
    assert remembered_findings(state)
    boot = {"boot_id": "b2"}
    if confirmed == "after a bad sweep":
        state = decide([bad("late")], CHECKS, state, now(3, drained=True, boot_seconds=20.0, **boot), RULES).state
    state = of_this_boot(state, "b2")
    early = decide([bad("late")], CHECKS, state, now(4, boot_seconds=30.0, **boot), RULES)
    assert (early.order, early.why_suppressed) == (Order.KEEP, ("boot grace",))
    after = decide([bad("late")], CHECKS, early.state, now(5, boot_seconds=130.0, **boot), RULES)
    assert after.order is Order.DRAIN


def test_before_the_first_look_of_a_boot_a_drain_that_is_gone_is_not_made_again() -> None:
    """Slurm lifts it by a reboot, and the agent hears of that before its checks have run."""
    state = run([bad(evidence_id="lost=1")], drained=True)[-1].state
    unseen = decide([], CHECKS, state, now(3, boot_id="b2"), RULES, ran=())
    assert (unseen.order, unseen.state_word) == (Order.KEEP, State.UNKNOWN)
    assert decide([], CHECKS, unseen.state, now(4, boot_id="b2", drained=True), RULES).state_word is State.DRAIN
