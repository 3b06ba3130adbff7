"""Decides which message about an idle job comes next. The state is what a journal of events says; nothing here has a clock.

The steps of a job are notify_1, notify_2, ask, act, in this order. The journal gets an "intent" before a step is carried out, and
the channel's answer after it. A step counts by what the channel answered, never by the time that has passed:

accepted      the channel returned the message's id. Only this can lead to an act.
sent          the program ended well and said nothing: sent, not known to be delivered.
refused       the channel said that it did not take the message. The step may be tried again, three times in all.
unconfirmed   nobody knows: the answer was lost. The step is not tried again, and no later step comes, until the channel says by
              the message's id whether it took the message.

A job that works again ends its episode. The next idle time begins with notify_1 again, under other message ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from fairlead.jobs.idle_rule import MODES, IdleOptions, JobJudgement, RunningJob

STEPS = ("notify_1", "notify_2", "ask", "act")
#: How many steps each mode allows.
ALLOWED = dict(zip(MODES, (0, 2, 3, 4), strict=True))
Kind = Literal["observed", "intent", "accepted", "sent", "refused", "unconfirmed", "not_taken", "active", "keep", "answer"]
HOUR, DAY, WEEK = 3600.0, 86400.0, 604800.0
RETRY_SECONDS = 600.0
TRIES_MAX = 3


class IdleEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one line of the journal. case: ``JOB@BEGIN``. message: the id of the message. detail: evidence or a reason, in words
    that fairlead itself wrote. answer: "work" or "idle"."""

    kind: Kind
    at_unix: float
    case: str
    user: str = ""
    step: str = ""
    message: str = ""
    detail: str = ""
    answer: str = ""


class StepState(Struct, frozen=True, kw_only=True):
    """Says how far a step is. status: intent, accepted, sent, refused or unconfirmed. at_unix: when the channel's answer, or
    the intent, was written."""

    status: str
    at_unix: float
    message: str
    tries: int = 1


class Case(Struct, frozen=True, kw_only=True):
    """Holds what the journal says of one run of a job. episode: counted up each time that the job works again."""

    user: str = ""
    episode: int = 0
    steps: dict[str, StepState] = {}
    keep_until: float = 0.0
    answer: str = ""
    observed_day: int = -1


class Stages(Struct, frozen=True, kw_only=True):
    """Holds all cases, and what the limits count: intents (time, user, step), keeps (time, user), answers."""

    cases: dict[str, Case] = {}
    intents: tuple[tuple[float, str, str], ...] = ()
    keeps: tuple[tuple[float, str], ...] = ()
    answers: tuple[tuple[float, str], ...] = ()


class World(Struct, frozen=True, kw_only=True):
    """Holds what a decision depends on beside the journal. slurm_answered: slurmctld listed its jobs a moment ago.
    clock_step_seconds: by how much the clock was set since the last run. nodes, nodes_fresh: how many nodes run GPU jobs, and how
    many of these gave a fresh record. switched_off: the file of the kill switch is there."""

    slurm_answered: bool
    clock_step_seconds: float
    nodes: int
    nodes_fresh: int
    switched_off: bool = False


class IdleDecision(Struct, frozen=True, kw_only=True):
    """Says what to do: "do" a step, "query" the channel about an earlier message, or "wait". why: the reason to wait."""

    act: Literal["do", "query", "wait"]
    step: str = ""
    message: str = ""
    why: str = ""


def case_name(job: RunningJob) -> str:
    """Return the name of one run of a job. A requeued job is another case."""
    return f"{job.job}@{job.begin_unix:.0f}"


def message_id(case: str, episode: int, step: str) -> str:
    """Return the id of a message. It is the same in every try, so that a channel can tell a message that it already has."""
    return f"fairlead-{case.replace('@', '-')}-{episode}-{step}"


# -- the journal --------------------------------------------------------------------------------------


def stages_of(events: Iterable[IdleEvent], options: IdleOptions, now: float) -> Stages:
    """Return the state that these events make."""
    cases: dict[str, Case] = {}
    intents, keeps, answers = [], [], []
    for event in events:
        cases[event.case] = after(cases.get(event.case, Case()), event, options)
        if event.kind == "intent" and event.at_unix > now - DAY:
            intents.append((event.at_unix, event.user, event.step))
        elif event.kind == "keep" and event.at_unix > now - WEEK:
            keeps.append((event.at_unix, event.user))
        elif event.kind == "answer" and event.at_unix > now - 90 * DAY:
            answers.append((event.at_unix, event.answer))
    return Stages(cases=cases, intents=tuple(intents), keeps=tuple(keeps), answers=tuple(answers))


def with_event(stages: Stages, event: IdleEvent, options: IdleOptions) -> Stages:
    """Return the state after one more event."""
    found = replace(stages, cases={**stages.cases, event.case: after(stages.cases.get(event.case, Case()), event, options)})
    if event.kind == "intent":
        return replace(found, intents=(*found.intents, (event.at_unix, event.user, event.step)))
    if event.kind == "keep":
        return replace(found, keeps=(*found.keeps, (event.at_unix, event.user)))
    return replace(found, answers=(*found.answers, (event.at_unix, event.answer))) if event.kind == "answer" else found


