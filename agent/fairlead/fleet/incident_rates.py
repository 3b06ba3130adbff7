"""Computes rates of incidents with Garwood's interval, the MTTF of a job of N nodes, the lost job time, and the trend by month.

A rate has a definition, a count and an exposure, and is not printed for fewer than ``COUNT_MIN`` incidents: then the count and
the exposure stand alone. The MTTF of a job of N nodes is 1 / (N x rate) for one class of nodes, with the incidents that began
while a job was on the node, over allocated node-days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.fleet.exact_intervals import Interval, garwood
from fairlead.fleet.incidents import Incident
from fairlead.fleet.job_exposure import Lost

COUNT_MIN = 5
DAY_SECONDS = 86400.0


class Rate(Struct, frozen=True, kw_only=True):
    """Holds a count and its exposure. The rate and its interval are per 1,000 node-days, or None for fewer than ``COUNT_MIN``
    incidents or no exposure."""

    name: str
    count: int
    node_days: float
    ended: Mapping[str, int] = {}

    @property
    def per_1000(self) -> float | None:
        return 1000 * self.count / self.node_days if self.count >= COUNT_MIN and self.node_days > 0 else None

    @property
    def interval(self) -> Interval | None:
        return garwood(self.count).times(1000 / self.node_days) if self.per_1000 is not None else None


class Mttf(Struct, frozen=True, kw_only=True):
    """Holds the mean time to failure of a job of so many nodes, in hours, with its interval."""

    nodes: int
    hours: float
    interval: Interval


class LostTime(Struct, frozen=True, kw_only=True):
    """Holds how much job time was lost at least: min(run time, 30 min) for each lost run. unexplained: runs that ended as
    NODE_FAIL without an incident on any of their nodes."""

    runs: int
    node_hours: float
    gpu_hours: float
    unexplained: int


class Month(Struct, frozen=True, kw_only=True):
    """Holds one month of the trend. changes: what changed on how many nodes, in one line each."""

    name: str
    begin_unix: float
    rate: Rate
    changes: tuple[str, ...] = ()


def rates(incidents: Iterable[Incident], name_of: Callable[[Incident], str], node_days: float) -> list[Rate]:
    """Return a rate for each name, the most frequent first."""
    counts: dict[str, dict[str, int]] = {}
    for each in incidents:
        ended = counts.setdefault(name_of(each), {})
        ended[each.ended.value] = ended.get(each.ended.value, 0) + 1
    made = [Rate(name=name, count=sum(ended.values()), node_days=node_days, ended=ended) for name, ended in counts.items()]
    return sorted(made, key=lambda r: (-r.count, r.name))


def mttf(rate: Rate, sizes: Iterable[int]) -> list[Mttf]:
    """Return the MTTF of jobs of these numbers of nodes, or nothing if there are too few incidents."""
    if rate.count < COUNT_MIN or rate.node_days <= 0:
        return []
    ends = garwood(rate.count)
    hours = 24 * rate.node_days
    return [
        Mttf(nodes=n, hours=hours / rate.count / n, interval=Interval(hours / ends.high / n, hours / ends.low / n)) for n in sizes
    ]


def lost_time(lost: Iterable[Lost], begin_unix: float, end_unix: float) -> LostTime:
    """Return the lost job time of the runs that ended between two times."""
    chosen = [each for each in lost if begin_unix <= each.end_unix < end_unix]
    return LostTime(
        runs=len(chosen),
        node_hours=sum(each.lost_seconds * each.nodes for each in chosen) / 3600,
        gpu_hours=sum(each.lost_seconds * each.gpus for each in chosen) / 3600,
        unexplained=sum(each.incident is None for each in chosen),
    )


def months(
    incidents: Sequence[Incident],
    bounds: Sequence[tuple[str, float, float]],
    node_days: Callable[[float, float], float],
    changes: Callable[[float, float], tuple[str, ...]],
) -> list[Month]:
    """Return the trend. ``bounds``: name, begin and end of each month. ``node_days``, ``changes``: of the time between two
    times."""
    found = []
    for name, begin, end in bounds:
        count = sum(begin <= each.begin_unix < end for each in incidents)
        rate = Rate(name=name, count=count, node_days=node_days(begin, end))
        found.append(Month(name=name, begin_unix=begin, rate=rate, changes=changes(begin, end)))
    return found
