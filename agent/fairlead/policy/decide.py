"""Decides what this node's findings mean for Slurm now.

A finding counts once it is confirmed: at least ``confirm`` of the last ``confirm_of`` sweeps had it. It stops counting after
``recover`` sweeps without it. A sweep whose reading is missing never counts as clean. Findings that are suppressed or only
observed give the node the level ``warn``. The verdict is ``drain`` only if slurmctld has drained the node for fairlead. With this
verdict the prolog exits with 1, and Slurm then drains the node. An earlier ``drain`` would therefore bypass the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from fairlead.model.finding import Finding, Level, Mode, Service
from fairlead.model.verdict import State
from fairlead.policy import ladder
from fairlead.policy.decision_rules import DRIVER_CHECKS, SETTING_PREFIX, CheckPolicy, Rules, enforced, policy_for
from fairlead.policy.decision_text import Order, line, proof_words, summary, weight
from fairlead.policy.drain_limits import certain
from fairlead.policy.ownership import MANUAL
from fairlead.policy.policy_state import EscalationStep, Now, PolicyState, Proof, Track, identity
from fairlead.policy.return_to_service import by_hand, is_clean, may_resume
from fairlead.policy.tracks import (
    advance,
    count_at_least,
    earlier_boot_only,
    says_nothing_new,
    severity_of,
    start_of_boot,
    still_meant,
)


class Decision(Struct, frozen=True, kw_only=True):
    """Holds the decision of one sweep.

    order: what to do in Slurm. level: the level of the node, by the findings that count. state_word: the verdict's word until
    Slurm has confirmed the order. text: the verdict's one line of text. state: the next policy state. The caller saves this
    state before anything is written to Slurm.

    reason_check, reason_summary: the parts of the drain's reason, without any text that a user chose. job: the job to blame, or
    None. certain: no job can use the device, whoever broke it (``policy.drain_limits``). limited: only a drain limit delays
    the drain that the reason describes. waits: the drain is decided and waits for the end of the job.

    counted: the findings that drain. suppressed: the findings at DRAIN that do not drain. why_suppressed: one reason for each
    suppressed finding. warned: the findings that only warn. unknown: the findings at UNKNOWN. escalations: the escalation
    steps of findings that now need a stronger action than their check gives. ``ladder.as_escalated`` adds the step to a
    finding. prove: the return-to-service command may run now, and nothing else delays the resume.
    """

    order: Order
    level: Level
    state_word: State
    text: str
    state: PolicyState
    reason_check: str = ""
    reason_summary: str = ""
    job: int | None = None
    certain: bool = False
    limited: bool = False
    counted: tuple[Finding, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    why_suppressed: tuple[str, ...] = ()
    waits: bool = False
    warned: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    escalations: dict[str, EscalationStep] = {}
    prove: bool = False


def decide(
    findings: Iterable[Finding],
    checks: Mapping[str, CheckPolicy],
    state: PolicyState,
    now: Now,
    rules: Rules,
    *,
    ran: Collection[str] | None = None,
) -> Decision:
    """Judge all findings of this sweep and return the decision.

    ``checks`` has the enabled checks and the managed settings (``setting.NAME``) with their policies. ``ran`` names the checks
    that ran in this sweep. None means that all of them ran. For the other checks, the findings of their last run stay. A check
    that has not yet run in this boot is UNKNOWN.
    """
    policies = dict(checks)
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.key, []).append(finding)
    started = replace(start_of_boot(state, now), gpu_serials=ladder.gpu_serials(state.gpu_serials, now))
    judged = frozenset(policies) | {f[0].check for f in found.values()} if ran is None else frozenset(ran)
    blind = {f[0].check for f in found.values() if any(x.level is Level.UNKNOWN and not x.device for x in f)}
    tracks: dict[str, Track] = {}
    for key in sorted(started.tracks.keys() | found.keys()):
        name = key.partition("/")[0]
        track = started.tracks.get(key, Track())
        if name in blind and key not in found:
            # the check saw no device at all, so a missing finding does not prove health
            track = replace(track, clean=0, floor=Level.OK)
        elif name in judged:
            said = tuple(found.get(key, ()))
            if now.full_sweep or not says_nothing_new(track, said):
                track = advance(track, said, policy_for(name, policies), now, frozenset(started.acknowledged))
        elif name not in policies:
            continue
        if track.level is not Level.OK or any(track.window) or track.found:
            tracks[key] = track
    ran_now = started.ran | (judged & policies.keys())
    never = tuple(
        Finding(check=name, level=Level.UNKNOWN, summary="has not run yet", service=Service.KEEP)
        for name in sorted(policies.keys() - ran_now)
    )
    clean = is_clean(started, tracks, policies, never, now=now, rules=rules)
    sweeps = 0 if not clean else started.clean_sweeps + (1 if now.full_sweep else 0)
    thorough = now.full_sweep and judged >= policies.keys()
    thorough_sweeps = 0 if not clean else started.thorough_clean_sweeps + (1 if thorough else 0)
    following = replace(
        started,
        tracks=tracks,
        ran=ran_now,
        clean_sweeps=sweeps,
        thorough_clean_sweeps=thorough_sweeps,
        acknowledged=tuple(a for a in started.acknowledged if still_meant(a, tracks, now)),
        strikes=ladder.strikes(started, tracks, policies, now, rules),
        reboots=ladder.reboots(state, policies, now, rules),
    )
    following = replace(following, ladder=ladder.escalate(state, following, policies, now, rules))
    return _conclude(following, policies, never, now, rules)


def _why_not(name: str, policies: dict[str, CheckPolicy], now: Now, rules: Rules) -> str:
    """Return why a confirmed finding of this check does not drain now, or "" if it drains."""
    if rules.mode is not Mode.ENFORCE:
        return "observed only: policy.mode"
    if not enforced(name, policies, rules):
        return "observed only"
    if now.disabled:
        return "fairlead is disabled on this node"
    if now.hold:
        return "held by an admin"
    if now.applying and (name.startswith(SETTING_PREFIX) or name in DRIVER_CHECKS):
        return "apply or maintenance is running"
    return now.over_budget


def _unconfirmed(finding: Finding, track: Track, policy: CheckPolicy, now: Now) -> str:
    """Return why a finding at DRAIN does not count yet, or "" if it counts."""
    severity = severity_of(finding)
    if severity <= track.confirmed:
        return ""
    if now.boot_seconds < policy.boot_grace_seconds:
        return "boot grace"
    return f"not confirmed: {count_at_least(track.window, severity)} of {policy.needed(severity)}"


class _Sorted(Struct, kw_only=True):
    """Holds the findings of all tracks, sorted by their effect (see ``Decision``). waiting: findings whose drain waits for the
    end of the job. limited: findings whose drain only a drain limit delays. suppressed: pairs of a finding and the reason why it
    does not drain."""

    unknown: list[Finding]
    counted: list[Finding] = []
    waiting: list[Finding] = []
    limited: list[Finding] = []
    suppressed: list[tuple[Finding, str]] = []
    warned: list[Finding] = []


def _sort(state: PolicyState, policies: dict[str, CheckPolicy], never: tuple[Finding, ...], now: Now, rules: Rules) -> _Sorted:
    """Sort the findings of the tracks by their effect. ``never`` has a finding at UNKNOWN for each check that has not yet run."""
    found = _Sorted(unknown=list(never))
    acknowledged = set(state.acknowledged)
    for key, track in state.tracks.items():
        name, _, device = key.partition("/")
        policy = policy_for(name, policies)
        found.unknown += [f for f in track.found if f.level is Level.UNKNOWN]
        if track.level is Level.UNKNOWN and not any(f.level is Level.UNKNOWN for f in track.found):
            found.unknown.append(Finding(check=name, level=Level.UNKNOWN, device=device, summary="just readable again"))
        if track.level is not Level.OK:  # a confirmed warning, or worse
            found.warned += [
                f for f in track.found if f.level is Level.WARN or (f.level is Level.DRAIN and f.service is Service.KEEP)
            ]
        if track.level is Level.DRAIN:
            _sort_drains(found, track, policy, now, rules, why_not=_why_not(name, policies, now, rules))
        else:
            found.suppressed += [(f, _unconfirmed(f, track, policy, now)) for f in track.bad]
        found.suppressed += [(f, "acknowledged") for f in track.found if f.level is Level.DRAIN and identity(f) in acknowledged]
        if track.level is Level.WARN and not track.found:
            found.warned.append(Finding(check=name, level=Level.WARN, device=device, summary="just well again"))
    # a driver that does not answer explains the other findings, so its finding comes first
    found.unknown.sort(key=lambda f: (f.check != "nvml_responsive", not f.device, f.check))
    return found


def _sort_drains(found: _Sorted, track: Track, policy: CheckPolicy, now: Now, rules: Rules, *, why_not: str) -> None:
    """Sort the findings of a track at DRAIN by their effect. ``why_not`` is the reason why no finding of this check drains now,
    or ""."""
    for finding in track.bad:
        waits = _waits(finding, track, now, rules)
        why = why_not or earlier_boot_only(track, now) or _unconfirmed(finding, track, policy, now)
        if why := why or ("" if certain(finding) else now.suspicion):
            found.suppressed.append((finding, why))
            if why in (now.over_budget, now.suspicion) and not waits:
                found.limited.append(finding)
        elif waits:
            found.waiting.append(finding)
        else:
            found.counted.append(finding)


def _conclude(
    state: PolicyState, policies: dict[str, CheckPolicy], never: tuple[Finding, ...], now: Now, rules: Rules
) -> Decision:
    found = _sort(state, policies, never, now, rules)
    escalations = ladder.raised(state, now)

    def escalated(findings: Iterable[Finding]) -> tuple[Finding, ...]:
        return tuple(ladder.as_escalated(f, escalations) for f in findings)

    drains = tuple(sorted((*found.counted, *found.waiting), key=weight))
    resume_by_hand = by_hand(state, policies, now, rules)
    ready = now.drained and not drains and not resume_by_hand and may_resume(state, policies, now, rules)
    prove = ready and bool(rules.return_command) and now.drain_check != MANUAL
    order = _order(found, ready=ready, prove=prove, now=now)
    level = _level(found, drains)
    drained_for = _drained_for(state, drains, order, now)
    drains = escalated(drains)
    suppressed = sorted(((ladder.as_escalated(f, escalations), why) for f, why in found.suppressed), key=lambda s: weight(s[0]))
    top = escalated(sorted(found.counted or found.limited, key=weight)) or drains
    return Decision(
        order=order,
        level=level,
        state_word=_word(order, level, now, unknown=bool(found.unknown)),
        text=line(
            order=order,
            drains=drains,
            due=bool(found.counted),
            suppressed=suppressed,
            unknown=found.unknown,
            warned=found.warned,
            drained=now.drained,
            manual=now.drain_check == MANUAL,
            back=f"{resume_by_hand}: resume by hand" if resume_by_hand else proof_words(now) if prove else "",
        ),
        state=replace(state, drained=now.drained, drained_for=drained_for),
        reason_check=top[0].check if top else "",
        reason_summary=summary(top),
        job=_blamed(top[0], state) if top else None,
        certain=any(certain(f) for f in found.counted or found.limited),
        limited=bool(found.limited) and not found.counted and not now.drained,
        counted=drains,
        suppressed=tuple(f for f, _ in suppressed),
        why_suppressed=tuple(why for _, why in suppressed),
        waits=bool(found.waiting) and not found.counted and not now.drained,
        warned=tuple(found.warned),
        unknown=tuple(found.unknown),
        escalations=escalations,
        prove=prove and not now.job_running,
    )


def _order(found: _Sorted, *, ready: bool, prove: bool, now: Now) -> Order:
    """Return the order for Slurm. ``ready`` says that the node may be resumed. ``prove`` says that the return-to-service command
    must pass before the resume."""
    if ready and (not prove or (now.proof is Proof.PASSED and not now.job_running)):
        return Order.RESUME
    return Order.DRAIN if found.counted and not now.drained else Order.KEEP


def _level(found: _Sorted, drains: tuple[Finding, ...]) -> Level:
    if drains:
        return Level.DRAIN
    if found.unknown:
        return Level.UNKNOWN
    return Level.WARN if found.warned or found.suppressed else Level.OK


def _blamed(finding: Finding, state: PolicyState) -> int | None:
    """Return the job to blame, or None. If the finding has the jobs on its device, this is the only job there. Otherwise it is
    the job that ran alone on the node."""
    if finding.jobs is not None:
        return finding.jobs[0] if len(finding.jobs) == 1 else None
    return state.tracks[finding.key].job


def _drained_for(state: PolicyState, drains: tuple[Finding, ...], order: Order, now: Now) -> frozenset[str]:
    """Return the keys (check/device) of the findings for which the node is drained, or is to be drained now."""
    if not now.drained and order is not Order.DRAIN:
        return frozenset()
    return (state.drained_for if now.drained else frozenset()) | {f.key for f in drains}


def _waits(finding: Finding, track: Track, now: Now, rules: Rules) -> bool:
    """Return whether a drain still waits for the jobs that were on the node when its finding appeared. It does not wait for later
    jobs, because on a busy node the next job starts as soon as a job has ended. A job that runs when the node is set to DRAIN
    goes on to its end anyway."""
    if finding.service is not Service.DRAIN_AFTER_JOB or not now.job_running:
        return False
    if track.jobs is not None and not track.jobs & now.jobs:
        return False
    return not rules.after_job_max_seconds or now.wall_seconds - track.since_seconds < rules.after_job_max_seconds


def _word(order: Order, level: Level, now: Now, *, unknown: bool) -> State:
    if now.drained and order is not Order.RESUME:
        return State.DRAIN
    if unknown:
        return State.UNKNOWN
    return State.OK if level is Level.OK else State.WARN
