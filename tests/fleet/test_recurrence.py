"""Recurrence over jobs: what is counted, the traps of position and users, and how often equal nodes are named."""

from __future__ import annotations

import random

import pytest

from fairlead.fleet.slow_node_rule import NodeSigns
from fairlead.fleet.slow_recurrence import FALSE, JobSigns, by_users, named_of, recurring, trials_of
from fairlead.fleet.small_group_statistics import poisson_binomial_tail
from tests.fleet.year_of_jobs import (
    SIGNALS,
    days_until_named,
    false_for_each_report,
    heavy_roles,
    prepared,
    shuffled,
    trials,
    windows,
    year_of,
)

NODES = tuple(f"n{i:02d}" for i in range(16))


def job(number: int, user: str, slow: str = "", nodes: tuple[str, ...] = NODES, **changes: object) -> JobSigns:
    """A job in which one node has a high CPU pressure."""
    made = [NodeSigns(node=node, host={"cpu_pressure": 60.0 if node == slow else 2.0}, **changes) for node in nodes]  # type: ignore[arg-type]
    return JobSigns(job=number, user=user, end_unix=float(number), nodes=tuple(made))


def others(count: int) -> list[JobSigns]:
    """Jobs of other nodes, of which each is the extreme in its turn."""
    nodes = tuple(f"m{i:02d}" for i in range(16))
    return [job(1000 + n, f"v{n}", nodes[1 + n % 14], nodes) for n in range(count)]


def test_the_chance_of_five_of_six() -> None:
    assert poisson_binomial_tail([1 / 16] * 6, 5) == pytest.approx(5.4e-6, rel=0.01)


@pytest.mark.parametrize(
    ("chances", "least", "tail"), [([], 0, 1.0), ([], 1, 0.0), ([0.5], 1, 0.5), ([0.5, 0.2], 2, 0.1), ([1.0] * 3, 3, 1.0)]
)
def test_the_tail(chances: list[float], least: int, tail: float) -> None:
    assert poisson_binomial_tail(chances, least) == pytest.approx(tail)


def test_a_node_that_is_slow_for_six_users_is_named_and_nobody_else() -> None:
    found = recurring([*(job(n, f"u{n}", "n07") for n in range(6)), *others(28)])
    assert [(each.node, each.signal) for each in found.named] == [("n07", "cpu_pressure")]
    assert found.named[0].expected_false < FALSE and found.tests == 28


def test_the_jobs_of_one_user_name_nobody() -> None:
    """One user's layout, or a heavy rank, is the same in all of the user's jobs."""
    assert recurring([job(n, "alice", "n07") for n in range(500)]).named == ()


@pytest.mark.parametrize("slow", ["n00", "n15"])
def test_the_first_and_the_last_node_are_not_compared(slow: str) -> None:
    found = recurring([job(n, f"u{n}", slow) for n in range(40)])
    assert found.named == () and found.tests == 14


def test_a_place_in_the_nodelist_at_which_all_nodes_are_slow_names_nobody() -> None:
    """The stage at the middle of each job has more to do, whichever node is there."""
    rng = random.Random(3)
    jobs = []
    for n in range(300):
        nodes = tuple(f"m{i:03d}" for i in sorted(rng.sample(range(64), 16)))
        jobs.append(job(n, f"u{n}", nodes[8], nodes))
    assert recurring(jobs).named == ()


def test_a_difference_below_the_floor_is_no_extreme() -> None:
    node = [NodeSigns(node=n, host={"cpu_pressure": 3.0 if n == "n07" else 2.0}) for n in NODES]
    assert not any(t.extreme for t in trials_of(JobSigns(job=1, user="u", end_unix=0, nodes=tuple(node))))


def test_two_equal_extremes_are_none() -> None:
    node = [NodeSigns(node=n, host={"cpu_pressure": 60.0 if n in ("n07", "n08") else 2.0}) for n in NODES]
    assert not any(t.extreme for t in trials_of(JobSigns(job=1, user="u", end_unix=0, nodes=tuple(node))))


