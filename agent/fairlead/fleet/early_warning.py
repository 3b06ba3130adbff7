"""Measures mechanical distances: how far a value is from its limit, and on which day its line reaches the limit.

There is no probability here. A value is listed if it has moved towards its limit, or is apart from its siblings at the same load.

rows: rows of GPU memory that were remapped for uncorrectable errors, of 512 (NVIDIA, "Row-Remapping"). lanes: PCIe lanes or
NVLinks that are lost. replays: PCIe replays for each hour under load, against the other GPUs of the node. link_errors: the same
of errors that the NVLinks count, on NVLink 5 those that are left after correction. throttle: the part of the time under load in
which hardware or heat slowed the clocks, less the median of the siblings at the same power cap. ber: a bit error rate, on a
logarithmic scale. One is that of the worst NVLink of a GPU after correction, of 1e-12 (DCGM, IsEffectiveBerThresholdExceeded),
from NVLink 5 on. The other is that before correction, of 2.4e-4 (IEEE 802.3, KP4 FEC), which the agent does not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet.mechanical_values import (
    BER,
    CAP,
    EFFECTIVE_BER,
    LANES,
    LANES_MAX,
    LINK_ERRORS,
    LINKS,
    LOADED,
    REPLAYS,
    ROWS,
    SLOWED,
)
from fairlead.fleet.service_record import DAY_SECONDS, Point, ServiceRecord
from fairlead.model.facts import LEAST_BER

ROWS_MAX = 512
BER_MAX, EFFECTIVE_BER_MAX = 2.4e-4, 1e-12
REPLAYS_PER_HOUR_MAX = 480.0  # checks/pcie_errors.py warns at 8 a minute
LINK_ERRORS_PER_HOUR_MAX = 1000.0  # checks/nvlink.py warns at so many on one link after correction
THROTTLE_MAX, THROTTLE_LEAST = 0.5, 0.05
SIBLINGS_MIN = 3
COUNT_MIN = 100  # fewer errors in the window say nothing
LOADED_MIN_SECONDS = 24 * 3600.0
WINDOW_DAYS = 60
HORIZON_DAYS = 730  # a later projection is no warning
SIGNALS = ("rows", "lanes", "replays", "link_errors", "throttle", "ber")


class Counter(NamedTuple):
    """Names a counter of errors that is compared with that of the siblings. limit: errors an hour under load."""

    name: str
    signal: str
    words: str
    limit: float


COUNTERS = (
    Counter(REPLAYS, "replays", "PCIe replays", REPLAYS_PER_HOUR_MAX),
    Counter(LINK_ERRORS, "link_errors", "NVLink errors", LINK_ERRORS_PER_HOUR_MAX),
)


class BitErrorRate(NamedTuple):
    """Names a bit error rate, with the words for it and its limit."""

    name: str
    words: str
    limit: float


RATES = (
    BitErrorRate(BER, "bit error rate", BER_MAX),
    BitErrorRate(EFFECTIVE_BER, "bit error rate after correction", EFFECTIVE_BER_MAX),
)
Values = Mapping[str, Mapping[str, Sequence[Point]]]  # by device and name


class Distance(Struct, frozen=True, kw_only=True):
    """Holds one distance. used: how much of the way to the limit is used, from 0 to 1 and above. slope: by day. reaches_unix: the
    day on which the line reaches the limit, or None if it does not. text: the same in words."""

    node: str
    device: str
    signal: str
    value: float
    limit: float
    used: float
    slope: float
    reaches_unix: float | None
    text: str


def distances(node: str, values: Values, day: int) -> list[Distance]:
    """Return the distances of one node at the end of a day, by what was known then."""
    known = {
        device: {name: [p for p in points if day - WINDOW_DAYS <= p[0] <= day] for name, points in of.items()}
        for device, of in values.items()
    }
    found = []
    for device, of in known.items():
        each = (_rows(node, device, of, day), *(_ber(node, device, of, day, rate) for rate in RATES), _lanes(node, device, of))
        found += [d for d in each if d is not None]
    return found + [d for counter in COUNTERS for d in _errors(node, known, counter)] + _throttle(node, known)


def _rows(node: str, device: str, of: Mapping[str, Sequence[Point]], day: int) -> Distance | None:
    points = of.get(ROWS, ())
    if not points or points[-1][1] == 0 or points[-1][1] == points[0][1]:
        return None
    value, slope = points[-1][1], _slope(points)
    reaches = _reaches(value, slope, ROWS_MAX, day)
    text = f"{value:.0f} of {ROWS_MAX} rows remapped, {7 * slope:+.1f} a week"
    return Distance(
        node=node,
        device=device,
        signal="rows",
        value=value,
        limit=ROWS_MAX,
        used=value / ROWS_MAX,
        slope=slope,
        reaches_unix=reaches,
        text=text,
    )


def _ber(node: str, device: str, of: Mapping[str, Sequence[Point]], day: int, rate: BitErrorRate) -> Distance | None:
    """A rate that rises over a week or more, or has passed its limit. A link without errors has no rate that could rise."""
    points, limit = _logarithms(of.get(rate.name, ())), math.log10(rate.limit)
    if not points or of[rate.name][-1][1] <= LEAST_BER:
        return None
    value, slope = points[-1][1], _slope(points)
    if value < limit and (slope <= 0 or points[-1][0] - points[0][0] < 7):
        return None
    reaches = _reaches(value, slope, limit, day)
    text = f"{rate.words} {10**value:.1e}, limit {rate.limit:.1e}, {7 * slope:+.2f} powers of ten a week"
    used = max(0.0, 1 - (limit - value) / 6)  # six powers of ten before the limit count as none used
    return Distance(
        node=node,
        device=device,
        signal="ber",
        value=10**value,
        limit=rate.limit,
        used=used,
        slope=slope,
        reaches_unix=reaches,
        text=text,
    )


def _logarithms(points: Sequence[Point]) -> list[Point]:
    """Return the powers of ten, without the days on which no error was seen."""
    return [(at, math.log10(value)) for at, value in points if value > LEAST_BER]


def _lanes(node: str, device: str, of: Mapping[str, Sequence[Point]]) -> Distance | None:
    lanes, most = of.get(LANES, ()), max((v for _, v in of.get(LANES_MAX, ())), default=0.0)
    links = of.get(LINKS, ())
    links_max = max((v for _, v in links), default=0.0)
    lost = [(1 - points[-1][1] / top, points[-1][1], top, what) for points, top, what in (
        (lanes, most, "PCIe lanes"), (links, links_max, "NVLinks")) if points and top > 0 and points[-1][1] < top]  # fmt: skip
    if not lost:
        return None
    used, value, top, what = max(lost)
    return Distance(
        node=node,
        device=device,
        signal="lanes",
        value=value,
        limit=top,
        used=used,
        slope=0.0,
        reaches_unix=None,
        text=f"{value:.0f} of {top:.0f} {what} are left",
    )


def _errors(node: str, known: Values, counter: Counter) -> list[Distance]:
    """A GPU's errors an hour under load, if they are more than three times the median of its siblings."""
    rate: dict[str, float] = {}
    grown: dict[str, float] = {}
    for device, of in known.items():
        seconds, errors = growth(of.get(LOADED, ())), growth(of.get(counter.name, ()))
        if seconds is not None and errors is not None and seconds >= LOADED_MIN_SECONDS:
            rate[device], grown[device] = 3600 * errors / seconds, errors
    found = []
    for device, value in rate.items():
        others = [v for other, v in rate.items() if other != device]
        if len(others) < SIBLINGS_MIN or grown[device] < COUNT_MIN or value <= 3 * median(others):
            continue
        text = f"{value:.1f} {counter.words} an hour under load, siblings {median(others):.1f}, limit {counter.limit:.0f}"
        found.append(
            Distance(
                node=node,
                device=device,
                signal=counter.signal,
                value=value,
                limit=counter.limit,
                used=value / counter.limit,
                slope=0.0,
                reaches_unix=None,
                text=text,
            )
        )
    return found


