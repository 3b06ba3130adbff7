"""Under any order of crashes, lost replies and times: no step is skipped, nobody is told twice, and limits hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.jobs.idle_rule import IdleOptions, JobJudgement, RunningJob
from fairlead.jobs.idle_stages import (
    STEPS,
    Case,
    IdleEvent,
    Stages,
    World,
    case_name,
    decision,
    doubts,
    marks_seen,
    message_id,
    stages_of,
    with_event,
)  # fmt: skip
from tests.jobs.idle_fleet import a_run

JOB = a_run(1)
NAME = case_name(JOB)
IDLE = JobJudgement(word="idle", why="idle", idle_gpus=2, idle_seconds=3600.0)
ACT = IdleOptions(mode="act", signed_off="2026-11-01", act_command="/bin/true", act_partitions=("gpu",), channel="/bin/true")
GOOD = World(slurm_answered=True, clock_step_seconds=0.0, nodes=10, nodes_fresh=10)
NOW = 1_790_100_000.0


def journal(*kinds: tuple[str, str, float]) -> Stages:
    """The state after these events: (kind, step, minutes before NOW). An answer belongs to the step's message."""
    events = [
        IdleEvent(kind=kind, at_unix=NOW - 60 * minutes, case=NAME, user=JOB.user, step=step, message=message_id(NAME, 0, step))  # type: ignore[arg-type]
        for kind, step, minutes in kinds
    ]
    return stages_of(events, ACT, NOW)


def next_(stages: Stages, job: RunningJob = JOB, judgement: JobJudgement = IDLE, **options: Any) -> tuple[str, str]:
    found = decision(stages, job, judgement, NOW, replace(ACT, **options))
    return found.act, found.step or found.why


def taken(step: str, minutes: float, kind: str = "accepted") -> tuple[tuple[str, str, float], ...]:
    return (("intent", step, minutes), (kind, step, minutes))


ALL_BUT_ACT = (*taken("notify_1", 180), *taken("notify_2", 120), *taken("ask", 60))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), ("do", "notify_1")),
        ((("intent", "notify_1", 180),), ("query", "notify_1")),
        (taken("notify_1", 180, "unconfirmed"), ("query", "notify_1")),
        (taken("notify_1", 30), ("wait", "notify_2 comes 60 min after the step before it")),
        (taken("notify_1", 180), ("do", "notify_2")),
        (taken("notify_1", 180, "sent"), ("do", "notify_2")),
        (taken("notify_1", 5, "refused"), ("wait", "the channel refused the message")),
        (taken("notify_1", 15, "refused"), ("do", "notify_1")),
        (taken("notify_1", 15, "refused") * 3, ("wait", "the channel refused the message")),
        ((*taken("notify_1", 180), *taken("notify_2", 120)), ("do", "ask")),
        (ALL_BUT_ACT, ("do", "act")),
        ((*taken("notify_1", 180, "sent"), *ALL_BUT_ACT[2:]), ("wait", "notify_1: sent, not known to be delivered")),
        ((*ALL_BUT_ACT, ("intent", "act", 30)), ("query", "act")),
        ((*ALL_BUT_ACT, *taken("act", 30)), ("wait", "every step was taken")),
        ((*taken("notify_1", 180), ("active", "", 100)), ("do", "notify_1")),
    ],
)
def test_the_next_step(events: tuple[tuple[str, str, float], ...], expected: tuple[str, str]) -> None:
    assert next_(journal(*events)) == expected


@pytest.mark.parametrize(("mode", "last"), [("observe", None), ("notify", "notify_2"), ("ask", "ask"), ("act", "act")])
def test_each_mode_goes_as_far_as_the_site_says(mode: str, last: str | None) -> None:
    events: list[tuple[str, str, float]] = []
    done = []
    while (found := next_(journal(*events), mode=mode))[0] == "do":
        done.append(found[1])
        events = [(kind, step, minutes + 120) for kind, step, minutes in events] + list(taken(found[1], 120))
    assert (done[-1] if done else None) == last
    assert tuple(done) == STEPS[: len(done)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"act_command": ""}, "idle.act_command is not set in site.toml"),
        ({"act_partitions": ("other",)}, "its partition is not in idle.act_partitions"),
        ({"acts_per_hour": 0}, "the limit of acts per hour is reached"),
        ({"acts_per_user_per_hour": 0}, "the limit of acts per user and hour is reached"),
    ],
)
def test_what_forbids_an_act(options: dict[str, Any], why: str) -> None:
    assert next_(journal(*ALL_BUT_ACT), **options) == ("wait", why)


@pytest.mark.parametrize("word", ["active", "partly", "unknown", "exempt"])
def test_only_idle_jobs_are_told(word: str) -> None:
    assert next_(Stages(), judgement=JobJudgement(word=word, why="x"))[0] == "wait"


def test_a_spared_job_is_not_told() -> None:
    assert next_(Stages(), judgement=replace(IDLE, spared="memory_kept")) == ("wait", "idle: memory_kept")


@pytest.mark.parametrize(
    ("world", "options", "said"),
    [
        ({"switched_off": True}, {}, "switched off"),
        ({"slurm_answered": False}, {}, "slurmctld"),
        ({"clock_step_seconds": -7.0}, {}, "clock"),
        ({"nodes_fresh": 8}, {}, "8 of 10 nodes"),
        ({}, {"signed_off": ""}, "signed_off"),
    ],
)
def test_doubts(world: dict[str, Any], options: dict[str, Any], said: str) -> None:
    (found,) = doubts(Stages(), replace(GOOD, **world), replace(ACT, **options))
    assert said in found


