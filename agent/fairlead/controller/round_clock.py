"""Decides by the times of the rounds before whether the controller's clock may say what is old enough to be forgotten.

A clock that is a year ahead would make a round forget a year. So after a large step of the clock nothing is forgotten for
``WAIT_DAYS``, or for the retention if that is shorter: time for a person to set the clock right, which is a step again. A
controller that was off for some weeks steps forward too, and then only forgets later.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fairlead.model.json_text import NOT_JSON

DAY_SECONDS = 86400
BACK_SECONDS, AHEAD_SECONDS = 3600.0, 7.0 * DAY_SECONDS
WAIT_DAYS = 30


class RoundClock(Struct, frozen=True, kw_only=True):
    """Describes the clock as the last round saw it. last_unix: when that round was. forgets_unix: nothing is forgotten before."""

    last_unix: float = 0.0
    forgets_unix: float = 0.0


def step_seconds(before: RoundClock, now: float) -> float:
    """Return by how much the clock has jumped since the last round, or 0.0 if it has not, or if there was no round."""
    passed = now - before.last_unix
    return passed if before.last_unix and not -BACK_SECONDS <= passed <= AHEAD_SECONDS else 0.0


def after_round(before: RoundClock, now: float, days: int) -> RoundClock:
    """Return the clock to remember after a round. ``days``: how long is kept what the rounds collect."""
    stepped = step_seconds(before, now)
    wait = min(WAIT_DAYS, days) * DAY_SECONDS
    return RoundClock(last_unix=now, forgets_unix=now + wait if stepped else before.forgets_unix)


def step_text(seconds: float, days: int) -> str:
    """Return what to say of a step, in one line."""
    where = "ahead of" if seconds > 0 else "behind"
    since = f"the clock is {abs(seconds) / DAY_SECONDS:.1f} days {where} the last round"
    return f"{since}: nothing is forgotten for {min(WAIT_DAYS, days)} days, and everything is asked for again"


def encoded(clock: RoundClock) -> str:
    return msgspec.json.encode(clock).decode()


def decoded(text: str) -> RoundClock:
    """Return the clock from what was kept. What cannot be read counts as no round."""
    try:
        return msgspec.json.decode(text, type=RoundClock) if text else RoundClock()
    except NOT_JSON:
        return RoundClock()
