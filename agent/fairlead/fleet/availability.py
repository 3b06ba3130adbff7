"""Computes how much of the owned node-time was in service, in three columns.

Each second of a node counts once: for a fault (fairlead or Slurm took the node out), for planned maintenance, or for a person's
drain, in this order if they overlap. The three columns are: of all owned time; without planned maintenance; and also without
people's drains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_merge import joined
from fairlead.fleet.service_record import Span

ORDER = (Whose.FAULT, Whose.MAINTENANCE, Whose.PERSON)


class Availability(Struct, frozen=True, kw_only=True):
    """Holds seconds of node-time. unwatched_seconds: owned time of which nobody knows, which is in no other field."""

    nodes: int
    owned_seconds: float
    fault_seconds: float
    maintenance_seconds: float
    person_seconds: float
    unwatched_seconds: float = 0.0

    @property
    def of_owned(self) -> float | None:
        out = self.fault_seconds + self.maintenance_seconds + self.person_seconds
        return 1 - out / self.owned_seconds if self.owned_seconds > 0 else None

    @property
    def without_maintenance(self) -> float | None:
        left = self.owned_seconds - self.maintenance_seconds
        return 1 - (self.fault_seconds + self.person_seconds) / left if left > 0 else None

    @property
    def without_people(self) -> float | None:
        left = self.owned_seconds - self.maintenance_seconds - self.person_seconds
        return 1 - self.fault_seconds / left if left > 0 else None


def availability(
    owned: Mapping[str, Sequence[Span]], outs: Iterable[NodeOut], begin_unix: float, end_unix: float
) -> Availability:
    """Return the availability between two times. ``owned``: by node, the times of which something is known."""
    by_node: dict[str, dict[Whose, list[Span]]] = {}
    for out in outs:
        span = (out.begin_unix, end_unix if out.end_unix is None else out.end_unix)
        by_node.setdefault(out.node, {}).setdefault(out.whose, []).append(span)
    sums = dict.fromkeys(ORDER, 0.0)
    total = 0.0
    for node, spans in owned.items():
        known = _clipped(spans, begin_unix, end_unix)
        total += _length(known)
        left = known
        for whose in ORDER:
            gone = joined(_clipped(by_node.get(node, {}).get(whose, ()), begin_unix, end_unix))
            rest = without(left, gone)
            sums[whose] += _length(left) - _length(rest)
            left = rest
    return Availability(
        nodes=len(owned),
        owned_seconds=total,
        fault_seconds=sums[Whose.FAULT],
        maintenance_seconds=sums[Whose.MAINTENANCE],
        person_seconds=sums[Whose.PERSON],
        unwatched_seconds=len(owned) * (end_unix - begin_unix) - total,
    )


def without(spans: Sequence[Span], gone: Sequence[Span]) -> tuple[Span, ...]:
    """Return the times in ``spans`` that are not in ``gone``. Both are in order and without overlaps."""
    found: list[Span] = []
    for begin, end in spans:
        at = begin
        for first, last in gone:
            if last <= at or first >= end:
                continue
            if first > at:
                found.append((at, first))
            at = max(at, last)
        if at < end:
            found.append((at, end))
    return tuple(found)


def _clipped(spans: Iterable[Span], begin: float, end: float) -> tuple[Span, ...]:
    return joined((max(first, begin), min(last, end)) for first, last in spans if last > begin and first < end)


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