def _throttle(node: str, known: Values) -> list[Distance]:
    """The part of a GPU's time under load in which it was slowed, less the median of its siblings at the same power cap."""
    part: dict[str, tuple[float, float]] = {}
    for device, of in known.items():
        seconds, slowed, cap = growth(of.get(LOADED, ())), growth(of.get(SLOWED, ())), of.get(CAP, ())
        if seconds is not None and slowed is not None and seconds >= LOADED_MIN_SECONDS and cap:
            part[device] = (min(1.0, slowed / seconds), cap[-1][1])
    found = []
    for device, (value, cap_watts) in part.items():
        others = [v for other, (v, watts) in part.items() if other != device and abs(watts - cap_watts) < 1]
        if len(others) < SIBLINGS_MIN or value - median(others) <= THROTTLE_LEAST:
            continue
        over = value - median(others)
        text = f"slowed in {100 * value:.0f} % of the time under load, siblings at {cap_watts:.0f} W {100 * median(others):.0f} %"
        found.append(
            Distance(
                node=node,
                device=device,
                signal="throttle",
                value=value,
                limit=THROTTLE_MAX,
                used=over / THROTTLE_MAX,
                slope=0.0,
                reaches_unix=None,
                text=text,
            )
        )
    return found


def growth(points: Sequence[Point]) -> float | None:
    """Return by how much a counter grew, or None for fewer than two values. A counter that is lower than before began again."""
    if len(points) < 2:
        return None
    return sum(b[1] - a[1] if b[1] >= a[1] else b[1] for a, b in pairwise(points))


def _slope(points: Sequence[Point]) -> float:
    """Return the median of the slopes between all pairs of points (Theil and Sen), by day."""
    chosen = points[-40:]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(chosen) for b in chosen[i + 1 :] if b[0] > a[0]]
    return median(slopes) if slopes else 0.0


def _reaches(value: float, slope: float, limit: float, day: int) -> float | None:
    if slope <= 0 or value >= limit:
        return day * float(DAY_SECONDS) if value >= limit else None
    days = (limit - value) / slope
    return (day + days) * DAY_SECONDS if days <= HORIZON_DAYS else None


def possible(values: Values) -> bool:
    """Say whether a node can have any distance at any time: most nodes have none, and their values need not be kept in memory."""
    for of in values.values():
        rows, lanes, links = (of.get(name, ()) for name in (ROWS, LANES, LINKS))
        moved = any(len({value for _, value in points}) > 1 for points in (rows, lanes, links))
        moved = moved or any(value > LEAST_BER for rate in RATES for _, value in of.get(rate.name, ()))
        lost = bool(lanes) and lanes[-1][1] < max((v for _, v in of.get(LANES_MAX, ())), default=0.0)
        if moved or lost or any((growth(of.get(each.name, ())) or 0.0) >= COUNT_MIN for each in COUNTERS):
            return True
        if (growth(of.get(SLOWED, ())) or 0.0) >= THROTTLE_LEAST * LOADED_MIN_SECONDS:
            return True
    return False


def without_still_values(record: ServiceRecord) -> ServiceRecord:
    """Return the record without its values if they can give no distance."""
    return record if possible(record.values) else replace(record, values={})
