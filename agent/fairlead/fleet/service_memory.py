"""Defines what an agent remembers of its node's time in service, across boots: when it watched, its cards and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fairlead.fleet.mechanical_values import with_values
from fairlead.fleet.service_record import DAY_SECONDS, KEEP_DAYS, CardDetails, CardSeen, Name, Point, Span, VersionSeen, XidSeen

WRITE_SECONDS = 600.0  # the memory is saved, and the record written, at least so often
GAP_SECONDS = 1800.0  # an agent that was away for longer has not watched in that time
SPANS_MAX, CARDS_MAX, VERSIONS_MAX = 500, 256, 200


class ServiceMemory(Struct, frozen=True, kw_only=True):
    """Holds the parts of a service record that no other file of the agent has (see ``ServiceRecord``)."""

    watched: Annotated[tuple[Span, ...], Meta(max_length=10_000)] = ()
    cards: tuple[CardSeen, ...] = ()
    versions: tuple[VersionSeen, ...] = ()
    values: dict[Name, dict[Name, tuple[Point, ...]]] = field(default_factory=dict)
    details: tuple[CardDetails, ...] = ()
    xids: tuple[XidSeen, ...] = ()


def remembered(
    memory: ServiceMemory, unix: float, version: VersionSeen, cards: Mapping[str, str], values: Iterator[tuple[str, str, float]]
) -> ServiceMemory:
    """Return the memory after a sweep. ``cards``: the card at each PCI address. ``version``: what runs now; what is not known is
    taken from before."""
    return replace(
        memory,
        watched=_watched(memory.watched, unix),
        cards=_cards(memory.cards, cards, unix),
        versions=_versions(memory.versions, version, unix),
        values=with_values(memory.values, values, unix),
    )


def _watched(spans: tuple[Span, ...], unix: float) -> tuple[Span, ...]:
    """A span that begins later than now is of before the clock went back, or of a clock that was ahead."""
    oldest = unix - KEEP_DAYS * DAY_SECONDS
    known = [(begin, min(end, unix)) for begin, end in spans if begin <= unix and end > oldest]
    later = [span for span in spans if span[0] > unix]
    if known and unix - known[-1][1] <= GAP_SECONDS:
        known[-1] = (known[-1][0], unix)
    else:
        known.append((unix, unix))
    return tuple((max(begin, oldest), end) for begin, end in [*known, *later][-SPANS_MAX:])


def _cards(known: tuple[CardSeen, ...], cards: Mapping[str, str], unix: float) -> tuple[CardSeen, ...]:
    here = {card.pci: card.serial for card in known}
    new = tuple(CardSeen(pci=pci, serial=s, since_unix=unix) for pci, s in sorted(cards.items()) if here.get(pci) != s)
    return (*known, *new)[-CARDS_MAX:] if new else known


def _versions(known: tuple[VersionSeen, ...], version: VersionSeen, unix: float) -> tuple[VersionSeen, ...]:
    last = known[-1] if known else VersionSeen(since_unix=unix)
    now = replace(version, since_unix=last.since_unix, driver=version.driver or last.driver)
    return known if known and now == last else (*known, replace(now, since_unix=unix))[-VERSIONS_MAX:]