def after(case: Case, event: IdleEvent, options: IdleOptions) -> Case:
    """Return a case after one event."""
    case = replace(case, user=event.user or case.user)
    match event.kind:
        case "intent":
            tries = case.steps[event.step].tries + 1 if event.step in case.steps else 1
            state = StepState(status="intent", at_unix=event.at_unix, message=event.message, tries=tries)
            return replace(case, steps={**case.steps, event.step: state})
        case "accepted" | "sent" | "refused" | "unconfirmed" | "not_taken":
            earlier = case.steps.get(event.step)
            if earlier is None or earlier.message != event.message:
                return case  # an answer to a message of an earlier episode
            status = "refused" if event.kind == "not_taken" else event.kind
            return replace(case, steps={**case.steps, event.step: replace(earlier, status=status, at_unix=event.at_unix)})
        case "active":
            return replace(case, episode=case.episode + 1, steps={}) if case.steps else case
        case "keep":
            return replace(case, keep_until=event.at_unix + options.keep_hours * HOUR)
        case "answer":
            return replace(case, answer=event.answer)
        case "observed":
            return replace(case, observed_day=int(event.at_unix // DAY))


# -- the decision -------------------------------------------------------------------------------------


def doubts(stages: Stages, world: World, options: IdleOptions) -> tuple[str, ...]:
    """Return each reason for which the program does nothing now."""
    found = []
    if world.switched_off:
        found.append("it is switched off")
    if options.mode != "observe" and not options.signed_off:
        found.append("idle.signed_off is not set in site.toml")
    if not world.slurm_answered:
        found.append("slurmctld does not answer")
    if abs(world.clock_step_seconds) > 5:
        found.append(f"the clock was set by {world.clock_step_seconds:+.0f} s")
    if world.nodes_fresh < 0.9 * world.nodes:
        found.append(f"only {world.nodes_fresh} of {world.nodes} nodes with GPU jobs gave a fresh record")
    right = sum(answer == "idle" for _, answer in stages.answers)
    if len(stages.answers) >= options.answers_min and right < options.precision_min * len(stages.answers):
        found.append(f"{len(stages.answers) - right} of {len(stages.answers)} answers say that the job worked")
    return tuple(found)


def decision(stages: Stages, job: RunningJob, judgement: JobJudgement, now: float, options: IdleOptions) -> IdleDecision:
    """Return what to do about a job now. The caller has seen that there is no doubt."""
    name = case_name(job)
    case = stages.cases.get(name, Case())
    if case.answer:
        return _wait("its owner has answered")
    if now < case.keep_until:
        return _wait("its owner wants to keep it")
    if not judgement.is_for_notice:
        return _wait(f"{judgement.word}: {judgement.spared or judgement.why}")
    step = next((s for s in STEPS if s not in case.steps or case.steps[s].status not in ("accepted", "sent")), "")
    if not step:
        return _wait("every step was taken")
    if STEPS.index(step) >= ALLOWED[options.mode]:
        return _wait(f"idle.mode is {options.mode}")
    state = case.steps.get(step)
    if state is not None and state.status in ("intent", "unconfirmed"):
        return IdleDecision(act="query", step=step, message=state.message, why="it is not known whether the channel took it")
    if state is not None and (state.tries >= TRIES_MAX or now < state.at_unix + RETRY_SECONDS):
        return _wait("the channel refused the message")
    why = (
        _too_soon(step, case, now, options)
        or _forbidden(step, case, job, options)
        or _limited(stages, step, job.user, now, options)
    )
    return _wait(why) if why else IdleDecision(act="do", step=step, message=message_id(name, case.episode, step))


def _wait(why: str) -> IdleDecision:
    return IdleDecision(act="wait", why=why)


def _too_soon(step: str, case: Case, now: float, options: IdleOptions) -> str:
    """Return why a step has to wait for more time after the step before it, or ""."""
    if step == STEPS[0]:
        return ""
    before = case.steps[STEPS[STEPS.index(step) - 1]]
    minutes = options.repeat_minutes if step == "notify_2" else options.ask_minutes
    return "" if now >= before.at_unix + 60 * minutes else f"{step} comes {minutes:g} min after the step before it"


def _forbidden(step: str, case: Case, job: RunningJob, options: IdleOptions) -> str:
    """Return why a step must not come, or "". Only an act can be forbidden."""
    if step != "act":
        return ""
    if not options.act_command:
        return "idle.act_command is not set in site.toml"
    if job.partition not in options.act_partitions:
        return "its partition is not in idle.act_partitions"
    unknown = [name for name in STEPS[:3] if case.steps[name].status != "accepted"]
    return f"{', '.join(unknown)}: sent, not known to be delivered" if unknown else ""


def _limited(stages: Stages, step: str, user: str, now: float, options: IdleOptions) -> str:
    """Return which limit a step would exceed, or "". An intent counts, whatever became of it."""
    if step == "act":
        acts = [who for at, who, what in stages.intents if what == "act" and at > now - HOUR]
        if len(acts) >= options.acts_per_hour:
            return "the limit of acts per hour is reached"
        return "the limit of acts per user and hour is reached" if acts.count(user) >= options.acts_per_user_per_hour else ""
    told_hour = [who for at, who, what in stages.intents if what != "act" and at > now - HOUR]
    told_day = [who for at, who, what in stages.intents if what != "act" and at > now - DAY]
    if len(told_hour) >= options.notices_per_hour:
        return "the limit of messages per hour is reached"
    return "the limit of messages per user and day is reached" if told_day.count(user) >= options.notices_per_user_per_day else ""


def marks_seen(stages: Stages, job: RunningJob, now: float, options: IdleOptions) -> tuple[IdleEvent, ...]:
    """Return the events for the words that an owner has put into the job's comment, each once."""
    name = case_name(job)
    case = stages.cases.get(name, Case())
    if (job.work or job.idle) and case.steps and not case.answer:
        return (IdleEvent(kind="answer", at_unix=now, case=name, user=job.user, answer="work" if job.work else "idle"),)
    recent = sum(who == job.user and at > now - WEEK for at, who in stages.keeps)
    if job.keep and now >= case.keep_until and recent < options.keeps_per_user_per_week:
        return (IdleEvent(kind="keep", at_unix=now, case=name, user=job.user),)
    return ()
