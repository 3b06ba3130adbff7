"""Reads the period of ``fairlead report``, and makes the months of its trend, in this machine's time zone."""

from __future__ import annotations

import re
from datetime import date, datetime
from itertools import pairwise

from fairlead.cli.usage_period import period
from fairlead.errors import UsageError
from fairlead.fleet.fleet_report import Timeframe

FORMS = "week, month or quarter (the last whole one), 2026-W47, 2026-10, 2026-Q4, or BEGIN/END (2026-10-01/2026-11-01)"
TREND_MONTHS = 12


def timeframe(text: str, today: date, now: float) -> Timeframe:
    """Return the period that a text names. Raises UsageError for another text, and for a period that has not begun."""
    text = text.strip()
    quarter = re.fullmatch(r"(\d{4})-Q([1-4])", text)
    try:
        if text == "quarter":
            first = _first_of_quarter(today)
            begin, end = _months_later(first, -3), first
            name = f"{begin.year}-Q{(begin.month + 2) // 3}"
        elif quarter is not None:
            begin = date(int(quarter[1]), 3 * int(quarter[2]) - 2, 1)
            end, name = _months_later(begin, 3), text
        else:
            found = period(text, today)
            return _frame(found.name, found.begin_unix, found.end_unix, now)
    except (ValueError, UsageError):
        raise UsageError(f"{text!r} is not a period: {FORMS}") from None
    return _frame(name, _midnight(begin), _midnight(end), now)


def _frame(name: str, begin_unix: float, end_unix: float, now: float) -> Timeframe:
    if begin_unix >= now:
        raise UsageError(f"{name} has not begun yet")
    last = datetime.fromtimestamp(min(end_unix, now) - 1).date().replace(day=1)
    firsts = [_months_later(last, 1 - n) for n in range(TREND_MONTHS, -1, -1)]
    months = tuple((f"{a.year}-{a.month:02}", _midnight(a), _midnight(b)) for a, b in pairwise(firsts))
    return Timeframe(name=name, begin_unix=begin_unix, end_unix=end_unix, months=months, now=now)


def _first_of_quarter(day: date) -> date:
    return date(day.year, 3 * ((day.month - 1) // 3) + 1, 1)


def _months_later(first: date, months: int) -> date:
    number = first.year * 12 + first.month - 1 + months
    return date(number // 12, number % 12 + 1, 1)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()
