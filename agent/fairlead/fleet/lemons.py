"""Lists the nodes that fail more often than their class, and groups of nodes (a leaf switch, a driver) that do.

Incidents of the last ``WINDOW_DAYS`` days count, over allocated node-days. Only incidents of different users and jobs count: of
the incidents that touched jobs, at most one for each user. An incident that touched no job may be of the same user, because a
program can leave a node broken that is found after its end. So of these the same part counts as of those that touched jobs.

A node is listed if its count would be so high by chance on few nodes of all: the expected number of nodes that chance alone puts
on the list is at most ``false_max``. It is printed, with the number that is not exceeded with ``CONFIDENCE``. The list has at
most one node for each ``NODES_EACH`` nodes, those with the highest rate of the Poisson-Gamma posterior first: the prior is fitted
to the class by its mean and its spread.

A shared cause is told as shared. A group is listed if its count without its worst node is too high for chance beside the other
groups of its kind (binomial test, times the number of groups). The nodes of a listed group are compared with the rate of their
group. A node of a group that may be bad (the test without the factor) is compared with the other nodes of the group, if their
rate is higher. Incidents that begin on ``GROUP_NODES_MIN`` nodes of a group within ``EVENT_SECONDS`` are one event of the group:
they count for no node and for no rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet.exact_intervals import Interval, binomial_at_least, gamma_quantile, poisson_at_least
from fairlead.fleet.incidents import Incident

WINDOW_DAYS = 90
NODES_EACH = 50
INCIDENTS_MIN = 3
FALSE_MAX = 0.5
FALSE_PART = 0.1  # of the places on the list
CONFIDENCE = 0.95
GROUP_CHANCE = 0.05
GROUP_NODES_MIN = 4
EVENT_SECONDS = 600.0


class Exposed(Struct, frozen=True, kw_only=True):
    """Holds what is known of one machine: its allocated node-days in the window, its class, its groups ("switch leaf3"), and its
    incidents with the users whose jobs each of them touched. driver_days: the node-days with each driver."""

    machine: str
    node: str
    node_class: str
    node_days: float
    incidents: tuple[tuple[Incident, frozenset[str]], ...] = ()
    groups: tuple[str, ...] = ()
    driver_days: Mapping[str, float] = {}


class Lemon(Struct, frozen=True, kw_only=True):
    """Holds one listed node. count: independent incidents. all_incidents: with those of the same user. per_1000: the posterior's
    rate per 1,000 node-days, with its 95 % interval. chance: how likely a node without a fault has such a count. what: whether
    the slot, the card or the node repeats."""

    node: str
    machine: str
    count: int
    all_incidents: int
    users: int
    node_days: float
    per_1000: float
    interval: Interval
    chance: float
    what: str


class GroupFound(Struct, frozen=True, kw_only=True):
    """Holds one listed group. chance: of such a count by chance, times the number of groups."""

    name: str
    nodes: int
    count: int
    node_days: float
    times: float
    chance: float


class EventFound(Struct, frozen=True, kw_only=True):
    """Holds incidents of one group that began together: the nodes, and when the first of them began."""

    name: str
    nodes: tuple[str, ...]
    begin_unix: float


class CardFound(Struct, frozen=True, kw_only=True):
    """Holds a GPU card that had incidents in several slots or nodes."""

    serial: str
    count: int
    where: tuple[str, ...]


class LemonList(Struct, frozen=True, kw_only=True):
    """Holds the list. expected_false: how many nodes chance alone would put on it, on average. most_false: chance alone puts more
    than this on it in less than one list of 20. budget: the most nodes that it may have. over_budget: further nodes that are as
    bad and have no place on it. events: incidents that began together on a group."""

    lemons: tuple[Lemon, ...]
    groups: tuple[GroupFound, ...]
    cards: tuple[CardFound, ...]
    nodes: int
    count: int
    node_days: float
    expected_false: float
    budget: int
    most_false: int = 0
    over_budget: int = 0
    events: tuple[EventFound, ...] = ()


class Prior(Struct, frozen=True):
    """Holds the gamma prior of the rate per node-day: shape and rate parameter."""

    shape: float
    days: float


SHAPE_MIN, SHAPE_MAX = 0.2, 50.0


def lemons(exposed: Sequence[Exposed]) -> LemonList:
    """Return the list for the machines of one fleet."""
    cards = tuple(_cards(i for each in exposed for i, _ in each.incidents))
    exposed, events = _without_events(exposed)
    counts = {each.machine: independent(each.incidents) for each in exposed}
    groups, others = _groups(exposed, counts)
    bad = {group.name for group in groups}
    pools: dict[tuple[str, str], list[Exposed]] = {}
    for each in exposed:
        own = [g for g in (*each.groups, *(f"driver {name}" for name in each.driver_days)) if g in bad]
        pools.setdefault((each.node_class, " ".join(own)), []).append(each)
    budget = max(1, len(exposed) // NODES_EACH) if exposed else 0
    false_max = max(FALSE_MAX, FALSE_PART * budget)
    found: list[Lemon] = []
    expected = 0.0
    for pool in pools.values():
        made, false = _of_pool(pool, counts, others, false_max * len(pool) / len(exposed))
        found += made
        expected += false
    found.sort(key=lambda lemon: (-lemon.per_1000, lemon.node))
    return LemonList(
        lemons=tuple(found[:budget]),
        groups=tuple(groups),
        cards=cards,
        nodes=len(exposed),
        count=sum(counts.values()),
        node_days=sum(each.node_days for each in exposed),
        expected_false=min(expected, float(budget)),
        budget=budget,
        most_false=min(budget, most_by_chance(expected)),
        over_budget=max(0, len(found) - budget),
        events=tuple(events),
    )


def most_by_chance(mean: float) -> int:
    """Return the number that a Poisson count with this mean does not exceed with ``CONFIDENCE``."""
    most = 0
    while poisson_at_least(most + 1, mean) > 1 - CONFIDENCE:
        most += 1
    return most


def _without_events(exposed: Sequence[Exposed]) -> tuple[list[Exposed], list[EventFound]]:
    """Return the machines without the incidents that began together on a group, and these events."""
    times: dict[str, list[tuple[float, str]]] = {}
    for each in exposed:
        for group in each.groups:
            times.setdefault(group, []).extend((i.begin_unix, each.machine) for i, _ in each.incidents)
    nodes = {each.machine: each.node for each in exposed}
    events: list[EventFound] = []
    shared: set[tuple[str, float]] = set()
    for group, found in times.items():
        found.sort()
        at = 0
        while at < len(found):
            end = at
            while end < len(found) and found[end][0] - found[at][0] <= EVENT_SECONDS:
                end += 1
            machines = {machine for _, machine in found[at:end]}
            if len(machines) < GROUP_NODES_MIN:
                at += 1
                continue
            shared |= {(machine, unix) for unix, machine in found[at:end]}
            names = tuple(sorted(nodes[machine] for machine in machines))
            events.append(EventFound(name=group, nodes=names, begin_unix=found[at][0]))
            at = end
    left = [
        replace(each, incidents=tuple(pair for pair in each.incidents if (each.machine, pair[0].begin_unix) not in shared))
        if shared
        else each
        for each in exposed
    ]
    return left, sorted(events, key=lambda e: (e.begin_unix, e.name))


def independent(incidents: Sequence[tuple[Incident, frozenset[str]]]) -> int:
    """Return how many incidents are of different users. Of those that touched no job the same part counts."""
    alone = sum(not users for _, users in incidents)
    touched = len(incidents) - alone
    user_of: dict[str, int] = {}  # the incident that a user stands for

    def assign(number: int, tried: set[str]) -> bool:
        for user in sorted(incidents[number][1]):
            if user not in tried:
                tried.add(user)
                if user not in user_of or assign(user_of[user], tried):
                    user_of[user] = number
                    return True
        return False

    different = sum(assign(number, set()) for number, (_, users) in enumerate(incidents) if users)
    return different + (round(alone * different / touched) if touched else alone)


def prior_of(pairs: Iterable[tuple[int, float]]) -> Prior:
    """Return the prior of a pool, by the mean and the spread of its counts. ``pairs``: count and node-days of each node.

    Where the counts spread no more than by chance, the shape is ``SHAPE_MAX``: all nodes are then about equal.
    """
    known = [(count, days) for count, days in pairs if days > 0]
    total, days = sum(c for c, _ in known), sum(d for _, d in known)
    rate = max(total, 0.5) / max(days, 1e-9)
    expected_squares = sum((rate * d) ** 2 for _, d in known)
    excess = sum((c - rate * d) ** 2 - rate * d for c, d in known)
    shape = expected_squares / excess if excess > 0 else SHAPE_MAX
    shape = min(SHAPE_MAX, max(SHAPE_MIN, shape))
    return Prior(shape, shape / rate)


def _of_pool(
    pool: Sequence[Exposed], counts: Mapping[str, int], others: Mapping[str, float], false_max: float
) -> tuple[list[Lemon], float]:
    """Return the listed nodes of a pool, and how many chance alone would list. others: by machine, the rate of the other nodes of
    a group that may be bad."""
    days = sum(each.node_days for each in pool)
    rate = sum(counts[each.machine] for each in pool) / days if days > 0 else 0.0
    if rate == 0:
        return [], 0.0
    prior = prior_of((counts[each.machine], each.node_days) for each in pool)
    found: list[Lemon] = []
    expected = 0.0
    for each in pool:
        mean = max(rate, others.get(each.machine, 0.0)) * each.node_days
        least, chance = _least(math.ceil(1000 * mean) / 1000, false_max / len(pool))
        expected += chance
        count = counts[each.machine]
        if count >= least:
            found.append(_lemon(each, count, prior, poisson_at_least(count, mean)))
    return found, expected


@lru_cache(maxsize=65536)
def _least(mean: float, chance_max: float) -> tuple[int, float]:
    """Return the smallest count that is rare enough where ``mean`` are expected, and how likely chance alone reaches it."""
    least = INCIDENTS_MIN
    while (chance := poisson_at_least(least, mean)) > chance_max:
        least += 1
    return least, chance


def _lemon(each: Exposed, count: int, prior: Prior, chance: float) -> Lemon:
    shape, days = prior.shape + count, prior.days + each.node_days
    return Lemon(
        node=each.node,
        machine=each.machine,
        count=count,
        all_incidents=len(each.incidents),
        users=len(frozenset().union(*(users for _, users in each.incidents))),
        node_days=each.node_days,
        per_1000=1000 * shape / days,
        interval=Interval(gamma_quantile(shape, 0.025), gamma_quantile(shape, 0.975)).times(1000 / days),
        chance=chance,
        what=what_repeats([incident for incident, _ in each.incidents]),
    )


def what_repeats(incidents: Sequence[Incident]) -> str:
    """Say which part repeats: a GPU card, a slot whose card was exchanged, a slot with the same card, or several parts."""
    slots: dict[str, set[str]] = {}
    for each in incidents:
        if each.device:
            slots.setdefault(each.device, set()).add(each.serial)
    counts = {slot: sum(i.device == slot for i in incidents) for slot in slots}
    most = max(counts, key=lambda slot: (counts[slot], slot), default="")
    serials = {i.serial for i in incidents if i.serial}
    same = next((s for s in sorted(serials) if sum(i.serial == s for i in incidents) > len(incidents) / 2), "")
    if same and len({i.device for i in incidents if i.serial == same}) > 1:
        return f"card {same}, in several slots"
    if counts.get(most, 0) <= len(incidents) / 2:
        return "the node: several parts"
    known = slots[most] - {""}
    if len(known) > 1:
        return f"slot {most}, with {len(known)} cards: the slot"
    return f"slot {most}, always card {next(iter(known))}: the card or the slot" if known else f"slot {most}, card not known"


def _cards(incidents: Iterable[Incident]) -> list[CardFound]:
    """Return the cards that had incidents in several slots: what travels with the card is the card's."""
    found: dict[str, list[Incident]] = {}
    for each in incidents:
        if each.serial:
            found.setdefault(each.serial, []).append(each)
    made = []
    for serial, of in found.items():
        where = sorted({f"{i.node} {i.device}" for i in of})
        if len(where) > 1:
            made.append(CardFound(serial=serial, count=len(of), where=tuple(where)))
    return sorted(made, key=lambda c: (-c.count, c.serial))


