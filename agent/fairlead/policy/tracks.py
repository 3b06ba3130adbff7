"""One (check, device) over time: when a finding counts (N of M sweeps, boot grace), and when it has stopped (recovery)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.model.finding import Finding, Level, Service
from fairlead.policy.rules import CheckPolicy
from fairlead.policy.state import Now, PolicyState, Track, identity, rank


def start_of_boot(state: PolicyState, now: Now) -> PolicyState:
    if state.boot_id == now.boot_id:
        return state
    tracks = {key: replace(track, window=(), clean=0, floor=Level.OK) for key, track in state.tracks.items()}
    return replace(state, boot_id=now.boot_id, ran=frozenset(), clean_sweeps=0, tracks=tracks)


def still_meant(acknowledged: str, tracks: Mapping[str, Track], now: Now) -> bool:
    """A kernel record stays acknowledged for its boot; a state stays so until it has gone."""
    key, _, evidence = acknowledged.partition("#")
    return evidence.startswith(f"{now.boot_id}:") or key in tracks


def _raw(found: tuple[Finding, ...], acknowledged: frozenset[str]) -> tuple[Level, tuple[Finding, ...]]:
    """The level of one sweep's findings of one key, and those at DRAIN that nobody has acknowledged."""
    bad = tuple(f for f in found if f.level is Level.DRAIN and f.service is not Service.KEEP and identity(f) not in acknowledged)
    if bad:
        return Level.DRAIN, bad
    return max((Level.WARN if f.level is Level.DRAIN else f.level for f in found), key=rank, default=Level.OK), ()


def advance(track: Track, found: tuple[Finding, ...], policy: CheckPolicy, now: Now, acknowledged: frozenset[str]) -> Track:
    raw, bad = _raw(found, acknowledged)
    grace = now.boot_seconds < policy.boot_grace_seconds
    is_bad = raw is Level.DRAIN and not grace
    window = (*track.window, is_bad)[-policy.confirm_of :]
    if raw is Level.DRAIN:
        confirmed = (is_bad and sum(window) >= policy.confirm) or track.level is Level.DRAIN
        level = Level.DRAIN if confirmed else max(track.level, Level.WARN, key=rank)
        since = now.wall_seconds if confirmed and track.level is not Level.DRAIN else track.since_seconds
        job = now.job if {identity(f) for f in bad} - {identity(f) for f in track.bad} else track.job
        return Track(level=level, window=window, bad=bad, found=found, since_seconds=since, job=job)
    if rank(raw) >= rank(track.level):
        return replace(track, level=raw, window=window, clean=0, floor=Level.OK, found=found, bad=())
    if raw is Level.UNKNOWN or _stands(track, now):  # neither "cannot be read" nor a log cut short is getting better
        return replace(track, window=window, clean=0, floor=Level.OK, found=found)
    clean = track.clean + (1 if now.full_sweep else 0)
    floor = max(track.floor, raw, key=rank)
    if clean >= policy.recover:
        return Track(level=floor, window=(), found=found)
    return replace(track, window=window, clean=clean, floor=floor, found=found)


def _stands(track: Track, now: Now) -> bool:
    """Kernel log evidence of this boot does not go away by itself, even when the record does: reboot or acknowledge it."""
    return any(f.evidence_id.startswith(f"{now.boot_id}:") for f in track.bad)
