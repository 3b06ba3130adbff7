"""Keeps lifetime counters of GPU cards by the day, for trends that take weeks. The values survive boots and driver changes.

There is at most one value per day and counter. Of a run of equal values, only the first and the last are kept. Days are those of
the wall clock. If the clock is wrong for a while, a few values get a wrong day, which does not change a trend over weeks. No
value goes because of its day: a node whose battery is empty boots in 1970, and would lose all. A value goes when there are
``KEEP_DAYS`` newer ones, and one that is older than ``KEEP_DAYS``, or of a day to come, is not shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from fairlead.model.check_definition import Daily

DAY_SECONDS = 86400
KEEP_DAYS = 400
SERIES_MAX = 1000  # GPU cards come and go


class Days:
    """Holds, for each "device/name", the pairs (day since 1970, value), the oldest first."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, float]]] = {}

    def add(self, unix_seconds: float, values: Iterable[tuple[str, str, float]]) -> bool:
        """Remember (device, name, value). Return whether there is something to save."""
        day = int(unix_seconds // DAY_SECONDS)
        news = False
        for device, name, value in values:
            key = f"{device}/{name}"
            known = self._known.get(key, [])
            if known and known[-1] == (day, value):
                continue
            at = bisect_left(known, (day,))
            later = known[at:]  # only while the clock is behind
            here = later.pop(0) if later and later[0][0] == day else None
            if here == (day, value) or len(later) >= KEEP_DAYS:
                continue
            news = True
            known = known[:at]
            if len(known) > 1 and known[-1][1] == known[-2][1] == value:
                known.pop()
            self._known.pop(key, None)
            self._known[key] = [*known, (day, value), *later][-KEEP_DAYS:]
        while len(self._known) > SERIES_MAX:
            del self._known[next(iter(self._known))]
        return news

    def past(self, unix_seconds: float) -> tuple[Daily, ...]:
        """Return the values of the last ``KEEP_DAYS`` days. Those of each counter are in order of time, the oldest first."""
        today = int(unix_seconds // DAY_SECONDS)
        return tuple(
            Daily(device=device, name=name, days_ago=today - day, value=value)
            for key, known in self._known.items()
            for device, _, name in [key.partition("/")]
            for day, value in known
            if 0 <= today - day <= KEEP_DAYS
        )

    def merge(self, stored: bytes) -> None:
        """Take in what was saved earlier. A value that is in memory already stays. Raises msgspec.DecodeError."""
        earlier = msgspec.json.decode(stored, type=dict[str, list[tuple[int, float]]]) if stored else {}
        for key, known in earlier.items():
            together = dict(known) | dict(self._known.get(key, []))
            self._known[key] = sorted(together.items())[-KEEP_DAYS:]

    def saved(self) -> bytes:
        return msgspec.json.encode(self._known)
