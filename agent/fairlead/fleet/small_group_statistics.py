"""Compares the members of small groups robustly, and computes how likely it is that one member is the extreme so often.

The factor 1.4826 makes the median absolute deviation (MAD) of normal values equal to their standard deviation. A group with
fewer than ``GROUP_MIN`` members is not compared: two slow members of three would accuse the third.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

GROUP_MIN = 4
MAD_SCALE = 1.4826
#: With 5, a healthy member of 4 is flagged in about 1 % of comparisons, and of 16 in 0.1 % (normal values, floor 2.5 deviations).
DEVIATIONS = 5.0


class GroupComparison(Struct, frozen=True, kw_only=True):
    """Holds the result for one value in one group: high, low: the members that lie above or below the others by at least
    ``least``. least: the smallest distance that would have been seen, in the value's unit. centre: the median of the group."""

    high: frozenset[str]
    low: frozenset[str]
    least: float
    centre: float


def median(values: Iterable[float]) -> float:
    """Return the middle value, or the mean of the two middle values. Raises IndexError without a value."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def spread(values: Sequence[float], centre: float) -> float:
    """Return the standard deviation that normal values with this MAD around ``centre`` would have."""
    return MAD_SCALE * median(abs(value - centre) for value in values)


def compared(values: Mapping[str, float], floor: float) -> GroupComparison | None:
    """Compare each member with the others, or return None if the group is too small.

    floor: in the value's unit. A smaller distance is never reported, however equal the others are.
    """
    if len(values) < GROUP_MIN:
        return None
    high, low = set(), set()
    for member, value in values.items():
        others = [each for name, each in values.items() if name != member]
        centre = median(others)
        distance = max(floor, DEVIATIONS * spread(others, centre))
        if value - centre >= distance:
            high.add(member)
        elif centre - value >= distance:
            low.add(member)
    centre = median(values.values())
    least = max(floor, DEVIATIONS * spread(tuple(values.values()), centre))
    return GroupComparison(high=frozenset(high), low=frozenset(low), least=least, centre=centre)


def few(members: int) -> int:
    """Return how many members of a group may deviate in the same way. If more do, the work is uneven and nobody is accused."""
    return max(1, members // 10)


def window_medians(values: Sequence[float], steps: int) -> list[float]:
    """Return the median of each whole window of ``steps`` values."""
    return [median(values[at : at + steps]) for at in range(0, len(values) - steps + 1, steps)]


def histogram_median(seconds: Mapping[int, float]) -> float | None:
    """Return the median of a histogram in bins, or None if it is empty. Values are taken as even within a bin, so that a median
    between two bins is no whole number. The number of a bin stands for its middle."""
    total = sum(seconds.values())
    if total <= 0:
        return None
    passed = 0.0
    for bin_, inside in sorted(seconds.items()):
        if passed + inside >= total / 2:
            return bin_ - 0.5 + (total / 2 - passed) / inside
        passed += inside
    return float(max(seconds))  # only after an error of rounding


def poisson_binomial_tail(chances: Sequence[float], least: int) -> float:
    """Return the probability that at least ``least`` of independent events with these chances happen."""
    if least <= 0:
        return 1.0
    exactly = [1.0] + [0.0] * (least - 1)  # of 0, 1, ... least - 1 events so far
    tail = 0.0
    for chance in chances:
        tail += exactly[-1] * chance
        for count in range(least - 1, 0, -1):
            exactly[count] = exactly[count] * (1 - chance) + exactly[count - 1] * chance
        exactly[0] *= 1 - chance
    return min(1.0, tail)


def poisson_tail(mean: float, least: int) -> float:
    """Return the probability of at least ``least`` events where ``mean`` are expected."""
    if least <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    term, tail = math.exp(least * math.log(mean) - mean - math.lgamma(least + 1)), 0.0
    count = least
    while term > 1e-300 and (count <= mean or term > tail * 1e-12):
        tail += term
        count += 1
        term *= mean / count
    return min(1.0, tail)


def poisson_interval(count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Garwood) confidence interval of the mean of which ``count`` events were seen."""
    outside = (1 - level) / 2
    low = 0.0 if count == 0 else _solved(lambda mean: poisson_tail(mean, count), outside, count)
    high = _solved(lambda mean: poisson_tail(mean, count + 1), 1 - outside, count)
    return low, high


def _solved(tail: Callable[[float], float], wanted: float, count: int) -> float:
    """Return the mean at which the growing function ``tail`` is ``wanted``, by halving."""
    low, high = 0.0, 10.0 + 4.0 * count
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < wanted else (low, middle)
    return (low + high) / 2
