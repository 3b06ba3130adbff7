"""Whatever happens, in whatever order: a node goes back by itself only when all that drained it, and all that may, is well.

A node whose truth the test knows, an agent that sees it through findings, and Slurm that does at once what is ordered.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Proof, Rules, acknowledge, decide
from fairlead.policy.policy_state import remembered_findings
from fairlead.policy.return_to_service import MANUAL

CHECKS = {
    "xid": CheckPolicy(mode=Mode.ENFORCE),
    "link": CheckPolicy(mode=Mode.ENFORCE, confirm=2, confirm_after_job=3, confirm_of=4, boot_grace_seconds=40),
    "ecc": CheckPolicy(mode=Mode.OBSERVE, recover=5),
    "count": CheckPolicy(mode=Mode.ENFORCE),
}
GPUS = {"0000:1b:00.0": "S1", "0000:43:00.0": "S2"}
PAIRS = [(check, device) for check in ("xid", "link", "ecc") for device in GPUS] + [("count", "")]
Pair = tuple[str, str]
OPS = (
    ["sweep"] * 6
    + ["break"] * 3
    + ["heal"] * 4
    + ["hide", "wake", "reboot", "person", "lose", "observe", "enforce", "remove", "add", "hold", "job", "apply", "site", "blind"]
)


class World:
    """``truth``: "" for well, "?" for what cannot be read, else the name of the evidence."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.checks = dict(CHECKS)
        self.state = PolicyState()
        self.truth: dict[Pair, str] = dict.fromkeys(PAIRS, "")
        self.cut: set[Pair] = set()  # the kernel log's ring buffer has moved on
        self.seen: set[str] = set()  # evidence that the agent has been told of
        self.known: set[str] = set()  # evidence that a person has acknowledged
        self.boot = self.evidence = self.position = 0
        self.hold = self.job = self.apply = self.blind = self.drained = self.lost = False
        self.cause: set[Pair] = set()
        self.check = ""
        self.since = 0.0
        self.booted_at = -1000.0
        self.streak = 0

    def findings(self, pairs: list[Pair]) -> list[Finding]:
        found = []
        for pair in pairs:
            check, device = pair
            if self.blind and device:
                found.append(Finding(check=check, level=Level.UNKNOWN, summary="no device listed", service=Service.KEEP))
            elif self.truth[pair] == "?":
                found.append(Finding(check=check, level=Level.UNKNOWN, device=device, summary="?", service=Service.KEEP))
            elif self.truth[pair] and pair not in self.cut:
                after = Service.DRAIN_AFTER_JOB if int(self.truth[pair].rpartition(":")[2]) % 3 == 0 else Service.DRAIN_NOW
                self.seen.add(self.truth[pair])
                found.append(
                    Finding(
                        check=check,
                        level=Level.DRAIN,
                        device=device,
                        summary="bad: reset_gpu",
                        action=Action.RESET_GPU,
                        service=after,
                        evidence_id=self.truth[pair],
                    )
                )
        return found

    def sweep(self, ran: set[str] | None) -> None:
        """One decision of the agent. ``ran``: the checks that a record woke, None for a full sweep."""
        self.position += 1
        wall = 15.0 * self.position
        pairs = [p for p in PAIRS if p[0] in self.checks and (ran is None or p[0] in ran)]
        now = Now(
            boot_seconds=wall - self.booted_at,
            wall_seconds=1e9 + wall,
            boot_id=f"b{self.boot}",
            serials=GPUS,
            gpus=frozenset(GPUS),
            drained=self.drained,
            hold=self.hold,
            job_running=self.job,
            applying=self.apply,
            full_sweep=ran is None,
            drain_check=self.check,
            drain_since_seconds=self.since,
            proof=Proof.PASSED,
        )
        decision = decide(self.findings(pairs), self.checks, self.state, now, self.rules, ran=ran)
        if ran is None:
            self.streak = self.streak + 1 if not self.unwell() else 0
        self.judge(decision)
        self.state = decision.state
        if decision.order is Order.DRAIN:
            self.drained, self.check, self.since = True, decision.reason_check, now.wall_seconds
        if self.drained:
            self.cause |= {(f.check, f.device) for f in decision.counted}
        if decision.order is Order.RESUME:
            self.back()

    def unwell(self) -> set[Pair]:
        """What must be well before a resume and is not; what cannot be read is not."""
        must = {p for p in PAIRS if p in self.cause or (p[0] in self.checks and self.enforced(p[0]))}
        seen = {p for p in must if self.truth[p] not in {"", *self.known} or (self.blind and p[1])}
        return {p for p in seen if p[0] in self.checks or not self.lost}

    def enforced(self, check: str) -> bool:
        return self.rules.mode is Mode.ENFORCE and self.checks[check].mode is Mode.ENFORCE

    def judge(self, decision: Decision) -> None:
        if decision.order is Order.RESUME:
            assert self.drained and not self.hold and not self.apply
            assert not self.unwell(), self.unwell()
            assert self.streak >= 3, "so many clean sweeps, every one of them read"
            assert self.lost or {check for check, _ in self.cause} <= self.checks.keys(), "what drained it is still judged"
        if decision.order is Order.DRAIN:
            assert not self.drained and not self.hold
            assert all(
                self.enforced(f.check) and self.truth[f.check, f.device] not in {"", "?"}
                for f in decision.counted
                if not self.stale(f)
            )

    def stale(self, finding: Finding) -> bool:
        """Confirmed evidence counts until its recovery window is over, though it has just gone."""
        return self.state.tracks[finding.key].level is Level.DRAIN if finding.key in self.state.tracks else False

    def back(self) -> None:
        self.drained, self.check, self.cause, self.lost = False, "", set(), False

    def do(self, op: str, pair: Pair) -> None:
        if op == "break":
            self.evidence += 1
            self.truth[pair] = f"b{self.boot}:{self.evidence}" if pair[0] == "xid" else f"e:{self.evidence}"
            self.cut.discard(pair)
        elif op == "heal" and pair[0] != "xid":
            self.truth[pair] = ""
        elif op == "heal" and self.truth[pair] in self.seen:
            self.cut.add(pair)  # nobody repairs a kernel record; it can only go out of sight
        elif op == "hide" and pair[0] != "xid":
            self.truth[pair] = "?"
        elif op == "reboot":
            self.boot += 1
            self.booted_at = 15.0 * self.position
            self.streak = 0
            self.truth |= {p: "" for p in PAIRS if p[0] == "xid"}
            self.cut.clear()
        elif op == "person" and self.drained:
            self.known |= {t for t in self.truth.values() if t not in {"", "?"}}
            self.state = acknowledge(self.state, remembered_findings(self.state))
            self.back()
        elif op == "lose" and not self.cut:
            self.state, self.known, self.streak, self.lost = PolicyState(), set(), 0, True
            self.seen = set()
        elif op in ("observe", "enforce") and pair[0] in self.checks:
            self.checks[pair[0]] = replace(self.checks[pair[0]], mode=Mode(op))
        elif op == "remove" and pair[0] != "xid":
            self.checks.pop(pair[0], None)
        elif op == "add":
            self.checks.setdefault(pair[0], CHECKS[pair[0]])
        elif op == "site":
            self.rules = replace(self.rules, mode=Mode.OBSERVE if self.rules.mode is Mode.ENFORCE else Mode.ENFORCE)
        elif op in ("hold", "job", "apply", "blind"):
            setattr(self, op, not getattr(self, op))
        elif op == "wake":
            self.sweep({pair[0]} & self.checks.keys())
        elif op == "sweep":
            self.sweep(None)


