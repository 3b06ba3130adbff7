"""Computes from samples how a counter grows over a time window. A reset of the counter (the driver was loaded again) and missing
minutes do not count as growth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.model.check_definition import Past, Sample


class Growth(Struct, frozen=True):
    """Holds how far a counter grew: by ``amount`` in ``seconds``. ``per_hour`` and ``per_minute`` are means over that time."""

    amount: float
    seconds: float

    @property
    def per_minute(self) -> float:
        return 60 * self.amount / self.seconds

    @property
    def per_hour(self) -> float:
        return 3600 * self.amount / self.seconds


_last: tuple[Sequence[Sample] | None, Mapping[tuple[str, str], tuple[Sample, ...]]] = (None, {})


def series(past: Past) -> Mapping[tuple[str, str], tuple[Sample, ...]]:
    """Return the samples by (device, name), the oldest first. The last result is cached, because there are many samples and they
    stay the same for a minute."""
    global _last  # noqa: PLW0603
    samples, made = _last
    if samples is not past.samples:
        found: dict[tuple[str, str], list[Sample]] = {}
        for sample in past.samples:
            found.setdefault((sample.device, sample.name), []).append(sample)
        made = {key: tuple(sorted(values, key=lambda s: s.seconds)) for key, values in found.items()}
        _last = (past.samples, made)
    return made


def settled_seconds(now: float, window_seconds: float, grace_seconds: int | None, usual: int) -> float:
    """Return the length of the window without the part that lies in the boot grace of a check.

    ``grace_seconds``: the declared boot grace, or None if the check's ``usual`` boot grace applies. Links train after a boot.
    Errors that they count meanwhile are no fault, also after the boot grace (gpud issue 1247). The result is 0 or less if the
    whole window lies in the boot grace.
    """
    return min(window_seconds, now - (usual if grace_seconds is None else grace_seconds))


def growth(known: Sequence[Sample], value: float, now: float, *, window_seconds: float, least_seconds: float) -> Growth | None:
    """Return by how much a counter grew in the window that ends ``now`` with ``value``. Return None if the samples do not reach
    back ``least_seconds``.

    ``known``: samples of one counter, the oldest first. A run of equal samples may be represented by its first and last. If a
    counter is lower than before, it has begun again at zero. Its new value then counts as growth. How far it grew before it
    began again is not known.
    """
    start = now - window_seconds
    points: list[tuple[float, float]] = []
    for sample in known:
        if sample.seconds >= now:
            break
        if sample.seconds < start:
            points = [(sample.seconds, sample.value)]  # the last sample before the window
            continue
        if points and points[0][0] < start:
            before = points.pop()[1]
            if before == sample.value:  # the counter did not change, so it had this value when the window began
                points.append((start, before))
        points.append((sample.seconds, sample.value))
    if points and points[0][0] < start:
        before = points.pop()[1]
        if before == value:
            points.append((start, before))
    if not points or now - points[0][0] < least_seconds:
        return None
    amount, last = 0.0, points[0][1]
    for each in (*(v for _, v in points[1:]), value):
        amount += each - last if each >= last else each
        last = each
    return Growth(amount, now - points[0][0])


def counters(values: Iterable[tuple[str, str, object]]) -> Iterable[tuple[str, str, float]]:
    """Return those of (device, name, value) whose value is a number, for ``Check.samples``."""
    return ((device, name, float(value)) for device, name, value in values if type(value) in (int, float))  # type: ignore[arg-type]
