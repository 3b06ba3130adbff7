"""Finds new events in what `fairlead collect` keeps, and delivers those that wait: one run of `fairlead events deliver`.

A run that is killed at any moment is continued by the next one. What was confirmed and saved is never sent again. A try is saved
before it is made, so that an event that kills the run is not tried for ever. Nothing here is on the path of a drain.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from fairlead.controller.event_channels import EventChannel
from fairlead.controller.event_store import DELIVERED, GIVEN_UP, LEFT_OUT, WAITING, EventStore, Queued, SourceSeen, event_id
from fairlead.controller.fleet_store import FleetStore
from fairlead.errors import FairleadError
from fairlead.fleet.event_options import EventsOptions
from fairlead.fleet.fleet_events import FleetEvent, document, of_records, of_slurm
from fairlead.model.nodelist import fold

WAIT_SECONDS, WAIT_MAX_SECONDS = 60.0, 6 * 3600.0  # before an event is tried again: doubled each time
TRIES_MAX = 40  # about eight days
RUN_SECONDS = 120.0  # a channel begins no delivery later
FAILED_MAX = 3  # so many failures after each other end a channel's work in this run
ONCE_MAX = 500
DAY_SECONDS = 86400.0
SLURM_WAIT_SECONDS = 900.0  # the agent's own record of a drain says more than Slurm, and comes about as soon


class EventRun(Struct, kw_only=True):
    """Counts what one run did."""

    found: int = 0
    delivered: int = 0
    failed: int = 0
    abandoned: int = 0
    waiting: int = 0
    left_out: int = 0


class EventProgram:
    """Runs once for one site. lemons: returns the lemon events of the fleet, and may take seconds. say: prints a line."""

    def __init__(
        self,
        store: EventStore,
        fleet: FleetStore,
        options: EventsOptions,
        channels: Mapping[str, EventChannel],
        *,
        say: Callable[[str], object],
        lemons: Callable[[], Iterable[FleetEvent]] = tuple,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._fleet, self._options, self._channels = store, fleet, options, channels
        self._say, self._lemons, self._clock, self._monotonic = say, lemons, clock, monotonic
        self.done = EventRun()

    def run(self) -> EventRun:
        """Find and deliver. Raises HostError and DataError of the stores; what a channel does not take is only said."""
        self.find()
        for name, channel in self._channels.items():
            self._deliver(name, channel, self._monotonic() + RUN_SECONDS)
        counts = self._store.counts()
        self.done.waiting, self.done.left_out = counts.get(WAITING, 0), counts.get(LEFT_OUT, 0)
        return self.done

    # -- find --------------------------------------------------------------------------------------

    def find(self) -> None:
        """Put what is new into the queue. The first run only remembers what there is."""
        first = self._store.kept("begun") is None
        events, sources = self._of_records(first)
        has_slurm = self._fleet.kept("events_until") is not None
        first_slurm = self._store.kept("slurm_begun") is None
        if has_slurm:
            events += [(event, not first_slurm) for event in self._of_slurm(first_slurm)]
        kept: dict[str, object] = {"begun": True, **({"slurm_begun": True} if has_slurm else {})}
        events += self._of_lemons(first, kept)
        kinds: set[str] = set(self._options.kinds)
        channels = {kind: tuple(self._channels) for kind in kinds}
        self.done.found, over = self._store.add(events, sources, self._clock(), channels, kept)
        if first:
            self._say(f"begins with what happens from now on: {len(events)} earlier events are known and not sent")
        for node, count in sorted(over.items()):
            self._say(f"{node}: {count} more events in a day are left out (`fairlead events retry --all` sends them)")
        pruned_at = self._store.kept("pruned_at")
        if pruned_at is None or not 0 <= self._clock() - pruned_at < DAY_SECONDS:
            self._store.keep({"pruned_at": self._clock()})
            self._store.prune(self._everything)

    def _of_records(self, first: bool) -> tuple[list[tuple[FleetEvent, bool]], dict[tuple[str, str], SourceSeen]]:
        """Return the events of the records that have changed, each with whether it is sent."""
        known = self._store.sources()
        events: list[tuple[FleetEvent, bool]] = []
        sources: dict[tuple[str, str], SourceSeen] = {}
        older: list[str] = []
        for machine, node, data in self._fleet.raw_records():
            digest = hashlib.blake2b(data, digest_size=16).digest()
            before = known.get((machine, node))
            if before is not None and before.digest == digest:
                continue
            records = self._fleet.records_of(machine, node)
            written = max(record.written_unix for record in records if record.node == node)
            if before is not None and written < before.written_unix:
                older.append(node)
            sources[machine, node] = SourceSeen(digest, written)
            new_machine = before is None and not any(name == machine for name, _ in known if machine)
            for event, ago in of_records(records):
                events.append((event, not first and (not new_machine or ago <= DAY_SECONDS)))
        if older:
            self._say(
                f"{fold(older)}: the history of the fleet is older than before (a restored backup?): no event is sent twice"
            )
        return events, sources

    def _of_slurm(self, first: bool) -> Iterator[FleetEvent]:
        """Yield Slurm's events. Those of a drain of fairlead wait for the agent's own record."""
        now = self._clock()
        for event in of_slurm(self._fleet.events()):
            if first or not event.token or event.cause == "maintain" or not 0 <= now - event.at_unix < SLURM_WAIT_SECONDS:
                yield event

    def _of_lemons(self, first: bool, kept: dict[str, object]) -> list[tuple[FleetEvent, bool]]:
        """Return the nodes that are new on the list of lemons. The list is made once a day."""
        at = self._store.kept("lemons_at")
        now = self._clock()
        if "lemon" not in self._options.kinds or (at is not None and 0 <= now - at < DAY_SECONDS):
            return []
        kept["lemons_at"] = now
        try:
            listed = list(self._lemons())
        except FairleadError as e:
            self._say_once("lemons", f"{e}; no lemon is looked for")
            return []
        self._say_once("lemons", "")
        before = set(self._store.kept("lemons") or ())
        kept["lemons"] = sorted({event.machine for event in listed})
        return [(event, not first) for event in listed if event.machine not in before]

    def _everything(self) -> Iterator[FleetEvent]:
        for machine, node, _ in self._fleet.raw_records():
            yield from (event for event, _ in of_records(self._fleet.records_of(machine, node)))
        yield from of_slurm(self._fleet.events())

    # -- deliver -----------------------------------------------------------------------------------

    def _deliver(self, name: str, channel: EventChannel, end: float) -> None:
        failed = 0
        for queued in self._store.due(name, self._clock(), WAIT_MAX_SECONDS, ONCE_MAX):
            if self._monotonic() >= end or failed >= FAILED_MAX:
                return
            why = self._try(queued, channel)
            failed = failed + 1 if why else 0
            self._say_once(f"channel {name}", f"{name}: {why}; the events wait and are tried again" if why else "")

    def _try(self, queued: Queued, channel: EventChannel) -> str:
        """Try one delivery. Return why it was not taken, or ""."""
        tries = queued.tries + 1
        again = self._clock() + min(WAIT_MAX_SECONDS, WAIT_SECONDS * 2.0 ** (tries - 1))
        self._store.tried(queued, WAITING, tries, again, "was being sent")
        why = channel.deliver(queued.id, body(queued.event, queued.id, self._options.cluster))
        if not why:
            self._store.tried(queued, DELIVERED, tries, 0.0, "")
            self.done.delivered += 1
        elif tries >= TRIES_MAX:
            self._store.tried(queued, GIVEN_UP, tries, 0.0, why)
            self._say(f"event {queued.id} of {queued.event.node}: given up after {tries} tries: {why}")
            self.done.abandoned += 1
        else:
            self._store.tried(queued, WAITING, tries, again, why)
            self.done.failed += 1
        return why

    def _say_once(self, about: str, text: str) -> None:
        """Say something that goes on, once. "" ends it, so that it is said again when it comes back."""
        key = f"said {about}"
        if (self._store.kept(key) or "") != text:
            self._store.keep({key: text})
            if text:
                self._say(text)


def body(event: FleetEvent, identity: str, cluster: str) -> bytes:
    """Return the event as it is sent. A time that no calendar has is shown as the beginning of 1970."""
    try:
        text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.at_unix))
    except (OverflowError, ValueError, OSError):
        text = "1970-01-01T00:00:00Z"
    return document(event, identity, text, cluster)


def sample(node: str, now: float) -> tuple[FleetEvent, str]:
    """Return the event of `fairlead events test`, with its id."""
    event = FleetEvent(
        kind="test", node=node, at_unix=now, by="person", cause="test", summary="a test of fairlead events: nothing has happened"
    )
    return event, event_id(event)
