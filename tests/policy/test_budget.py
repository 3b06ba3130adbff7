"""The drain budget: its size, and that agents that decide at the same time end within it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy import Rules
from fairlead.policy.budget import Partition, Unavailable, allowed, over, overshoot, room


@pytest.mark.parametrize(
    ("percent", "nodes", "total", "expected"),
    [
        (20, 0, 100, 20),
        (20, 0, 4, 1),
        (20, 0, 1, 1),
        (0, 0, 50, 1),
        (100, 0, 8, 8),
        (20, 5, 100, 5),
        (20, 50, 100, 20),
        (20, 0, 0, 0),
    ],
)
def test_the_stricter_limit_but_at_least_one_node(percent: int, nodes: int, total: int, expected: int) -> None:
    assert allowed(Rules(budget_percent=percent, budget_nodes=nodes), total) == expected


def test_ranked_by_time_then_name() -> None:
    drained = [(10.0, "n3"), (10.0, "n1"), (9.0, "n2")]
    assert [over(name, time, drained, 2) for time, name in drained] == [True, False, False]


def test_nodes_that_others_took_use_the_budget_first() -> None:
    assert over("n1", 5.0, [(5.0, "n1")], allowed=2, others=2)
    assert not over("n1", 5.0, [(5.0, "n1")], allowed=2, others=1)


def test_room_counts_every_unavailable_node_but_not_oneself() -> None:
    gone = (Unavailable(1.0, "n1", ours=False), Unavailable(2.0, "n2"))
    assert room("n9", [Partition(name="gpu", total=10, unavailable=gone)], Rules()) == "gpu"
    assert room("n2", [Partition(name="gpu", total=10, unavailable=gone)], Rules()) == ""
    small = Partition(name="debug", total=2, unavailable=())
    assert room("n9", [small, Partition(name="gpu", total=10, unavailable=gone)], Rules()) == "gpu"


@given(
    st.integers(1, 64),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 63)), max_size=64),
    st.sets(st.integers(0, 63), max_size=20),
)
def test_after_the_second_look_the_budget_holds_however_many_drained_at_once(
    total: int, percent: int, drains: list[tuple[int, int]], foreign: set[int]
) -> None:
    rules = Rules(budget_percent=percent)
    others = {n for n in foreign if n < total}
    times = {n: float(t) for t, n in drains if n < total and n not in others}
    gone = (*(Unavailable(0.0, f"n{n}", ours=False) for n in others), *(Unavailable(t, f"n{n}") for n, t in times.items()))
    partition = Partition(name="gpu", total=total, unavailable=gone)
    stay = [n for n, t in times.items() if not overshoot(f"n{n}", t, [partition], rules)]
    limit = allowed(rules, total)
    assert len(stay) == max(0, min(len(times), limit - len(others)))
