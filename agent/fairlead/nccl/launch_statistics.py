"""Compares the launches of two commands, A and B, and says whether one of them is faster. The unit is one launch of a process.

Launches come in blocks of launches that ran one after the other, such as A B B A. A block's values are compared with the block's
own median, so that a slow change of the whole cluster does not count (Hodges and Lehmann 1962, aligned ranks). The test is exact:
it counts all ways in which the names A and B can be distributed over the launches of each block. It assumes no distribution, so a
few very slow launches do no harm. Over several comparisons the p-values are corrected by Holm (1979). The interval is a bootstrap
of the ratio of medians (Efron 1979). The caller passes its seed, so the same launches always give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

LEVEL = 0.05  # the probability of one or more false differences in a whole run in which nothing differs
CONFIDENCE = 0.95
RESAMPLES = 2000

Blocks = Sequence[tuple[Sequence[float], Sequence[float]]]


class Effect(StrEnum):
    """Names what a comparison has shown. NONE: no difference was seen, which is no proof that there is none."""

    GAIN = "gain"
    LOSS = "loss"
    NONE = "no difference seen"


class LaunchDifference(Struct, frozen=True, kw_only=True):
    """Holds one comparison of B with A. gain: by what fraction B is faster (negative: slower). low, high: its interval.

    p: the probability of such a difference if A and B are alike. adjusted: p after Holm's correction over all comparisons of the
    run. floor: the noise floor; a difference below it cannot be seen. launches: how many launches A and B had.
    """

    name: str
    gain: float
    low: float
    high: float
    p: float
    adjusted: float
    floor: float
    launches: tuple[int, int]
    effect: Effect


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def aligned(blocks: Blocks) -> list[tuple[list[float], list[float]]]:
    """Return the blocks with logarithms of the values, from which the median of the block is taken away."""
    found = []
    for a, b in blocks:
        logs_a, logs_b = [math.log(v) for v in a], [math.log(v) for v in b]
        centre = median(logs_a + logs_b)
        found.append(([v - centre for v in logs_a], [v - centre for v in logs_b]))
    return found


def rank_test(blocks: Blocks) -> float:
    """Return the exact two-sided probability of a rank sum that is as far from its mean as that of these launches, or further.

    The aligned values of all blocks get ranks together. Equal values get their mean rank.
    """
    parts = aligned(blocks)
    rank = _ranks([v for a, b in parts for v in (*a, *b)])
    sums = {0: 1}
    seen, mean = 0, 0.0
    for a, b in parts:
        ranks = [rank[v] for v in (*a, *b)]
        of_block = _sums(ranks, len(b))
        sums = _added(sums, of_block)
        seen += sum(rank[v] for v in b)
        mean += len(b) * sum(ranks) / len(ranks)
    far = abs(seen - mean) - 1e-9
    beyond = sum(count for total, count in sums.items() if abs(total - mean) >= far)
    return beyond / sum(sums.values())


def _ranks(values: Sequence[float]) -> dict[float, int]:
    """Return twice the rank of each value, which is a whole number also where values are equal."""
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for at, value in enumerate(sorted(values), 1):
        first.setdefault(value, at)
        last[value] = at
    return {value: first[value] + last[value] for value in first}


def _sums(ranks: Sequence[int], chosen: int) -> dict[int, int]:
    """Return each sum of ``chosen`` of the ranks, and in how many ways it comes about."""
    table: list[dict[int, int]] = [{0: 1}, *({} for _ in range(chosen))]
    for rank in ranks:
        for taken in range(chosen, 0, -1):
            for total, ways in table[taken - 1].items():
                table[taken][total + rank] = table[taken].get(total + rank, 0) + ways
    return table[chosen]


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for a, ways_a in one.items():
        for b, ways_b in other.items():
            found[a + b] = found.get(a + b, 0) + ways_a * ways_b
    return found


def least_p(blocks: int, launches: int = 2) -> float:
    """Return the smallest p-value that this many blocks can give, with ``launches`` of A and of B in each block."""
    return 2.0 / float(math.comb(2 * launches, launches)) ** blocks


def interval(blocks: Blocks, seed: int, *, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the bootstrap interval of the logarithm of A's median time over B's. ``blocks``: times."""
    parts = aligned(blocks)
    a, b = [v for part in parts for v in part[0]], [v for part in parts for v in part[1]]
    drawn = zip(_draws(len(a), seed, resamples), _draws(len(b), seed + 1, resamples), strict=True)
    ratios = sorted(median([a[i] for i in of_a]) - median([b[i] for i in of_b]) for of_a, of_b in drawn)
    edge = int((1 - CONFIDENCE) / 2 * resamples)
    return ratios[edge], ratios[-1 - edge]


@lru_cache(maxsize=64)
def _draws(count: int, seed: int, resamples: int) -> tuple[tuple[int, ...], ...]:
    """Return indices drawn with replacement, by Knuth's 64 bit linear congruential generator (MMIX)."""
    state = (seed * 0x9E3779B97F4A7C15 + 1) & 0xFFFFFFFFFFFFFFFF
    found = []
    for _ in range(resamples):
        row = []
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            row.append((state >> 33) % count)
        found.append(tuple(row))
    return tuple(found)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's correction, in the same order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, largest = [1.0] * len(p_values), 0.0
    for at, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - at)))
        found[i] = largest
    return found


def differences(
    times: Mapping[str, Blocks], seed: int, *, floors: Mapping[str, float] | None = None, resamples: int = RESAMPLES
) -> tuple[LaunchDifference, ...]:
    """Return a comparison for each name. ``times``: the times of A and B, by block. ``floors``: the noise floor of each name.

    B shows a gain or a loss if the corrected p-value is at most LEVEL, the interval does not have 0 in it, and the difference
    is not below the noise floor.
    """
    adjusted = holm(tests := [rank_test(blocks) for blocks in times.values()])
    found = []
    for at, (name, blocks) in enumerate(times.items()):
        low, high = interval(blocks, seed, resamples=resamples)
        parts = aligned(blocks)
        a, b = [v for part in parts for v in part[0]], [v for part in parts for v in part[1]]
        log_ratio, floor = median(a) - median(b), (floors or {}).get(name, 0.0)
        effect = Effect.NONE
        if adjusted[at] <= LEVEL and abs(math.expm1(log_ratio)) >= floor:
            effect = Effect.GAIN if low > 0 else Effect.LOSS if high < 0 else Effect.NONE
        found.append(
            LaunchDifference(
                name=name,
                gain=math.expm1(log_ratio),
                low=math.expm1(low),
                high=math.expm1(high),
                p=tests[at],
                adjusted=adjusted[at],
                floor=floor,
                launches=(len(a), len(b)),
                effect=effect,
            )
        )
    return tuple(found)


def noise_floors(same: Sequence[LaunchDifference]) -> dict[str, float]:
    """Return the noise floor of each name, from a comparison of A with itself: the end of its interval that is further from 0."""
    return {each.name: max(abs(each.low), abs(each.high)) for each in same}