def test_jobs_that_cannot_be_compared_are_counted_by_their_reason() -> None:
    old = "its record has no histograms (fairlead 0.1.0 wrote it)"
    found = recurring(
        [
            job(1, "a", nodes=NODES[:5]),
            job(2, "b", lacking=old),
            job(3, "c", readings=3),
            JobSigns(job=4, user="d", end_unix=0, nodes=tuple(NodeSigns(node=n) for n in NODES)),
        ]
    )
    assert found.jobs == 0 and found.tests == 0 and found.named == ()
    assert found.left_out == {
        "fewer than 6 nodes": 1,
        old: 1,
        "fewer than 8 readings": 1,
        "fewer than 4 nodes of one kind with the same values": 1,
    }


@pytest.mark.parametrize(
    ("jobs", "mostly", "chance"),
    [
        ([("a", True, 0.1)], 1, 0.1),
        ([("a", True, 0.1), ("a", False, 0.1)], 0, 1.0),
        ([("a", True, 0.1), ("a", True, 0.1)], 1, 0.1),
        ([("a", True, 0.1), ("b", True, 0.2)], 2, 0.02),
    ],
)
def test_users_are_counted(jobs: list[tuple[str, bool, float]], mostly: int, chance: float) -> None:
    found, _, tail = by_users(jobs)
    assert found == mostly and tail == pytest.approx(chance)


def test_the_users_bound_holds_if_all_jobs_of_a_user_are_one_and_the_same() -> None:
    """The chance that is claimed for a user is never less than the true one, at both ends of dependence."""
    rng = random.Random(5)
    for jobs in (1, 2, 3, 7):
        chance = 1 / 8
        claimed = by_users([("a", True, chance)] * jobs)[2]
        same = chance
        independent = poisson_binomial_tail([chance] * jobs, jobs // 2 + 1)
        assert claimed >= max(same, independent) - 1e-12, (jobs, rng)


@pytest.mark.parametrize("quarters", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_equal_nodes_with_heavy_roles_are_not_named(quarters: int) -> None:
    """Slurm's order, users with layouts of their own, and no shuffle."""
    year = year_of(96)
    assert len(windows(year)) == 4
    for jobs in windows(year)[:quarters]:
        found, tests = named_of(trials(jobs, heavy_roles(year, jobs)))
        assert found == () and tests > 900


def test_the_quick_count_of_a_shuffle_is_the_product_s() -> None:
    """The A/A test counts with less work; it must name at least whom the product names."""
    jobs = windows(year_of(96))[0]
    window = prepared(jobs)
    rng = random.Random(11)
    extremes = {
        (j.number, s): (48 if 48 in j.inner and rng.random() < 0.7 else rng.choice(j.inner)) for j in jobs for s in SIGNALS
    }
    found, _ = named_of(trials(jobs, extremes))
    assert {each.node for each in found} == {"48"}

    class Played:
        """Gives the labels above, in the order in which the count asks."""

        def __init__(self) -> None:
            self.left = [(j.inner.index(extremes[j.number, s]) + 0.5) / len(j.inner) for s in SIGNALS for j in jobs]

        def random(self) -> float:
            return self.left.pop(0)

    quick = set(shuffled(window, Played()))  # type: ignore[arg-type]
    assert {(int(each.node), each.signal) for each in found} <= quick
    assert {node for node, _ in quick} == {48}


@pytest.mark.parametrize("nodes", [96])
def test_shuffled_labels_name_no_more_than_is_printed(nodes: int) -> None:
    rate, reports, _ = false_for_each_report(nodes, 50)
    assert reports == 200 and rate <= FALSE


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", [96, 1024])
def test_a_thousand_shuffles_of_a_year_name_no_more_than_is_printed(nodes: int) -> None:
    rate, reports, named = false_for_each_report(nodes, 1000)
    print(f"{nodes} nodes: {named} named in {reports} reports, {rate:.5f} for each weekly report; printed: {FALSE}")
    assert rate <= FALSE


def test_a_slow_node_is_named_soon() -> None:
    assert (days_until_named(96, 0.8) or 999) <= 30
