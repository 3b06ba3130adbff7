"""Counters over time: how much one grew within a window, over restarts of the count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.model.check import Sample

Series = Mapping[tuple[str, str], Sequence[Sample]]


class Growth(Struct, frozen=True):
    """``count`` more within ``seconds``."""

    count: float
    seconds: float

    @property
    def per_hour(self) -> float:
        return self.count * 3600 / self.seconds


def by_name(samples: Iterable[Sample]) -> Series:
    """Samples by (device, name), oldest first as they came."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        found.setdefault((sample.device, sample.name), []).append(sample)
    return found


def growth(
    series: Sequence[Sample], value: float, now: float, *, window_seconds: float, least_seconds: float = 1.0
) -> Growth | None:
    """How much a counter that is ``value`` at ``now`` grew within the window; None without a sample ``least_seconds`` old.

    A value below the one before means that the count began again (driver loaded, counters cleared): it grew by what it is.
    """
    inside = [s for s in series if s.seconds < now and now - s.seconds <= window_seconds]
    if not inside or now - inside[0].seconds < least_seconds:
        return None
    count, last = 0.0, inside[0].value
    for step in (*(s.value for s in inside[1:]), value):
        count += step - last if step >= last else step
        last = step
    return Growth(count, now - inside[0].seconds)
