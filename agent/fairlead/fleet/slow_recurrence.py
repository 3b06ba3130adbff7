"""Names nodes that are the extreme of their jobs again and again, whatever the jobs do: this test needs no layout of any job.

If roles are assigned at random, a node is the extreme of a job with n nodes with the chance 1/n. The traps, and what is done:

- Slurm orders the nodes of a job, so that a node may often be the first (rank 0 logs and saves) or the last (the last pipeline
  stage). The first and the last node of a job are left out. For the others the chance is that of their part of the nodelist, as
  the other nodes' jobs show it, if that is more than 1/n.
- The jobs of one user are alike. Users are counted, not jobs: a user counts for a node if the node is the extreme in more than
  half of this user's jobs on it. By Markov's inequality the chance of that is at most the sum of the chances of these m jobs,
  divided by the least number that is more than half of m, however much the jobs depend on each other.
- Each node and each signal is tested. A node is named only if the chance, multiplied with the number of tests, is less than
  ``FALSE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fairlead.fleet.slow_node_rule import READINGS_MIN, SIGNALS, NodeSigns, Signal
from fairlead.fleet.small_group_statistics import GROUP_MIN, median, poisson_binomial_tail

#: The signals in which a node may be the extreme, with the side on which it is slow. The culprit of a synchronous job is the
#: busiest, so that a high activity counts too.
SIDES = {signal.name: signal.slow or ("high" if signal.name == "activity" else "") for signal in SIGNALS}
FALSE = 0.02  # nodes that one report names by chance, at most
USERS_MIN = 3
PARTS = 8  # of a job's nodelist


class JobSigns(Struct, frozen=True, kw_only=True):
    """Holds one ended job: its nodes in Slurm's order, with what each of them shows."""

    job: int
    user: str
    end_unix: float
    nodes: tuple[NodeSigns, ...]


class Trial(Struct, frozen=True):
    """Says that a job compared a node in one signal. part: of the nodelist. extreme: the node was the extreme."""

    node: str
    signal: str
    user: str
    job: int
    nodes: int
    part: int
    extreme: bool


class Recurrence(Struct, frozen=True, kw_only=True):
    """Names a node that is the extreme of its jobs too often. users of of_users: in whose jobs it is. chance: of that or more.
    expected_false: the chance, multiplied with the number of tests."""

    node: str
    signal: str
    users: int
    of_users: int
    jobs: int
    of_jobs: int
    chance: float
    expected_false: float


class RecurrenceReport(Struct, frozen=True, kw_only=True):
    """Holds the named nodes, the least likely first. tests: how many nodes and signals were tested. expected_false: how many
    nodes are named by chance, at most. jobs: how many were used. left_out: the other jobs by the reason."""

    named: tuple[Recurrence, ...]
    tests: int
    jobs: int
    expected_false: float = FALSE
    left_out: dict[str, int] = {}


def recurring(jobs: Iterable[JobSigns]) -> RecurrenceReport:
    """Return which nodes are the extreme of their jobs more often than chance allows."""
    left_out: dict[str, int] = {}
    trials: list[Trial] = []
    used = 0
    for job in jobs:
        found = list(trials_of(job))
        if found:
            used += 1
            trials += found
        else:
            why = _left_out(job)
            left_out[why] = left_out.get(why, 0) + 1
    named, tests = named_of(trials)
    return RecurrenceReport(named=named, tests=tests, jobs=used, left_out=left_out)


