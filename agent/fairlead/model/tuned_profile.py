"""Finds out whether tuned runs, and with which profile, for settings whose values tuned may write too.

According to tuned(8) and tuned-profiles(7), a profile sets governor and energy hint (plugin cpu), idle states (force_latency),
transparent huge pages (vm) and sysctls. tuned is a system daemon. fairlead does not control whether tuned starts before or
after fairlead's boot unit.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.facts import Missing

COMM = "/proc/@tuned/comm"  # the reader of the machine replaces "@tuned" by the process id of the running daemon
PROFILE = "/etc/tuned/active_profile"
READS = (COMM, PROFILE)


def second_writer(texts: Mapping[str, str | Missing | None]) -> str:
    """Return "tuned runs with the profile X", or "" if tuned does not run."""
    if not isinstance(texts.get(COMM), str):
        return ""
    profile = texts.get(PROFILE)
    name = profile.strip() if isinstance(profile, str) else ""
    return f"tuned runs with the profile {name or 'it chose itself'}"
