"""Decides whether the node may go back into service, and whether a person has to resume it."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.finding import Finding, Level, Service
from fairlead.policy.decision_rules import SETTING_PREFIX, CheckPolicy, Rules, enforced, policy_for
from fairlead.policy.ladder import manual_resume_reason, replaced
from fairlead.policy.ownership import MANUAL
from fairlead.policy.policy_state import Now, PolicyState, Track

CLOCK_SLACK_SECONDS = 60.0  # the clock may have been set after the boot began


def blocks(key: str, drained_for: frozenset[str], policies: dict[str, CheckPolicy], rules: Rules) -> bool:
    """Return whether the check/device ``key`` must be well before a resume. This holds for every check that may drain, and for
    every key in ``drained_for``. If ``drained_for`` is empty, the cause of the drain is unknown, and every key must be well."""
    check, _, device = key.partition("/")
    # a check that cannot read anything hides the state of its devices
    blind = not device and any(k.startswith(f"{check}/") for k in drained_for)
    return not drained_for or key in drained_for or blind or enforced(check, policies, rules)


def is_clean(
    before: PolicyState,
    tracks: Mapping[str, Track],
    policies: dict[str, CheckPolicy],
    never: tuple[Finding, ...],
    *,
    now: Now,
    rules: Rules,
) -> bool:
    """Return whether this sweep found nothing that drains, and no unreadable value that could hide a reason to drain."""
    if any(blocks(f.key, before.drained_for, policies, rules) for f in never):
        return False
    for key, track in tracks.items():
        name = key.partition("/")[0]
        if not blocks(key, before.drained_for, policies, rules):
            continue
        raw = {f.level for f in track.found if f.service is not Service.KEEP or f.level is Level.UNKNOWN}
        if Level.UNKNOWN in raw or (track.bad and Level.DRAIN in raw):
            return False
        if now.boot_seconds < policy_for(name, policies).boot_grace_seconds and track.found:
            return False
    return True


def may_resume(state: PolicyState, policies: dict[str, CheckPolicy], now: Now, rules: Rules) -> bool:
    if not rules.resume or now.disabled or now.hold or now.applying:
        return False
    for key, track in state.tracks.items():
        if blocks(key, state.drained_for, policies, rules) and (track.level in (Level.DRAIN, Level.UNKNOWN) or track.bad):
            return False
    # The state does not contain the cause of the drain. So every check needs as many clean sweeps as if it were the cause.
    if not state.drained_for:
        slow = {name: p.recover for name, p in policies.items() if p.slow and now.drain_check in ("", name)}
        if slow and state.thorough_clean_sweeps < max(slow.values()):
            return False
    needed = max((p.recover for p in policies.values() if not p.slow), default=1)
    return state.clean_sweeps >= needed


def by_hand(state: PolicyState, policies: dict[str, CheckPolicy], now: Now, rules: Rules) -> str:
    """Return why a person has to resume this node, or "" if the agent may resume it."""
    if not now.drained:
        return ""
    drained_by = {k.partition("/")[0] for k in state.drained_for} | ({now.drain_check} - {"", MANUAL})
    removed = sorted(n for n in drained_by if n not in policies and not n.startswith(SETTING_PREFIX))
    if removed:
        return f"check {removed[0]} does not run any more"
    this_boot = now.drain_since_seconds > now.wall_seconds - now.boot_seconds - CLOCK_SLACK_SECONDS
    # a person who has cleared the whole node knew the cause of the drain
    repaired = any(r.everything and r.boot_id == now.boot_id for r in state.repairs)
    if now.drain_check == "xid" and this_boot and not repaired and not any(k.startswith("xid/") for k in state.drained_for):
        return "the kernel log evidence of this boot is not in the history any more"
    if reason := manual_resume_reason(state):
        return reason
    if not rules.strikes_max:
        return ""
    over = sorted(
        d for d, times in state.strikes.items() if len(times) >= rules.strikes_max and not replaced(d, state.gpu_serials)
    )
    by_serial = {serial: pci for pci, serial in state.gpu_serials.items()}
    return f"{by_serial.get(over[0], over[0])} was drained too often" if over else ""
