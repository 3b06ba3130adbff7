"""What the page on scale claims of clusters that no test machine holds, by the code's own periods and limits."""

from __future__ import annotations

import heapq
import random

import pytest

from fairlead.daemon.slurmctld.courier import BACKOFF_MAX_SECONDS
from fairlead.daemon.slurmctld.pace import FAILED_PER_SECOND, Pace
from tests.scale import scale_arithmetic as arithmetic
from tests.scale.scale_arithmetic import MEASURED, SLURMCTLD_CORES


def test_the_arithmetic_is_that_of_the_code() -> None:
    assert arithmetic.limited_seconds(128) == pytest.approx(166.4) and arithmetic.limited_seconds(10_000) == pytest.approx(650)
    assert arithmetic.failed_seconds(1000) == 60 and arithmetic.failed_seconds(10_000) == 500
    assert arithmetic.question_seconds() == 120 and arithmetic.spread_seconds(10_000) == 50 and arithmetic.drained(128) == 25
    assert arithmetic.mass_seconds(1000) < 2, "at 1,000 nodes a quarter that fails at once is answered soon"
    assert arithmetic.limited_core(10_000) < 0.5, "and at 10,000 nodes those that wait for a limit leave slurmctld to others"


def test_the_size_at_which_something_breaks_is_the_least() -> None:
    found = {(what, much): size for what, much, size in arithmetic.breaks()}
    assert arithmetic.first_size(lambda n: n > 4200) == 4300 and arithmetic.first_size(lambda n: False) == 0
    assert all(size > 1000 for size in found.values() if size), "nothing breaks at 1,000 nodes"


def answered(nodes: int, faulty: int, *, deadline: float, hours: float = 1.0) -> tuple[int, float]:
    """How many agents have had an answer, and when the last of them had it. All ask in the same second a slurmctld that answers
    one list after the other, and goes on with those that nobody waits for any more."""
    random.seed(26)
    service = MEASURED.listing_ms(nodes) / 1000 / SLURMCTLD_CORES
    pace = Pace(None, lambda: arithmetic.crowd(nodes))
    asks = [(random.uniform(0.0, 0.05), agent) for agent in range(faulty)]
    heapq.heapify(asks)
    failures, first, free = [0] * faulty, dict[int, float](), 0.0
    while asks and asks[0][0] < hours * 3600:
        now, agent = heapq.heappop(asks)
        free = max(free, now) + service
        if free - now <= deadline:
            first[agent] = free
            continue
        longest = pace.wait_max(BACKOFF_MAX_SECONDS, FAILED_PER_SECOND)
        wait = min(longest, 2.0 ** failures[agent]) * random.uniform(0.5, 1.0) + pace.spread()
        failures[agent] = min(failures[agent] + 1, 10)
        heapq.heappush(asks, (now + deadline + wait, agent))
    return len(first), max(first.values(), default=0.0)


@pytest.mark.parametrize(
    ("nodes", "faulty", "deadline", "most"),
    [(1000, 1000, 10, 10), (5000, 1250, 10, 120), (10_000, 500, 10, 90), (10_000, 2500, 60, 300)],
)
def test_a_mass_fault_ends(nodes: int, faulty: int, deadline: float, most: float) -> None:
    """Without the waits that grow with the cluster, 2,500 of 10,000 agents with a limit of 10 s never got an answer."""
    count, last = answered(nodes, faulty, deadline=deadline)
    print(f"\n{faulty} of {nodes} nodes, {deadline} s: {count} answered, the last after {last:.0f} s")
    assert count == faulty and last <= most
