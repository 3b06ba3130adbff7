"""Merges service records of the same machine. A record that is merged twice, or in another order, gives the same result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from fairlead.fleet.service_record import CardSeen, Point, ServiceEntry, ServiceRecord, Span, VersionSeen


def merged(first: ServiceRecord, second: ServiceRecord) -> ServiceRecord:
    """Return one record with what both say. The one that was written later says what is now: node, class, findings,
    acknowledgements."""
    older, newer = sorted((first, second), key=lambda r: (r.written_unix, r.node))
    return replace(
        newer,
        node_class=newer.node_class or older.node_class,
        watched=joined((*older.watched, *newer.watched)),
        versions=_versions((*older.versions, *newer.versions)),
        cards=_cards((*older.cards, *newer.cards)),
        strikes={
            name: tuple(sorted({*older.strikes.get(name, ()), *newer.strikes.get(name, ())}))
            for name in sorted(older.strikes.keys() | newer.strikes.keys())
        },
        entries=_entries(older.entries, newer.entries),
        values={
            device: {
                name: _points(older.values.get(device, {}).get(name, ()), newer.values.get(device, {}).get(name, ()))
                for name in sorted(older.values.get(device, {}).keys() | newer.values.get(device, {}).keys())
            }
            for device in sorted(older.values.keys() | newer.values.keys())
        },
    )


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same times without overlaps, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def since(record: ServiceRecord, unix: float) -> ServiceRecord:
    """Return the record without what ended before a time."""
    day = int(unix // 86400)
    last = [v for v in record.versions if v.since_unix < unix][-1:]
    return replace(
        record,
        watched=tuple((max(begin, unix), end) for begin, end in record.watched if end > unix),
        versions=(*last, *(v for v in record.versions if v.since_unix >= unix)),
        entries=tuple(e for e in record.entries if e.unix >= unix),
        values={
            device: left
            for device, of in record.values.items()
            if (left := {name: kept for name, points in of.items() if (kept := tuple(p for p in points if p[0] >= day))})
        },
    )


def _entries(older: Sequence[ServiceEntry], newer: Sequence[ServiceEntry]) -> tuple[ServiceEntry, ...]:
    """An entry is written twice under one id: before a command begins, and with its outcome."""
    found = {entry.id: entry for entry in older}
    for entry in newer:
        if entry.outcome != "asked" or entry.id not in found:
            found[entry.id] = entry
    return tuple(sorted(found.values(), key=lambda e: (e.unix, e.id)))


def _versions(versions: Iterable[VersionSeen]) -> tuple[VersionSeen, ...]:
    found: list[VersionSeen] = []
    for each in sorted(versions, key=lambda v: (v.since_unix, v.driver, v.agent_version, v.checks)):
        if not found or replace(each, since_unix=found[-1].since_unix) != found[-1]:
            found.append(each)
    return tuple(found)


def _cards(cards: Iterable[CardSeen]) -> tuple[CardSeen, ...]:
    """Return for each address the cards in their order. A card that is seen again at the same address is there once."""
    found: dict[str, list[CardSeen]] = {}
    for each in sorted(cards, key=lambda c: (c.pci, c.since_unix, c.serial)):
        of = found.setdefault(each.pci, [])
        if not of or of[-1].serial != each.serial:
            of.append(each)
    return tuple(card for of in found.values() for card in of)


def _points(older: Sequence[Point], newer: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted((dict(older) | dict(newer)).items()))
