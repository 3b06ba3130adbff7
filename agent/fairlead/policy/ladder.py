"""Strikes."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.finding import Level
from fairlead.policy.rules import CheckPolicy, Rules, enforced
from fairlead.policy.state import Now, PolicyState, Track


def strikes(
    before: PolicyState, tracks: Mapping[str, Track], policies: dict[str, CheckPolicy], now: Now, rules: Rules
) -> dict[str, tuple[float, ...]]:
    """One strike per device each time something of it comes to drain, by serial so that a moved board keeps it."""
    strikes = {
        device: kept
        for device, times in before.strikes.items()
        if (kept := tuple(t for t in times if t > now.wall_seconds - rules.strikes_window_seconds))
    }
    struck: set[str] = set()
    for key, track in tracks.items():
        name, _, device = key.partition("/")
        was = before.tracks.get(key, Track()).level
        if device and track.level is Level.DRAIN and was is not Level.DRAIN and enforced(name, policies, rules):
            struck.add(now.serials.get(device, device))
    for device in struck:
        strikes[device] = (*strikes.get(device, ()), now.wall_seconds)
    return strikes
