"""Computes exact intervals for counts and rates: Garwood's for a Poisson count, Wilson's for a share, and the gamma distribution.

The standard library has no incomplete gamma function. The routine here uses the series below a + 1 and Lentz's continued fraction
above (Abramowitz and Stegun 6.5.29 and 6.5.31), and the tests compare it with published tables. Sources: Garwood, Biometrika 28
(1936); Wilson, JASA 22 (1927).
"""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec import Struct

_STEPS = 10_000
_TINY = 1e-300


class Interval(Struct, frozen=True):
    """Holds the two ends of an interval."""

    low: float
    high: float

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)


def gamma_below(shape: float, x: float) -> float:
    """Return the regularised lower incomplete gamma function P(shape, x): the chance that a gamma variable of this shape and
    scale 1 is below ``x``."""
    if x <= 0:
        return 0.0
    head = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for n in range(1, _STEPS):
            term *= x / (shape + n)
            total += term
            if term < total * 1e-16:
                break
        return min(1.0, head * total)
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    fraction = d
    for n in range(1, _STEPS):
        a = -n * (n - shape)
        b += 2
        d = 1 / (_nonzero(a * d + b))
        c = _nonzero(b + a / c)
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return max(0.0, 1 - head * fraction)


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


@lru_cache(maxsize=4096)
def gamma_quantile(shape: float, chance: float) -> float:
    """Return the ``x`` with P(shape, x) = chance."""
    if not 0 <= chance < 1:
        raise ValueError(f"{chance}: no chance below 1")
    if chance == 0:
        return 0.0
    low, high = 0.0, max(1.0, 2 * shape)
    while gamma_below(shape, high) < chance:
        high *= 2
    for _ in range(1200):  # a quantile of a small shape is very near 0
        middle = (low + high) / 2
        if gamma_below(shape, middle) < chance:
            low = middle
        else:
            high = middle
        if high - low <= 1e-13 * high:
            break
    return (low + high) / 2


def garwood(count: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval of the expected count, if ``count`` events were seen."""
    rest = (1 - confidence) / 2
    low = gamma_quantile(count, rest) if count else 0.0
    return Interval(low, gamma_quantile(count + 1, 1 - rest))


def poisson_at_least(count: int, mean: float) -> float:
    """Return the chance of ``count`` or more events where ``mean`` are expected."""
    return 1.0 if count <= 0 else gamma_below(count, mean)


def wilson(hits: int, of: int, z: float = 1.959963984540054) -> Interval | None:
    """Return Wilson's interval of a share (95 % by default), or None of nothing."""
    if of == 0:
        return None
    share = hits / of
    middle = share + z * z / (2 * of)
    spread = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    below = 1 + z * z / of
    return Interval(max(0.0, (middle - spread) / below), min(1.0, (middle + spread) / below))


def binomial_at_least(hits: int, of: int, chance: float) -> float:
    """Return the chance of ``hits`` or more of ``of`` trials, each with this chance."""
    if hits <= 0:
        return 1.0
    if not 0 < chance < 1:
        return float(chance >= 1)
    log = [
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * math.log(chance) + (of - k) * math.log1p(-chance)
        for k in range(hits, of + 1)
    ]
    return min(1.0, math.fsum(math.exp(each) for each in log))