def _groups(exposed: Sequence[Exposed], counts: Mapping[str, int]) -> tuple[list[GroupFound], dict[str, float]]:
    """Return the listed groups; and for each machine of another group that may be bad, the rate of the other machines there.

    A machine that had several drivers in the window counts for each in its own time.
    """
    parts: dict[str, list[tuple[str, int, float]]] = {}
    for each in exposed:
        for group in each.groups:
            parts.setdefault(group, []).append((each.machine, counts[each.machine], each.node_days))
        for name, days in each.driver_days.items():
            own = [pair for pair in each.incidents if pair[0].driver == name]
            parts.setdefault(f"driver {name}", []).append((each.machine, independent(own), days))
    tested = {name: of for name, of in parts.items() if len(of) >= GROUP_NODES_MIN}
    kinds: dict[str, tuple[int, float]] = {}
    for name, of in parts.items():
        count, days = kinds.get(name.partition(" ")[0], (0, 0.0))
        kinds[name.partition(" ")[0]] = (count + sum(c for _, c, _ in of), days + sum(d for *_, d in of))
    found, others_rate = [], dict[str, float]()
    for name, of in tested.items():
        count, days = sum(count for _, count, _ in of), sum(days for *_, days in of)
        all_count, all_days = kinds[name.partition(" ")[0]]
        others, others_days = all_count - count, all_days - days
        _, worst, worst_days = max(of, key=lambda part: part[1])  # one lemon does not make a bad group
        rest, rest_days = count - worst, days - worst_days
        if rest < INCIDENTS_MIN or rest_days <= 0 or others_days <= 0 or sum(number > 0 for _, number, _ in of) < INCIDENTS_MIN:
            continue
        chance = binomial_at_least(rest, rest + others, rest_days / (rest_days + others_days))
        if chance * len(tested) <= GROUP_CHANCE:
            times = count / days / (max(others, 0.5) / others_days)
            nodes, bound = len({machine for machine, *_ in of}), chance * len(tested)
            found.append(GroupFound(name=name, nodes=nodes, count=count, node_days=days, times=times, chance=bound))
        elif chance <= GROUP_CHANCE:
            for machine, here, here_days in of:
                if days > here_days:
                    rate = (count - here) / (days - here_days)
                    others_rate[machine] = max(others_rate.get(machine, 0.0), rate)
    return sorted(found, key=lambda g: (g.chance, g.name)), others_rate
