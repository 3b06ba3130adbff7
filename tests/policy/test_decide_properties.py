"""decide(): the properties that hold whatever the findings do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.finding import Finding, Level, Mode, Service
from fairlead.model.verdict import State
from fairlead.policy import Order, acknowledge, decide
from fairlead.policy.policy_state import remembered_findings
from tests.policy.test_decide import CHECKS, GPU, RULES, bad, now, run

LEVELS = st.sampled_from([Level.OK, Level.WARN, Level.UNKNOWN, Level.DRAIN])
SERVICES = st.sampled_from(list(Service))
FINDINGS = st.lists(
    st.builds(
        Finding,
        check=st.sampled_from(sorted(CHECKS)),
        level=LEVELS,
        device=st.sampled_from(["", GPU, "0000:43:00.0"]),
        summary=st.sampled_from(["a", "b"]),
        service=SERVICES,
        evidence_id=st.sampled_from(["", "b1:1", "b1:2"]),
    ),
    max_size=5,
)
SWEEPS = st.lists(FINDINGS, min_size=1, max_size=12)
WORDS = {State.OK: 0, State.WARN: 1, State.UNKNOWN: 2, State.DRAIN: 3}
RANKS = {Level.OK: 0, Level.WARN: 1, Level.UNKNOWN: 2, Level.DRAIN: 3}


@given(SWEEPS, FINDINGS, st.booleans(), st.booleans())
def test_worse_findings_never_give_a_better_verdict(
    history: list[list[Finding]], more: list[Finding], drained: bool, job: bool
) -> None:
    state = run(*history)[-1].state
    less = history[-1]
    moment = now(20, drained=drained, job_running=job)
    mild, harsh = decide(less, CHECKS, state, moment, RULES), decide([*less, *more], CHECKS, state, moment, RULES)
    # what was "just readable again" and is found bad now is known: a warning until slurmctld has drained, or held as one
    known = any(
        mild.state.tracks[f.key].level is Level.UNKNOWN for f in (*harsh.counted, *harsh.suppressed) if f.key in mild.state.tracks
    )
    assert WORDS[harsh.state_word] >= WORDS[mild.state_word] or known
    assert RANKS[harsh.level] >= RANKS[mild.level] or known
    assert not (harsh.order is Order.RESUME and mild.order is not Order.RESUME)
    assert not (mild.order is Order.DRAIN and harsh.order is not Order.DRAIN)


@given(SWEEPS, st.booleans())
def test_nothing_but_bad_findings_drains_and_nothing_is_ordered_twice_over(history: list[list[Finding]], drained: bool) -> None:
    for findings, decision in zip(history, run(*history, drained=drained), strict=True):
        assert decision.order is not (Order.DRAIN if drained else Order.RESUME)
        if decision.order is Order.DRAIN:
            assert decision.counted and all(CHECKS[f.check].mode is Mode.ENFORCE for f in decision.counted)
        if decision.state_word is State.DRAIN:
            assert drained
        if decision.state_word is State.OK:
            assert all(f.level is Level.OK for f in findings)
        assert "\n" not in decision.text


@settings(max_examples=150)
@given(st.lists(LEVELS, min_size=1, max_size=40))
def test_the_verdict_gets_better_at_most_once_per_recovery_window(levels: list[Level]) -> None:
    ranks = [RANKS[d.level] for d in run(*([bad(level=level)] if level else [] for level in levels))]
    falls = [i for i in range(1, len(ranks)) if ranks[i] < ranks[i - 1]]
    assert all(later - earlier >= CHECKS["xid"].recover for earlier, later in pairwise(falls))
    for fall in falls:
        assert max(RANKS[level] for level in levels[fall - 2 : fall + 1]) <= ranks[fall]


@settings(max_examples=150)
@given(st.lists(st.sampled_from(["clean", "bad", "unknown", "wake"]), min_size=1, max_size=25))
def test_resume_only_after_so_many_clean_sweeps(sweeps: list[str]) -> None:
    state = run([bad()])[0].state
    clean = 0
    for place, word in enumerate(sweeps):
        findings = {"bad": [bad()], "unknown": [bad(level=Level.UNKNOWN)]}.get(word, [])
        decision = decide(findings, CHECKS, state, now(place, drained=True, full_sweep=word != "wake"), RULES)
        state = decision.state
        clean = clean + 1 if word == "clean" else (clean if word == "wake" else 0)
        assert (decision.order is Order.RESUME) <= (clean >= 3)


@given(SWEEPS)
def test_acknowledging_everything_leaves_nothing_that_drains(history: list[list[Finding]]) -> None:
    last = run(*history)[-1]
    again = decide(history[-1], CHECKS, acknowledge(last.state, remembered_findings(last.state)), now(30), RULES)
    assert again.order is Order.KEEP and again.counted == ()
