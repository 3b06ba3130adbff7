"""A simulated year of jobs on equal nodes, and how often the recurrence names somebody all the same.

In each job and each signal one node is the extreme: that is the worst case, because a job in which nobody differs names nobody.
A user has few layouts, and the heavy role of a layout is at one place of the nodelist. Slurm orders the nodes of a job.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.fleet.slow_recurrence import FALSE, PARTS, SIDES, USERS_MIN, Trial
from fairlead.fleet.small_group_statistics import poisson_binomial_tail

SIGNALS = tuple(name for name, side in SIDES.items() if side)
WINDOW_DAYS = 90
SIZES = (8, 8, 8, 12, 16, 16, 24, 32)


@dataclass(frozen=True)
class Job:
    number: int
    day: int
    user: int
    nodes: tuple[int, ...]  # in Slurm's order

    @property
    def inner(self) -> tuple[int, ...]:
        return self.nodes[1:-1]


@dataclass(frozen=True)
class Year:
    nodes: int
    users: int
    jobs: tuple[Job, ...]
    heavy: tuple[float, ...]  # of each user: where in the nodelist the heavy role is


def year_of(nodes: int, *, seed: int = 1, days: int = 360) -> Year:
    """Multi-node jobs of a cluster: one for each five nodes and day. Some users have most of the jobs, and a user often has the
    same part of the cluster."""
    rng = random.Random(seed)
    users = max(12, nodes // 4)
    home = [rng.randrange(nodes) for _ in range(users)]
    heavy = tuple(rng.random() for _ in range(users))
    jobs: list[Job] = []
    for day in range(days):
        for _ in range(nodes // 5):
            user = min(int(rng.paretovariate(1.0)) - 1, users - 1)
            size = rng.choice(SIZES)
            if rng.random() < 0.5:
                begin = (home[user] + rng.randrange(8)) % nodes
                chosen = {(begin + each) % nodes for each in range(size)}
            else:
                chosen = set(rng.sample(range(nodes), size))
            jobs.append(Job(len(jobs), day, user, tuple(sorted(chosen))))
    return Year(nodes, users, tuple(jobs), heavy)


def windows(year: Year) -> list[list[Job]]:
    """The jobs of each whole window of 90 days."""
    last = max(job.day for job in year.jobs) + 1
    return [[j for j in year.jobs if at <= j.day < at + WINDOW_DAYS] for at in range(0, last - WINDOW_DAYS + 1, WINDOW_DAYS)]


def trials(jobs: Sequence[Job], extremes: dict[tuple[int, str], int]) -> list[Trial]:
    """What the product counts. ``extremes``: by job and signal, the node that is the extreme."""
    return [
        Trial(
            str(node),
            signal,
            str(job.user),
            job.number,
            len(job.inner),
            (at + 1) * PARTS // len(job.nodes),
            extremes.get((job.number, signal)) == node,
        )
        for job in jobs
        for signal in SIGNALS
        for at, node in enumerate(job.inner)
    ]


def heavy_roles(year: Year, jobs: Sequence[Job]) -> dict[tuple[int, str], int]:
    """No shuffle: the extreme of a job is the node that has the user's heavy role, and in a fifth of jobs another one."""
    rng = random.Random(7)
    found = {}
    for job in jobs:
        for signal in SIGNALS:
            at = min(len(job.inner) - 1, int(year.heavy[job.user] * len(job.inner)))
            found[job.number, signal] = rng.choice(job.inner) if rng.random() < 0.2 else job.inner[at]
    return found


@dataclass
class Window:
    """What does not depend on the labels. spans: of each job, the first and the number of its pairs in ``pair_of``. pair_of: the
    number of the pair of node and user, for each inner node of each job. node_of, least: by that number, the node, and in how
    many of the user's jobs it has to be the extreme. named_from: by node, for how many users that has to be so to be named."""

    spans: list[tuple[int, int]]
    pair_of: list[int]
    node_of: list[int]
    least: list[int]
    named_from: dict[int, int]


def prepared(jobs: list[Job]) -> Window:
    numbers: dict[tuple[int, int], int] = {}
    chances: list[list[float]] = []
    spans: list[tuple[int, int]] = []
    pair_of: list[int] = []
    for job in jobs:
        spans.append((len(pair_of), len(job.inner)))
        for node in job.inner:
            pair = numbers.setdefault((node, job.user), len(numbers))
            if pair == len(chances):
                chances.append([])
            chances[pair].append(1 / len(job.inner))
            pair_of.append(pair)
    least = [len(found) // 2 + 1 for found in chances]
    bounds: dict[int, list[float]] = {}
    for (node, _), pair in numbers.items():
        bounds.setdefault(node, []).append(min(1.0, sum(chances[pair]) / least[pair]))
    tests = len(bounds) * len(SIGNALS)
    named_from = {}
    for node, each in bounds.items():
        named_from[node] = next(
            (k for k in range(USERS_MIN, len(each) + 1) if poisson_binomial_tail(each, k) * tests < FALSE), len(each) + 1
        )
    return Window(spans, pair_of, [node for node, _ in numbers], least, named_from)


def shuffled(window: Window, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Shuffle the labels of the nodes of each job, and yield the nodes that are then named, with the signal."""
    pick, pair_of, least, node_of = rng.random, window.pair_of, window.least, window.node_of
    for signal in SIGNALS:
        counts = Counter([pair_of[first + int(pick() * count)] for first, count in window.spans])
        users = Counter([node_of[pair] for pair, count in counts.items() if count >= least[pair]])
        for node, count in users.items():
            if count >= window.named_from[node]:
                yield node, signal


def false_for_each_report(nodes: int, shuffles: int, seed: int = 1) -> tuple[float, int, int]:
    """How many nodes and signals a weekly report over 90 days names by chance, the number of reports, and the named in all."""
    rng = random.Random(seed)
    made = [prepared(jobs) for jobs in windows(year_of(nodes, seed=seed))]
    named = sum(len(list(shuffled(window, rng))) for _ in range(shuffles) for window in made)
    return named / (shuffles * len(made)), shuffles * len(made), named


def days_until_named(nodes: int, part: float, seed: int = 3) -> int | None:
    """After how many days a node is named that is the extreme of this part of its jobs. None: not within a window."""
    from fairlead.fleet.slow_recurrence import named_of

    year = year_of(nodes, seed=seed, days=WINDOW_DAYS)
    rng = random.Random(seed)
    slow = nodes // 2
    extremes = {
        (job.number, SIGNALS[0]): slow if slow in job.inner and rng.random() < part else rng.choice(job.inner)
        for job in year.jobs
    }
    for days in range(5, WINDOW_DAYS + 1, 5):
        jobs = [job for job in year.jobs if job.day < days]
        found, _ = named_of([t for t in trials(jobs, extremes) if t.signal == SIGNALS[0] or t.node == str(slow)])
        if any(each.node == str(slow) for each in found):
            return days
    return None
