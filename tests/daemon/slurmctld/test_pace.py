"""How many agents ask slurmctld in a second when it is back, in clusters that no test machine holds: by pace.py itself."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fairlead.daemon.slurmctld.courier import BACKOFF_MAX_SECONDS, BUDGET_BACKOFF_MAX_SECONDS
from fairlead.daemon.slurmctld.pace import (
    ASKS_PER_SECOND,
    FAILED_PER_SECOND,
    LIMITED_PER_SECOND,
    SPREAD_MAX_SECONDS,
    Pace,
)

RPCS_OF_A_QUESTION = 2


def crowd_known(position: int, nodes: int) -> int:
    """What the agent of the node that was drained as number ``position`` knows of the others (``Fleet._look``)."""
    return max(position, nodes // 10)


def asks_per_second(nodes: int, drained: int) -> float:
    """In the worst second, when all agents with a drain are stirred in the same moment; the mean of five tries."""
    worst = []
    for _ in range(5):
        paces = [Pace(None, lambda p=position: crowd_known(p, nodes)) for position in range(1, drained + 1)]  # type: ignore[misc]
        at = Counter(int(pace.stir(1000.0)) for pace in paces)
        assert sum(at.values()) == drained and max(at) <= 1000.0 + SPREAD_MAX_SECONDS
        worst.append(max(at.values()))
    return sum(worst) / len(worst)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("nodes", "drained", "most"),
    [(128, 96, 96), (1000, 50, 25), (1000, 1000, 90), (10_000, 500, 25), (10_000, 1000, 40), (10_000, 10_000, 230)],
)
def test_agents_that_are_stirred_at_once_look_one_after_the_other(nodes: int, drained: int, most: int) -> None:
    """20 a second is the aim. An agent knows how many were drained when it drained, so where all of 1,000 nodes are drained up to
    20 x (1 + ln 10) look in the first second; and it waits a minute at most, so of 10,000 drained nodes 170 a second look."""
    random.seed(27)
    rate = asks_per_second(nodes, drained)
    print(f"\n{nodes} nodes, {drained} drained: {rate:.0f} looks, {rate * RPCS_OF_A_QUESTION:.0f} RPCs in the worst second")
    assert rate <= most


def test_a_standing_drain_is_looked_at_every_two_minutes_where_slurmd_is_watched() -> None:
    """Two RPCs each: one a minute and node, where it was four."""
    random.seed(27)
    pace = Pace(None, lambda: 1000)
    seen = sum(pace.ask_seconds(30.0) for _ in range(200)) / 200
    pace.watched = True
    watched = sum(pace.ask_seconds(30.0) for _ in range(200)) / 200
    assert seen == pytest.approx(30, rel=0.05) and watched == pytest.approx(120, rel=0.05)
    assert RPCS_OF_A_QUESTION * 60 / watched <= 1.1 and ASKS_PER_SECOND == 20


@pytest.mark.parametrize(
    ("nodes", "limited", "failed"), [(128, 256.0, 60.0), (1000, 256.0, 60.0), (2400, 256.0, 120.0), (10_000, 1000.0, 500.0)]
)
def test_the_longest_wait_grows_with_the_cluster(nodes: int, limited: float, failed: float) -> None:
    """Each attempt lists all nodes. A quarter of 10,000 nodes that wait for a limit do so 4 times a second, and not 15 times."""
    pace = Pace(None, lambda: nodes // 10)
    assert pace.wait_max(BUDGET_BACKOFF_MAX_SECONDS, LIMITED_PER_SECOND) == limited
    assert pace.wait_max(BACKOFF_MAX_SECONDS, FAILED_PER_SECOND) == failed
    assert nodes / 4 / (limited * (0.3 + 1.0) / 2) <= 4.0