def test_without_doubt() -> None:
    assert doubts(Stages(), GOOD, ACT) == ()
    assert doubts(Stages(), GOOD, IdleOptions()) == ()  # observe needs no signature


@pytest.mark.parametrize(("work", "idle", "stops"), [(1, 3, False), (1, 4, True), (1, 19, False), (1, 18, True), (0, 50, False)])
def test_it_stops_below_the_precision(work: int, idle: int, stops: bool) -> None:
    answers = tuple((NOW, word) for word in ["work"] * work + ["idle"] * idle)
    assert bool(doubts(Stages(answers=answers), GOOD, ACT)) is stops


def test_answers_are_counted_once_and_end_the_case() -> None:
    stages = journal(*taken("notify_1", 180))
    (event,) = marks_seen(stages, replace(JOB, work=True), NOW, ACT)
    stages = with_event(stages, event, ACT)
    assert not marks_seen(stages, replace(JOB, work=True), NOW, ACT)
    assert next_(stages) == ("wait", "its owner has answered")
    assert not marks_seen(Stages(), replace(JOB, work=True), NOW, ACT)  # who was not told cannot answer


def test_keep_holds_for_a_time_and_is_limited_per_week() -> None:
    kept = replace(JOB, keep=True)
    (event,) = marks_seen(Stages(), kept, NOW, ACT)
    stages = with_event(Stages(), event, ACT)
    assert next_(stages) == ("wait", "its owner wants to keep it")
    assert not marks_seen(replace(Stages(), keeps=((NOW, JOB.user),) * 10), kept, NOW, ACT)


# -- any order ----------------------------------------------------------------------------------------

#: What happens in one poll: the minutes before it, and how the channel and the program behave in it.
ACTIONS = st.tuples(
    st.integers(min_value=1, max_value=90),
    st.sampled_from(
        ["accepted", "sent", "refused", "lost", "killed before", "killed after", "killed before the reply is written"]
    ),
    st.sampled_from(["idle"] * 6 + ["active", "unknown"]),
    st.sampled_from(["knows", "silent", "wrong"]),
)


class Played:
    """A program that may be killed in each poll, and a channel that keeps what it really got. Only the journal survives."""

    def __init__(self, jobs: int) -> None:
        self.jobs = [replace(a_run(n), user=f"user{n % 2}") for n in range(1, jobs + 1)]
        self.events: list[IdleEvent] = []
        self.got: list[str] = []  # the messages that really arrived
        self.carried_out: list[tuple[float, str, str, str]] = []  # time, user, step, message
        self.now = NOW

    def poll(self, minutes: int, fate: str, word: str, channel: str) -> None:
        self.now += 60 * minutes
        stages = stages_of(self.events, ACT, self.now)
        for job in self.jobs:
            judgement = IDLE if word == "idle" else JobJudgement(word=word, why="x")
            case = stages.cases.get(case_name(job), Case())
            if word == "active" and case.steps:
                stages = self.write(stages, IdleEvent(kind="active", at_unix=self.now, case=case_name(job), user=job.user))
            found = decision(stages, job, judgement, self.now, ACT)
            event = IdleEvent(
                kind="intent", at_unix=self.now, case=case_name(job), user=job.user, step=found.step, message=found.message
            )
            if found.act == "query":
                known = {"knows": "accepted" if found.message in self.got else "not_taken", "silent": "unconfirmed"}
                answer = "unconfirmed" if found.step == "act" else known.get(channel, "unconfirmed")
                stages = self.write(stages, replace(event, kind=answer))  # type: ignore[arg-type]
                found = decision(stages, job, judgement, self.now, ACT)
                event = replace(event, step=found.step, message=found.message)
            if found.act != "do":
                continue
            if fate == "killed before":
                return
            stages = self.write(stages, event)
            if fate == "killed after":
                return
            if fate != "refused":
                self.got.append(found.message)
                self.carried_out.append((self.now, job.user, found.step, found.message))
            if fate == "killed before the reply is written":
                return
            kind = "unconfirmed" if fate == "lost" else fate
            stages = self.write(stages, replace(event, kind=kind))  # type: ignore[arg-type]

    def write(self, stages: Stages, event: IdleEvent) -> Stages:
        self.events.append(event)
        return with_event(stages, event, ACT)


@settings(max_examples=300)
@given(jobs=st.integers(min_value=1, max_value=5), actions=st.lists(ACTIONS, max_size=40))
def test_no_step_is_skipped_nobody_is_told_twice_limits_hold(jobs: int, actions: list[tuple[int, str, str, str]]) -> None:
    played = Played(jobs)
    for minutes, fate, word, channel in actions:
        played.poll(minutes, fate, word, channel)
    assert max(Counter(played.got).values(), default=1) == 1, "somebody was told twice"
    for message in played.got:
        head, _, step = message.rpartition("-")
        missing = [s for s in STEPS[: STEPS.index(step)] if f"{head}-{s}" not in played.got]
        assert not missing, f"{message} came without {missing}"
    acts = [(at, user) for at, user, step, _ in played.carried_out if step == "act"]
    for at, user in acts:
        within = [who for when, who in acts if at - 3600 < when <= at]
        assert len(within) <= ACT.acts_per_hour
        assert within.count(user) <= ACT.acts_per_user_per_hour
    assert stages_of(played.events, ACT, played.now).cases == _folded(played.events)


def _folded(events: list[IdleEvent]) -> dict[str, Case]:
    stages = Stages()
    for event in events:
        stages = with_event(stages, event, ACT)
    return stages.cases


def test_the_whole_way_is_walked_by_the_played_program() -> None:
    played = Played(1)
    for _ in range(6):
        played.poll(90, "accepted", "idle", "knows")
    assert [message.rpartition("-")[2] for message in played.got] == list(STEPS)
