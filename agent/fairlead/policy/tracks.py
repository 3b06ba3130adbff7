"""Decides when the findings of one check on one device begin to count (N of M sweeps, boot grace), and when they have ended."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.model.finding import Finding, Level, Service
from fairlead.policy.decision_rules import CheckPolicy, Severity
from fairlead.policy.policy_state import Now, PolicyState, Track, identity, rank

EARLIER = "seen before the reboot, not since"
_BOOT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:")  # the evidence of a kernel record begins with its boot id


def start_of_boot(state: PolicyState, now: Now) -> PolicyState:
    """Return the state for this boot. At the start of a boot, a drain stays set, and no check counts as run.

    A reboot may have repaired a fault. So a finding of an earlier boot does not drain a node until this boot finds it again.
    Kernel records of an earlier boot never drain, because most of them ask for a reboot. If the node is already drained for such
    a record, this drain ends like any other, after clean sweeps. Confirmations from before the boot count only while the node
    stays drained.
    """
    if state.boot_id == now.boot_id:
        return state if now.drained else _confirmed_in_this_boot(state)
    anew = {"window": (), "clean": 0, "floor": Level.OK}
    tracks = {
        key: replace(track, earlier=bool(track.bad), confirmed_earlier=track.confirmed > 0, **anew)
        for key, track in state.tracks.items()
    }
    if not now.drained:
        tracks = {key: _without_log(track, state.boot_id) for key, track in tracks.items()}
    begun = replace(state, boot_id=now.boot_id, ran=frozenset(), clean_sweeps=0, thorough_clean_sweeps=0, tracks=tracks)
    return begun if now.drained else _confirmed_in_this_boot(begun)


def _without_log(track: Track, boot_id: str) -> Track:
    rest = tuple(f for f in track.bad if not boot_id or not f.evidence_id.startswith(f"{boot_id}:"))
    level = track.level if rest or not track.bad else min(track.level, Level.WARN, key=rank)
    return replace(track, bad=rest, level=level)


def _confirmed_in_this_boot(state: PolicyState) -> PolicyState:
    """Return the state without the confirmations from before the boot. On a node without a drain, a finding must be confirmed
    again, with boot grace and N of M sweeps."""
    if not any(track.confirmed_earlier for track in state.tracks.values()):
        return state
    anew = {"confirmed": 0, "confirmed_earlier": False}
    return replace(state, tracks={k: replace(t, **anew) if t.confirmed_earlier else t for k, t in state.tracks.items()})


def of_this_boot(state: PolicyState, boot_id: str) -> PolicyState:
    """Return the state of a node whose drain a reboot has lifted. It has no kernel records of earlier boots, so these do not
    drain."""
    tracks = {}
    for key, track in state.tracks.items():
        rest = tuple(f for f in track.bad if not _BOOT.match(f.evidence_id) or f.evidence_id.startswith(f"{boot_id}:"))
        level = track.level if rest or not track.bad else min(track.level, Level.WARN, key=rank)
        tracks[key] = replace(track, bad=rest, level=level)
    return replace(state, tracks=tracks)


def of_the_past(identity: str) -> bool:
    """Return whether the evidence with this name (see ``policy_state.identity``) is a kernel record. A kernel record is a past
    event. All other evidence is a present state."""
    return _BOOT.match(identity.partition("#")[2]) is not None


def still_meant(acknowledged: str, tracks: Mapping[str, Track], now: Now) -> bool:
    """Return whether an acknowledgement still counts. For a kernel record it counts until the boot ends. For a present state it
    counts until this state has gone."""
    key, _, evidence = acknowledged.partition("#")
    return evidence.startswith(f"{now.boot_id}:") or key in tracks


def earlier_boot_only(track: Track, now: Now) -> str:
    """Return why the findings do not drain if they are only from an earlier boot, or "" if this boot has them, too. On a drained
    node return ""."""
    return EARLIER if track.earlier and not now.drained else ""


def _raw(found: tuple[Finding, ...], acknowledged: frozenset[str]) -> tuple[Level, tuple[Finding, ...]]:
    """Return the worst level of one sweep's findings of one key, and the findings at DRAIN that nobody has acknowledged."""
    bad = tuple(f for f in found if f.level is Level.DRAIN and f.service is not Service.KEEP and identity(f) not in acknowledged)
    if bad:
        return Level.DRAIN, bad
    return max((Level.WARN if f.level is Level.DRAIN else f.level for f in found), key=rank, default=Level.OK), ()


