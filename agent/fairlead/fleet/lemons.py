"""Lists the nodes that fail more often than their class, and groups of nodes (a leaf switch, a driver) that do.

Incidents of the last ``WINDOW_DAYS`` days count, over allocated node-days. Only incidents of different users and jobs count: of
the incidents that touched jobs, at most one for each user; an incident that touched no job counts alone.

A node is listed if its count would be so high by chance on few nodes of all: the expected number of nodes that chance alone puts
on the list is at most ``false_max``, and is printed. The list has at most one node for each ``NODES_EACH`` nodes, those with the
highest rate of the Poisson-Gamma posterior first: the prior is fitted to the class by its mean and its spread.

A group is listed if its count is too high for chance beside the other groups of its kind (binomial test, times the number of
groups). The nodes of a listed group are compared with the rate of their group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from fairlead.fleet.exact_intervals import Interval, binomial_at_least, gamma_quantile, poisson_at_least
from fairlead.fleet.incidents import Incident

WINDOW_DAYS = 90
NODES_EACH = 50
INCIDENTS_MIN = 3
FALSE_MAX = 0.5
FALSE_PART = 0.1  # of the places on the list
GROUP_CHANCE = 0.05
GROUP_NODES_MIN = 4


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


class CardFound(Struct, frozen=True, kw_only=True):
    """Holds a GPU card that had incidents in several slots or nodes."""

    serial: str
    count: int
    where: tuple[str, ...]


class LemonList(Struct, frozen=True, kw_only=True):
    """Holds the list. expected_false: how many nodes chance alone would put on it. budget: the most nodes that it may have.
    over_budget: further nodes that are as bad and have no place on it."""

    lemons: tuple[Lemon, ...]
    groups: tuple[GroupFound, ...]
    cards: tuple[CardFound, ...]
    nodes: int
    count: int
    node_days: float
    expected_false: float
    budget: int
    over_budget: int = 0


class Prior(Struct, frozen=True):
    """Holds the gamma prior of the rate per node-day: shape and rate parameter."""

    shape: float
    days: float


SHAPE_MIN, SHAPE_MAX = 0.2, 50.0


def lemons(exposed: Sequence[Exposed]) -> LemonList:
    """Return the list for the machines of one fleet."""
    counts = {each.machine: independent(each.incidents) for each in exposed}
    groups = _groups(exposed, counts)
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
        made, false = _of_pool(pool, counts, false_max * len(pool) / len(exposed))
        found += made
        expected += false
    found.sort(key=lambda lemon: (-lemon.per_1000, lemon.node))
    return LemonList(
        lemons=tuple(found[:budget]),
        groups=tuple(groups),
        cards=tuple(_cards(i for each in exposed for i, _ in each.incidents)),
        nodes=len(exposed),
        count=sum(counts.values()),
        node_days=sum(each.node_days for each in exposed),
        expected_false=min(expected, float(budget)),
        budget=budget,
        over_budget=max(0, len(found) - budget),
    )


def independent(incidents: Sequence[tuple[Incident, frozenset[str]]]) -> int:
    """Return how many incidents are of different users, and how many touched no job."""
    alone = sum(not users for _, users in incidents)
    user_of: dict[str, int] = {}  # the incident that a user stands for

    def assign(number: int, tried: set[str]) -> bool:
        for user in sorted(incidents[number][1]):
            if user not in tried:
                tried.add(user)
                if user not in user_of or assign(user_of[user], tried):
                    user_of[user] = number
                    return True
        return False

    return alone + sum(assign(number, set()) for number, (_, users) in enumerate(incidents) if users)


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


def _of_pool(pool: Sequence[Exposed], counts: Mapping[str, int], false_max: float) -> tuple[list[Lemon], float]:
    days = sum(each.node_days for each in pool)
    rate = sum(counts[each.machine] for each in pool) / days if days > 0 else 0.0
    if rate == 0:
        return [], 0.0
    prior = prior_of((counts[each.machine], each.node_days) for each in pool)
    found: list[Lemon] = []
    expected = 0.0
    for each in pool:
        least, chance = _least(math.ceil(1000 * rate * each.node_days) / 1000, false_max / len(pool))
        expected += chance
        count = counts[each.machine]
        if count >= least:
            found.append(_lemon(each, count, prior, poisson_at_least(count, rate * each.node_days)))
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


def _groups(exposed: Sequence[Exposed], counts: Mapping[str, int]) -> list[GroupFound]:
    """Return the listed groups. A machine that had several drivers in the window counts for each in its own time."""
    parts: dict[str, list[tuple[str, int, float]]] = {}
    for each in exposed:
        for group in each.groups:
            parts.setdefault(group, []).append((each.machine, counts[each.machine], each.node_days))
        for name, days in each.driver_days.items():
            own = [pair for pair in each.incidents if pair[0].driver == name]
            parts.setdefault(f"driver {name}", []).append((each.machine, independent(own), days))
    tested = {name: of for name, of in parts.items() if len(of) >= GROUP_NODES_MIN}
    found = []
    for name, of in tested.items():
        kind = name.partition(" ")[0]
        rest = [part for other, others in parts.items() if other != name and other.startswith(f"{kind} ") for part in others]
        count, days = sum(count for _, count, _ in of), sum(days for *_, days in of)
        others, others_days = sum(count for _, count, _ in rest), sum(days for *_, days in rest)
        if count < INCIDENTS_MIN or days <= 0 or others_days <= 0 or sum(number > 0 for _, number, _ in of) < INCIDENTS_MIN:
            continue
        chance = min(1.0, binomial_at_least(count, count + others, days / (days + others_days)) * len(tested))
        if chance <= GROUP_CHANCE:
            times = count / days / (max(others, 0.5) / others_days)
            nodes = len({machine for machine, *_ in of})
            found.append(GroupFound(name=name, nodes=nodes, count=count, node_days=days, times=times, chance=chance))
    return sorted(found, key=lambda g: (g.chance, g.name))