EVENTS = st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from(PAIRS)), min_size=5, max_size=30)
TAIL = st.lists(st.none() | st.tuples(st.sampled_from(OPS), st.sampled_from(PAIRS)), min_size=6, max_size=14)
RULES = st.builds(
    Rules, strikes_max=st.sampled_from([0, 3]), ladder_window_seconds=st.sampled_from([0, 86400]), return_command=st.just(("x",))
)
Events = list[tuple[str, Pair]]


def play(events: Events, tail: list[tuple[str, Pair] | None], rules: Rules) -> World:
    """A story; then nearly all is mended, and more of it happens between the sweeps of the way back."""
    world = World(rules)
    for op, pair in events:
        world.do(op, pair)
    left = {pair for event in tail[:2] if event is not None for pair in [event[1]]}
    world.truth |= {p: "" for p in PAIRS if p[0] != "xid" and p not in left}
    world.hold = world.apply = world.blind = False
    if tail[2] is None:
        world.do("reboot", PAIRS[0])
    for event in tail:
        world.sweep(None)
        if event is not None:
            world.do(*event)
    for _ in range(5):
        world.sweep(None)
    return world


@settings(max_examples=100)
@given(EVENTS, TAIL, RULES)
def test_no_order_of_events_resumes_what_is_not_well(events: Events, tail: list[tuple[str, Pair] | None], rules: Rules) -> None:
    play(events, tail, rules)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=5_000, deadline=None)
@given(EVENTS, TAIL, RULES)
def test_no_order_of_events_resumes_what_is_not_well_at_length(
    events: Events, tail: list[tuple[str, Pair] | None], rules: Rules
) -> None:
    play(events, tail, rules)


def test_the_stories_do_resume_and_do_drain() -> None:
    """The property above is not empty: a plain story drains, and goes back after its window."""
    world = World(Rules())
    for op in ("sweep", "break", "sweep", "heal"):
        world.do(op, ("count", ""))
    assert world.drained
    for _ in range(6):
        world.sweep(None)
    assert not world.drained


@settings(max_examples=100)
@given(EVENTS)
def test_a_state_that_was_lost_never_resumes_sooner(events: Events) -> None:
    """An empty state in place of the one that was saved: no resume before a whole recovery window of its own."""
    world = World(Rules(strikes_max=0))
    for op, pair in events:
        if op != "lose":
            world.do(op, pair)
    world.drained = True
    world.do("lose", PAIRS[0])
    for sweeps in range(1, 3):
        drained = world.drained
        world.sweep(None)
        assert drained == world.drained, sweeps


def test_a_drain_by_a_person_is_not_proved() -> None:
    now = Now(boot_seconds=9e3, wall_seconds=1e9, boot_id="b", drained=True, drain_check=MANUAL)
    decision = decide([], {}, PolicyState(boot_id="b", clean_sweeps=9), now, Rules(return_command=("x",)))
    assert not decision.prove
