"""Reads times as people write them: 90s, 30m, 2h, 7d, or 2026-11-21 and 2026-11-21T18:30 in this machine's time zone."""

from __future__ import annotations

import re
import time
from datetime import datetime

from fairlead.errors import UsageError

_SPAN = re.compile(r"(\d{1,6})(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
FORMS = "a time (2026-11-21T18:30) or a span (90s, 30m, 2h, 7d)"


def span(text: str, option: str) -> float:
    """Return a span (90s, 30m, 2h, 7d) in seconds. Raise UsageError for any other text."""
    match = _SPAN.fullmatch(text.strip())
    if not match or int(match[1]) == 0:
        raise UsageError(f"{option} {text!r}: not a span such as 90s, 30m, 2h, 7d")
    return float(int(match[1]) * _SECONDS[match[2]])


def parse_time(text: str, option: str, *, ahead: bool = False) -> float:
    """Return ``text`` as Unix time. A span is counted back from now, or forward from now with ``ahead``.

    Raise UsageError for any other text and, with ``ahead``, for a time in the past.
    """
    match = _SPAN.fullmatch(text.strip())
    if match:
        seconds = int(match[1]) * _SECONDS[match[2]]
        return time.time() + (seconds if ahead else -seconds)
    try:
        found = datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{option} {text!r}: not {FORMS}") from None
    if ahead and found <= time.time():
        raise UsageError(f"{option} {text} is in the past")
    return found


def window(text: str, option: str) -> tuple[float, float]:
    """Return the begin and the end of a time window in Unix time. ``text`` is ``END`` or ``BEGIN/END``.

    Without BEGIN, the begin is 0. An END that is a span is counted from the begin, or from now without BEGIN. Raise UsageError
    for any other text, for an END in the past, and for an END before the begin.
    """
    first, slash, last = text.partition("/")
    if not slash:
        return 0.0, parse_time(text, option, ahead=True)
    opens = time.time() + span(first, option) if _SPAN.fullmatch(first.strip()) else parse_time(first, option)
    closes = opens + span(last, option) if _SPAN.fullmatch(last.strip()) else parse_time(last, option, ahead=True)
    if closes <= max(opens, time.time()):
        raise UsageError(f"{option} {text} ends before it begins" if closes <= opens else f"{option} {text} is in the past")
    return opens, closes


def local(unix: float) -> str:
    """Return a time as ``2026-11-21 18:30:05`` in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))