def severity_of(finding: Finding) -> Severity:
    """Return the severity of a finding at DRAIN."""
    return Severity.AFTER_JOB if finding.service is Service.DRAIN_AFTER_JOB else Severity.NOW


def count_at_least(window: tuple[int, ...], severity: Severity) -> int:
    """Return how many sweeps of the window had a finding of at least this severity."""
    return sum(1 for s in window if s >= severity)


def says_nothing_new(track: Track, found: tuple[Finding, ...]) -> bool:
    """Return whether a check, started by a kernel record, has the same findings as in its last sweep. Such a run is not
    counted."""
    return {identity(f) for f in found} == {identity(f) for f in track.found}


def advance(track: Track, found: tuple[Finding, ...], policy: CheckPolicy, now: Now, acknowledged: frozenset[str]) -> Track:
    """Return the track after one more sweep, which found ``found``."""
    raw, bad = _raw(found, acknowledged)
    grace = now.boot_seconds < policy.boot_grace_seconds
    worst = max(map(severity_of, bad), default=Severity.WARN if raw is Level.WARN else Severity.NONE)
    window = (*track.window, min(worst, Severity.WARN) if grace else worst)[-policy.confirm_of :]
    if raw is Level.DRAIN:
        enough = (s for s in (Severity.AFTER_JOB, Severity.NOW) if s <= worst and count_at_least(window, s) >= policy.needed(s))
        confirmed_now = Severity.NONE if grace else max(enough, default=Severity.NONE)
        confirmed = max(track.confirmed, confirmed_now)
        earlier = track.confirmed_earlier and confirmed_now < confirmed
        was_draining = track.level is Level.DRAIN
        level = (
            Level.DRAIN
            if was_draining or any(severity_of(f) <= confirmed for f in bad)
            else max(track.level, Level.WARN, key=rank)
        )
        since, jobs = track.since_seconds, track.jobs
        if level is Level.DRAIN and not was_draining:
            since, jobs = now.wall_seconds, None if now.job_running and not now.jobs else now.jobs
        job = now.job if {identity(f) for f in bad} - {identity(f) for f in track.bad} else track.job
        track = Track(level=level, window=window, confirmed=confirmed, bad=bad, found=found)
        return replace(track, since_seconds=since, jobs=jobs, job=job, confirmed_earlier=earlier)
    if raw is Level.WARN and track.level is Level.OK and count_at_least(window, Severity.WARN) < policy.needed(Severity.WARN):
        return replace(track, window=window, clean=0, floor=Level.OK, found=found, bad=())
    if rank(raw) >= rank(track.level):
        return replace(track, level=raw, window=window, confirmed=0, clean=0, floor=Level.OK, found=found, bad=())
    # a sweep is not clean if a value cannot be read, or if the track has a kernel record of this boot
    if raw is Level.UNKNOWN or _lasts_this_boot(track, now):
        return replace(track, window=window, clean=0, floor=Level.OK, found=found)
    clean = track.clean + (1 if now.full_sweep else 0)
    floor = max(track.floor, raw, key=rank)
    if clean >= policy.recover:
        return Track(level=floor, found=found)
    return replace(track, window=window, clean=clean, floor=floor, found=found)


def _lasts_this_boot(track: Track, now: Now) -> bool:
    """Return whether the track has evidence from the kernel log of this boot. This evidence stays until a reboot or until a
    person acknowledges it, even if the record is no longer in the log."""
    return any(f.evidence_id.startswith(f"{now.boot_id}:") for f in track.bad)