def trials_of(job: JobSigns, signals: Sequence[Signal] = SIGNALS) -> Iterator[Trial]:
    """Yield a trial for each node and signal that the job compares."""
    inner = [node for node in job.nodes[1:-1] if not node.lacking and node.readings >= READINGS_MIN]
    kinds: dict[str, list[NodeSigns]] = {}
    for node in inner:
        kinds.setdefault(node.kind, []).append(node)
    position = {node.node: at * PARTS // len(job.nodes) for at, node in enumerate(job.nodes)}
    for signal in signals:
        side = SIDES[signal.name]
        for group in kinds.values() if side else ():
            values = {node.node: value for node in group if (value := _worst(node, signal, side)) is not None}
            if len(values) < GROUP_MIN:
                continue
            extreme = _extreme(values, signal, side)
            for name in values:
                yield Trial(name, signal.name, job.user, job.job, len(values), position[name], name == extreme)


def _worst(node: NodeSigns, signal: Signal, side: str) -> float | None:
    """Return the node's value, or that of its GPU which is furthest on the side."""
    if not signal.of_gpu:
        return node.host.get(signal.name)
    known = [values[signal.name] for values in node.gpus.values() if signal.name in values]
    return (max(known) if side == "high" else min(known)) if known else None


def _extreme(values: Mapping[str, float], signal: Signal, side: str) -> str:
    """Return the node that lies furthest on the side, or "" if two do, or if it differs by less than the signal's floor."""
    centre = median(values.values())
    floor = signal.floor * abs(centre) if signal.relative else signal.floor
    ordered = sorted(values, key=lambda node: values[node], reverse=side == "high")
    first, second = ordered[:2]
    return first if values[first] != values[second] and abs(values[first] - centre) >= floor else ""


def _left_out(job: JobSigns) -> str:
    lacking = [node.lacking for node in job.nodes if node.lacking]
    if lacking and len(job.nodes) - len(lacking) < GROUP_MIN + 2:
        return max(set(lacking), key=lacking.count)
    if len(job.nodes) < GROUP_MIN + 2:
        return f"fewer than {GROUP_MIN + 2} nodes"
    if any(node.readings < READINGS_MIN for node in job.nodes):
        return f"fewer than {READINGS_MIN} readings"
    return f"fewer than {GROUP_MIN} nodes of one kind with the same values"


def named_of(trials: Sequence[Trial]) -> tuple[tuple[Recurrence, ...], int]:
    """Return the named nodes, the least likely first, and the number of tests."""
    chances = chances_of(trials)
    by_test: dict[tuple[str, str], list[tuple[Trial, float]]] = {}
    for trial, chance in zip(trials, chances, strict=True):
        by_test.setdefault((trial.node, trial.signal), []).append((trial, chance))
    named = []
    for (node, signal), found in by_test.items():
        users, of_users, chance = by_users((t.user, t.extreme, c) for t, c in found)
        if users >= USERS_MIN and chance * len(by_test) < FALSE:
            named.append(
                Recurrence(
                    node=node,
                    signal=signal,
                    users=users,
                    of_users=of_users,
                    jobs=sum(t.extreme for t, _ in found),
                    of_jobs=len(found),
                    chance=chance,
                    expected_false=chance * len(by_test),
                )
            )
    return tuple(sorted(named, key=lambda each: (each.chance, each.node, each.signal))), len(by_test)


def chances_of(trials: Sequence[Trial]) -> list[float]:
    """Return for each trial the chance that the node is the extreme: 1/n, or more if other nodes at this part of a nodelist are
    the extreme more often."""
    whole: dict[tuple[str, ...], list[int]] = {}
    for trial in trials:
        part = str(trial.part)
        for key in ((trial.signal, part), (trial.signal, part, trial.node)):
            counts = whole.setdefault(key, [0, 0])
            counts[0] += trial.extreme
            counts[1] += 1
    found = []
    for trial in trials:
        extremes, seen = whole[trial.signal, str(trial.part)]
        own_extremes, own_seen = whole[trial.signal, str(trial.part), trial.node]
        others, of_others = extremes - own_extremes, seen - own_seen
        usual = others / of_others if of_others >= 30 else 0.0  # from fewer trials nobody knows what is usual there
        found.append(min(1.0, max(1 / trial.nodes, usual)))
    return found


def by_users(trials: Iterable[tuple[str, bool, float]]) -> tuple[int, int, float]:
    """Return in the jobs of how many users a node is mostly the extreme, of how many users, and the chance of that or more.
    ``trials``: the user, whether the node was the extreme, and the chance of that."""
    of_user: dict[str, list[tuple[bool, float]]] = {}
    for user, extreme, chance in trials:
        of_user.setdefault(user, []).append((extreme, chance))
    mostly, bounds = 0, []
    for found in of_user.values():
        least = len(found) // 2 + 1
        mostly += sum(extreme for extreme, _ in found) >= least
        bounds.append(min(1.0, sum(chance for _, chance in found) / least))
    return mostly, len(of_user), poisson_binomial_tail(bounds, mostly)
