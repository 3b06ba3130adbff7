"""Reads the periods of ``fairlead usage``: 2026-W47, 2026-10, week, month, or BEGIN/END, in this machine's time zone."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from fairlead.errors import UsageError
from fairlead.jobs.busy_definition import Period

FORMS = "2026-W47 (a week), 2026-10 (a month), week or month (the last whole one), or BEGIN/END (2026-10-01/2026-11-01)"


def period(text: str, today: date) -> Period:
    """Return a period. Raises UsageError for any other text, and for an end that is not after the begin."""
    try:
        begin, end = _dates(text.strip(), today)
        found = Period(_midnight(begin), _midnight(end), text.strip() if "/" in text else _name(text.strip(), begin))
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is not a period: {FORMS}") from None
    if found.end_unix <= found.begin_unix:
        raise UsageError(f"{text} ends before it begins")
    return found


def _dates(text: str, today: date) -> tuple[date, date]:
    if text == "week":
        monday = today - timedelta(days=today.weekday())
        return monday - timedelta(days=7), monday
    if text == "month":
        first = today.replace(day=1)
        return (first - timedelta(days=1)).replace(day=1), first
    if found := re.fullmatch(r"(\d{4})-W(\d{2})", text):
        monday = date.fromisocalendar(int(found[1]), int(found[2]), 1)
        return monday, monday + timedelta(days=7)
    if found := re.fullmatch(r"(\d{4})-(\d{2})", text):
        first = date(int(found[1]), int(found[2]), 1)
        return first, (first + timedelta(days=31)).replace(day=1)
    begin, _, end = text.partition("/")
    return date.fromisoformat(begin), date.fromisoformat(end)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()  # the machine's time zone


def _name(text: str, begin: date) -> str:
    if text == "week":
        year, week, _ = begin.isocalendar()
        return f"{year}-W{week:02}"
    return f"{begin.year}-{begin.month:02}" if text == "month" else text
