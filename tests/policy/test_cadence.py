"""Confirmation and recovery count readings: a check that is read on thorough looks only is not confirmed by waiting."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.model.finding import Finding, Level, Mode
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Rules, decide

CHECKS = {
    "quick": CheckPolicy(mode=Mode.ENFORCE),
    "slow": CheckPolicy(mode=Mode.ENFORCE, confirm=2, confirm_of=3, recover=2, slow=True),
}
BAD = Finding(check="slow", level=Level.DRAIN, device="mlx5_0/1", summary="port is down", evidence_id="")


def sweep(
    state: PolicyState, second: int, *found: Finding, thorough: bool = False, wake: bool = False, **more: object
) -> Decision:
    """One sweep at ``second``; between thorough looks only the quick check runs; a wake runs the slow one on old facts."""
    made = Now(boot_seconds=1000.0 + second, wall_seconds=1e9 + second, boot_id="b1", full_sweep=not wake)
    ran = {"slow"} if wake else None if thorough else {"quick"}
    return decide(found, CHECKS, state, replace(made, **more), Rules(), ran=ran)


def test_one_reading_is_one_however_many_sweeps_it_stands() -> None:
    state = sweep(PolicyState(), 0, BAD, thorough=True).state
    for second in range(1, 14):
        decision = sweep(state, second)
        state = decision.state
        assert decision.order is Order.KEEP and [f.check for f in decision.suppressed] == ["slow"], "its last finding stands"
        assert decision.why_suppressed == ("not confirmed: 1 of 2",)
    assert sweep(state, 14, BAD, thorough=True).order is Order.DRAIN


def test_a_wake_that_says_the_same_again_confirms_nothing() -> None:
    state = sweep(PolicyState(), 0, BAD, thorough=True).state
    for second in range(1, 5):
        decision = sweep(state, second, BAD, wake=True)
        before, after = (s.tracks["slow/mlx5_0/1"].window for s in (state, decision.state))
        assert decision.order is Order.KEEP and before == after
        state = decision.state
    news = replace(BAD, summary="port went down", evidence_id="b1:77")
    assert sweep(state, 5, BAD, news, wake=True).order is Order.DRAIN, "a record that is new is a reading of its own"


def test_recovery_counts_thorough_looks() -> None:
    state = PolicyState()
    for second in (0, 14):
        state = sweep(state, second, BAD, thorough=True).state
    for second in range(15, 28):
        decision = sweep(state, second, drained=True)
        state = decision.state
        assert decision.order is Order.KEEP and decision.counted, "quick sweeps say nothing about it"
    state = sweep(state, 28, thorough=True, drained=True).state
    for second in range(29, 42):
        decision = sweep(state, second, drained=True)
        state = decision.state
        assert decision.order is Order.KEEP
    assert sweep(state, 42, thorough=True, drained=True).order is Order.RESUME


def test_with_the_history_lost_a_slow_check_is_seen_well_as_often_as_it_asks() -> None:
    def first_resume(drain_check: str) -> int:
        state = PolicyState()
        for second in range(60):
            decision = sweep(state, second, thorough=second % 14 == 0, drained=True, drain_check=drain_check)
            state = decision.state
            if decision.order is Order.RESUME:
                return second
        return -1

    assert first_resume("slow") == first_resume("") == 14, "two thorough looks"
    assert first_resume("quick") == 2, "three sweeps"
