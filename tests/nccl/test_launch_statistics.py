"""Which of two commands is faster: known distributions, and runs whose truth is known (played_launches.py)."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.nccl import launch_figures
from fairlead.nccl.launch_figures import blocks_by_group
from fairlead.nccl.launch_statistics import (
    Effect,
    LaunchDifference,
    differences,
    holm,
    interval,
    least_p,
    noise_floors,
    rank_test,
)
from tests.nccl.played_launches import SIZES, PlayedCluster

BLOCKS = 6  # what `fairlead nccl measure` does by itself
RESAMPLES = 200  # a tenth of what a real run does, because there are many runs here
QUIET, DRIFT, TAILS = {"noise": 0.01}, {"noise": 0.01, "drift": 0.15}, {"noise": 0.01, "tails": 0.05}
NOISY = {"noise": 0.03, "drift": 0.10, "tails": 0.10}


def judged(cluster: PlayedCluster, other: str = "B", blocks: int = BLOCKS) -> tuple[LaunchDifference, ...]:
    """One whole run: A/A first, then A/B against its noise floors."""
    floors = noise_floors(differences(blocks_by_group(cluster.blocks(blocks, "A")), 1, resamples=RESAMPLES))
    return differences(blocks_by_group(cluster.blocks(blocks, other)), 2, floors=floors, resamples=RESAMPLES)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(QUIET, id="quiet", marks=pytest.mark.slow),
        pytest.param(DRIFT, id="drift", marks=pytest.mark.slow),
        pytest.param(TAILS, id="tails", marks=pytest.mark.slow),
        pytest.param(NOISY, id="noise, drift and tails"),
    ],
)
def test_two_hundred_runs_without_a_difference(kind: dict[str, float]) -> None:
    """At most 5 % of the runs may show a difference; that is the stated level."""
    false = 0
    for run in range(200):
        found = judged(PlayedCluster(random.Random(run), **kind), "A")
        false += any(each.effect is not Effect.NONE for each in found)
    print(f"{kind}: {false} of 200 runs without a difference showed one")
    assert false <= 10


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("gain", "kind", "least"),
    [
        (0.15, QUIET, 1.0),
        (0.15, DRIFT, 1.0),
        (0.15, TAILS, 0.9),
        (0.15, NOISY, 0.85),
        (0.05, QUIET, 0.95),
        (0.05, DRIFT, 0.95),
        (0.05, TAILS, 0.75),
        (0.02, QUIET, 0.0),
    ],
)
def test_true_gains_at_some_sizes_are_found(gain: float, kind: dict[str, float], least: float) -> None:
    """A gain at the sizes of one group is found there and in no other group."""
    gaining = {size: gain for size in SIZES if launch_figures.group_of(size) == "up to 1 MiB"}
    right = elsewhere = 0
    for run in range(40):
        found = {d.name: d for d in judged(PlayedCluster(random.Random(1000 + run), gains=gaining, **kind))}
        right += found["up to 1 MiB"].effect is Effect.GAIN
        elsewhere += any(d.effect is not Effect.NONE for name, d in found.items() if name != "up to 1 MiB")
    print(f"{gain:.0%} {kind}: found in {right} of 40 runs, at other sizes in {elsewhere}")
    assert right >= least * 40 and elsewhere <= 2
    if gain == 0.02:
        assert right < 40, "two percent with one percent noise is about the noise floor, and must not be called certain"


def test_a_loss_at_large_sizes_is_seen_beside_a_gain_at_small_ones() -> None:
    gains = {size: 0.15 if size <= 64 << 10 else -0.10 if size > 32 << 20 else 0.0 for size in SIZES}
    found = {d.name: d.effect for d in judged(PlayedCluster(random.Random(5), gains=gains))}
    assert found == {
        "up to 64 KiB": Effect.GAIN,
        "up to 1 MiB": Effect.NONE,
        "up to 32 MiB": Effect.NONE,
        "above 32 MiB": Effect.LOSS,
    }


def test_the_rank_test_is_that_of_mann_and_whitney_in_one_block() -> None:
    apart = [([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0])]
    assert rank_test(apart) == pytest.approx(2 / math.comb(12, 6))  # 0.0022, the smallest with 6 launches of each
    assert rank_test([([1.0, 2.0], [1.0, 2.0])]) == 1.0
    assert least_p(4) == pytest.approx(2 / 6**4) and least_p(1, 6) == pytest.approx(2 / math.comb(12, 6))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 9)] * 4), min_size=1, max_size=3))
def test_the_rank_test_counts_every_way(drawn: list[tuple[int, int, int, int]]) -> None:
    """The same as going over all ways to call two launches of each block B."""
    from fairlead.nccl import launch_statistics

    blocks = [((float(a), float(b)), (float(c), float(d))) for a, b, c, d in drawn]
    parts = launch_statistics.aligned(blocks)
    values = sorted(v for a, b in parts for v in (*a, *b))
    rank = {v: (2 * values.index(v) + values.count(v) + 1) / 2 for v in values}
    totals = [
        sum(rank[v] for block, two in zip(parts, way, strict=True) for i, v in enumerate((*block[0], *block[1])) if i in two)
        for way in itertools.product(list(itertools.combinations(range(4), 2)), repeat=len(parts))
    ]
    mean, seen = sum(totals) / len(totals), sum(rank[v] for _, b in parts for v in b)
    far = sum(abs(total - mean) >= abs(seen - mean) - 1e-9 for total in totals) / len(totals)
    assert rank_test(blocks) == pytest.approx(far)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_interval_has_the_truth_in_it_and_a_seed_gives_it_again() -> None:
    chance, inside = random.Random(3), 0
    for _ in range(200):
        a = [math.exp(chance.gauss(0, 0.02)) for _ in range(8)]
        b = [math.exp(chance.gauss(0, 0.02)) / 1.05 for _ in range(8)]
        low, high = interval([(a, b)], 7, resamples=400)
        inside += low <= math.log(1.05) <= high
    print(f"the interval had the truth in it in {inside} of 200")
    assert inside >= 180  # a bootstrap of medians of 8 launches is a little short of 95 %
    assert interval([(a, b)], 7) == interval([(a, b)], 7) != interval([(a, b)], 8)


def test_a_disturbed_launch_does_not_hide_a_gain_of_five_percent() -> None:
    chance = random.Random(11)
    blocks = [([chance.uniform(1.0, 1.01) for _ in range(2)], [chance.uniform(0.95, 0.96) for _ in range(2)]) for _ in range(4)]
    blocks[1][1][0] = 1.4
    (found,) = differences({"x": blocks}, 1, floors={"x": 0.02})
    assert found.effect is Effect.GAIN and 0.04 < found.gain < 0.065 and found.launches == (8, 8)


def test_a_difference_below_the_noise_floor_is_none() -> None:
    blocks = [([1.0, 1.001], [0.99, 0.991])] * 4
    (seen,) = differences({"x": blocks}, 1)
    (below,) = differences({"x": blocks}, 1, floors={"x": 0.024})
    assert seen.effect is Effect.GAIN and below.effect is Effect.NONE and below.p == seen.p


def test_launches_with_other_sizes_cannot_be_compared() -> None:
    with pytest.raises(DataError, match="same sizes"):
        blocks_by_group([([{8: 1.0}], [{16: 1.0}])])
