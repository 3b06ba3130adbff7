"""Exact intervals and the gamma distribution beside published tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.exact_intervals import binomial_at_least, gamma_below, gamma_quantile, garwood, poisson_at_least, wilson

#: Garwood (1936), table II, 95 %; also in Johnson, Kotz: Discrete Distributions.
GARWOOD = {0: (0.0, 3.689), 1: (0.0253, 5.572), 2: (0.242, 7.225), 3: (0.619, 8.767), 5: (1.623, 11.668), 10: (4.795, 18.390),
           20: (12.217, 30.888), 30: (20.241, 42.827), 50: (37.111, 65.919)}  # fmt: skip
#: Quantiles of chi-square (Abramowitz and Stegun, table 26.8): degrees of freedom, chance, value.
CHI_SQUARE = [
    (1, 0.95, 3.84146),
    (2, 0.99, 9.21034),
    (5, 0.95, 11.0705),
    (10, 0.05, 3.94030),
    (30, 0.975, 46.9792),
    (100, 0.95, 124.342),
]


@pytest.mark.parametrize(("count", "ends"), GARWOOD.items())
def test_garwood(count: int, ends: tuple[float, float]) -> None:
    found = garwood(count)
    assert (found.low, found.high) == pytest.approx(ends, abs=6e-4)


@pytest.mark.parametrize(("freedom", "chance", "value"), CHI_SQUARE)
def test_gamma_quantiles_are_those_of_chi_square(freedom: int, chance: float, value: float) -> None:
    assert 2 * gamma_quantile(freedom / 2, chance) == pytest.approx(value, rel=2e-5)


@given(st.floats(0.05, 500), st.floats(0.001, 0.999))
def test_the_quantile_inverts_the_distribution(shape: float, chance: float) -> None:
    assert gamma_below(shape, gamma_quantile(shape, chance)) == pytest.approx(chance, abs=1e-9)


@given(st.integers(1, 60), st.floats(0.001, 80))
def test_a_poisson_tail_is_the_sum_of_its_terms(count: int, mean: float) -> None:
    below = math.fsum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count))
    assert poisson_at_least(count, mean) == pytest.approx(1 - below, abs=1e-9)


def test_wilson() -> None:
    """The figures of fleet-analytics, section 8."""
    for hits, of, low, high in ((7, 10, 0.40, 0.89), (24, 30, 0.63, 0.90), (80, 100, 0.71, 0.87)):
        found = wilson(hits, of)
        assert found is not None
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.006)
    assert wilson(0, 0) is None


@pytest.mark.parametrize(("hits", "of", "chance"), [(0, 10, 0.3), (3, 10, 0.3), (10, 10, 0.5), (5, 400, 0.02)])
def test_a_binomial_tail(hits: int, of: int, chance: float) -> None:
    exact = sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(hits, of + 1))
    assert binomial_at_least(hits, of, chance) == pytest.approx(exact, rel=1e-9)
