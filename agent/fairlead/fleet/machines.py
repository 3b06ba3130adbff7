"""Puts the service records of all nodes together: one machine for each computer, with the names that it had, on one clock.

A node that was renamed is one machine with two names. A NodeName that belongs to another computer now is two machines. A clock
that differs from slurmctld's is found by the drains that both have seen, which carry the same token. Each of these is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet.node_events import NodeOut, parsed
from fairlead.fleet.service_merge import merged
from fairlead.fleet.service_record import DRAINED, ServiceRecord

CLOCK_SECONDS = 120.0  # a smaller difference is that of the time between a drain and its entry in the audit trail
FUTURE_SECONDS = 600.0


class FleetMachine(Struct, frozen=True, kw_only=True):
    """Holds one computer. node: its newest NodeName. names: from when on it had which NodeName, the oldest first. record: all its
    service records as one. entry_nodes: the NodeName under which an entry was first sent, where that is not ``node``."""

    key: str
    node: str
    record: ServiceRecord
    names: tuple[tuple[float, str], ...] = ()
    entry_nodes: Mapping[str, str] = {}


class Fleet(Struct, frozen=True, kw_only=True):
    """Holds all machines. troubles: in one line each, what does not fit together."""

    machines: tuple[FleetMachine, ...]
    troubles: tuple[str, ...] = ()


def fleet_of(records: Iterable[ServiceRecord], events: Sequence[NodeOut], now: float) -> Fleet:
    """Return the machines of these records. ``events``: what Slurm says, or () if nothing is known."""
    slurm = {event.token: event.begin_unix for event in events if event.token}
    troubles: list[str] = []
    by_key: dict[str, list[ServiceRecord]] = {}
    named: dict[str, set[str]] = {}
    ordered = sorted(records, key=lambda r: (r.written_unix, r.node))
    for record in ordered:
        if record.machine:
            named.setdefault(record.node, set()).add(record.machine)
    for record in ordered:
        known = named.get(record.node, set())
        # a record of an older agent names no machine: it is of the only machine with this name
        key = record.machine or (next(iter(known)) if len(known) == 1 else record.node)
        by_key.setdefault(key, []).append(_on_slurms_clock(record, slurm, now, troubles))
    machines = [_machine(key, of, troubles) for key, of in by_key.items()]
    for node, keys in named.items():
        if len(keys) > 1:
            troubles.append(
                f"{node}: was rebuilt on another machine: {len(keys)} machines had this name, and each is counted alone"
            )
    return Fleet(
        machines=tuple(sorted(machines, key=lambda m: (m.node, m.key))),
        troubles=tuple(dict.fromkeys(troubles)),
    )


def _machine(key: str, records: Sequence[ServiceRecord], troubles: list[str]) -> FleetMachine:
    names: list[tuple[float, str]] = []
    entry_nodes: dict[str, str] = {}
    for record in records:
        if not names or names[-1][1] != record.node:
            begin = record.written_unix if names else min((b for b, _ in record.watched), default=record.written_unix)
            names.append((begin, record.node))
        for entry in record.entries:
            entry_nodes.setdefault(entry.id, record.node)
    node = names[-1][1]
    if len(names) > 1:
        troubles.append(f"{node}: was renamed: {' then '.join(name for _, name in names)}; its history is counted once")
    return FleetMachine(
        key=key,
        node=node,
        record=records[0] if len(records) == 1 else merged(*records),
        names=tuple(names),
        entry_nodes={each: name for each, name in entry_nodes.items() if name != node},
    )


def _on_slurms_clock(record: ServiceRecord, slurm: Mapping[str, float], now: float, troubles: list[str]) -> ServiceRecord:
    """Return the record with the times of slurmctld's clock, without entries from the future."""
    known = [(entry.unix, reason.token) for entry in record.entries if entry.what == DRAINED
             and (reason := parsed(entry.args.get("reason", ""))) is not None]  # fmt: skip
    offsets = [unix - slurm[token] for unix, token in known if token in slurm]
    offset = median(offsets) if offsets else 0.0
    if abs(offset) > CLOCK_SECONDS:
        words = "ahead of" if offset > 0 else "behind"
        troubles.append(
            f"{record.node}: its clock is {abs(offset):.0f} s {words} slurmctld's by {len(offsets)} drains: it is corrected"
        )
        record = _shifted(record, offset)
    late = sum(entry.unix > now + FUTURE_SECONDS for entry in record.entries)
    if late:
        troubles.append(f"{record.node}: {late} entries are from the future and left out: its clock was wrong")
        record = replace(record, entries=tuple(e for e in record.entries if e.unix <= now + FUTURE_SECONDS))
    return replace(record, watched=tuple((begin, min(end, now)) for begin, end in record.watched if begin < now))


def _shifted(record: ServiceRecord, offset: float) -> ServiceRecord:
    def at(unix: float) -> float:
        return max(0.0, unix - offset)

    return replace(
        record,
        written_unix=at(record.written_unix),
        watched=tuple((at(begin), at(end)) for begin, end in record.watched),
        versions=tuple(replace(v, since_unix=at(v.since_unix)) for v in record.versions),
        cards=tuple(replace(c, since_unix=at(c.since_unix)) for c in record.cards),
        findings=tuple(replace(f, since_unix=at(f.since_unix)) for f in record.findings),
        strikes={name: tuple(map(at, times)) for name, times in record.strikes.items()},
        entries=tuple(replace(e, unix=at(e.unix)) for e in record.entries),
    )
