"""Counters of a board's life by the day, for trends that take weeks: they outlive boots, and a change of the driver.

One value a day and counter at most; of a run of equal values the first and the last are kept. Wall clock: a clock that is
wrong for a while puts a few points in a wrong place, which a trend over weeks does not see.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.model.check import Daily

DAY_SECONDS = 86400
KEEP_DAYS = 400
SERIES_MAX = 1000  # boards come and go


class Days:
    """By "device/name": (day since 1970, value), oldest first."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, float]]] = {}

    def add(self, unix_seconds: float, values: Iterable[tuple[str, str, float]]) -> bool:
        """Remember (device, name, value); whether there is something to save."""
        day = int(unix_seconds // DAY_SECONDS)
        news = False
        for device, name, value in values:
            key = f"{device}/{name}"
            known = self._known.get(key, [])
            if known and known[-1] == (day, value):
                continue
            news = True
            known = [point for point in known if day - KEEP_DAYS <= point[0] < day]  # what is later was a wrong clock's
            if len(known) > 1 and known[-1][1] == known[-2][1] == value:
                known.pop()
            self._known.pop(key, None)
            self._known[key] = [*known, (day, value)]
        while len(self._known) > SERIES_MAX:
            del self._known[next(iter(self._known))]
        return news

    def past(self, unix_seconds: float) -> tuple[Daily, ...]:
        """All of it, oldest first per counter."""
        today = int(unix_seconds // DAY_SECONDS)
        return tuple(
            Daily(device=device, name=name, days_ago=today - day, value=value)
            for key, known in self._known.items()
            for device, _, name in [key.partition("/")]
            for day, value in known
        )

    def merge(self, stored: bytes) -> None:
        """Take in what was saved; what is here already is newer. Raises msgspec.DecodeError."""
        earlier = msgspec.json.decode(stored, type=dict[str, list[tuple[int, float]]]) if stored else {}
        for key, known in earlier.items():
            here = self._known.get(key, [])
            self._known[key] = [*(p for p in known if not here or p[0] < here[0][0]), *here]

    def saved(self) -> bytes:
        return msgspec.json.encode(self._known)
