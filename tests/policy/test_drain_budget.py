"""The size of a drain budget."""

from __future__ import annotations

import pytest

from fairlead.policy.drain_budget import allowed, seats


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
    assert allowed(percent, nodes, total) == expected


def test_nodes_that_others_took_use_the_budget_first() -> None:
    assert [seats(3, others) for others in (0, 1, 3, 9)] == [3, 2, 0, 0]
