"""Merges service records of the same machine. A record that is merged twice, or in another order, gives the same result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from fairlead.fleet.service_record import CardSeen, Point, ServiceEntry, ServiceRecord, Span, VersionSeen, XidSeen

XIDS_MAX = 5000


def merged(*records: ServiceRecord) -> ServiceRecord:
    """Return one record with what all say. The one that was written last says what is now: node, class, findings,
    acknowledgements."""
    ordered = sorted(records, key=lambda r: (r.written_unix, r.node))
    newest = ordered[-1]
    return replace(
        newest,
        node_class=next((r.node_class for r in reversed(ordered) if r.node_class), ""),
        watched=joined(span for r in ordered for span in r.watched),
        versions=_versions(version for r in ordered for version in r.versions),
        cards=_cards(card for r in ordered for card in r.cards),
        strikes={
            name: tuple(sorted({unix for r in ordered for unix in r.strikes.get(name, ())}))
            for name in sorted({name for r in ordered for name in r.strikes})
        },
        entries=_entries(entry for r in ordered for entry in r.entries),
        values=_values(ordered),
        details=next((r.details for r in reversed(ordered) if r.details), ()),
        xids=_xids(ordered),
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
        xids=tuple(x for x in record.xids if x.last_unix >= unix),
        values={
            device: left
            for device, of in record.values.items()
            if (left := {name: kept for name, points in of.items() if (kept := tuple(p for p in points if p[0] >= day))})
        },
    )


def _entries(entries: Iterable[ServiceEntry]) -> tuple[ServiceEntry, ...]:
    """An entry is written twice under one id: before a command begins, and with its outcome."""
    found: dict[str, ServiceEntry] = {}
    for entry in entries:
        if entry.outcome != "asked" or entry.id not in found:
            found[entry.id] = entry
    return tuple(sorted(found.values(), key=lambda e: (e.unix, e.id)))


def _xids(records: Sequence[ServiceRecord]) -> tuple[XidSeen, ...]:
    """A count of a boot only grows. Each record has the whole count."""
    found: dict[tuple[str, str, str, str], XidSeen] = {}
    for each in (xid for record in records for xid in record.xids):
        key = (each.boot, each.pci, each.kind, each.code)
        known = found.get(key)
        if known is None or (each.count, each.last_unix) > (known.count, known.last_unix):
            found[key] = each
    return tuple(sorted(found.values(), key=lambda x: (x.last_unix, x.boot, x.pci, x.kind, x.code))[-XIDS_MAX:])


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


def _values(records: Sequence[ServiceRecord]) -> dict[str, dict[str, tuple[Point, ...]]]:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        for device, of in record.values.items():
            known = found.setdefault(device, {})
            for name, points in of.items():
                known.setdefault(name, {}).update(points)
    return {d: {name: _points(points) for name, points in sorted(of.items())} for d, of in sorted(found.items())}


def _points(points: Mapping[int, float]) -> tuple[Point, ...]:
    """Return the values in order, the first and the last of a run of equal values."""
    both = sorted(points.items())
    if len(both) < 3:
        return tuple(both)
    kept = [b for a, b, c in zip(both, both[1:], both[2:], strict=False) if not a[1] == b[1] == c[1]]
    return (both[0], *kept, both[-1])
