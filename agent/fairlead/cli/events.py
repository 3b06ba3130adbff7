"""Send what happens to nodes to a program of the site and to an address: for tickets, mail and RMA.

fairlead events                    list the newest events, and what became of each
fairlead events deliver            find new events in what `fairlead collect` keeps, and send those that wait
fairlead events retry ID | --all   let events wait again that were given up or left out
fairlead events test [NODE]        send a test event now, by each channel

A timer on the controller runs deliver each minute. [events] of site.toml says where events go. Each event has an id: what was
confirmed is never sent again. docs/how-to/events.md lists the fields of an event.
Exit codes: 0, 75 if a channel has not taken an event (it is tried again).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TypedDict

from fairlead.cli.controller_paths import EVENTS, SITE, STORE
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, InputMissing, UsageError
from fairlead.model.plain_text import one_line

if TYPE_CHECKING:
    from fairlead.controller.event_store import EventStore, Queued
    from fairlead.controller.fleet_store import FleetStore
    from fairlead.fleet.event_options import EventsOptions


SLOW = "at work"  # patience.py says it


class EventDelivery(TypedDict):
    """How one channel got an event. said: what the program or the address said last."""

    channel: str
    state: str
    tries: int
    said: str


class ListedEvent(TypedDict):
    """An event as it is sent, when it was found, and its delivery, or null if no channel is to get it."""

    event: dict[str, Any]
    found_unix: float
    delivery: EventDelivery | None


class ListedEvents(TypedDict):
    """The newest events, and how many deliveries are in each state."""

    events: list[ListedEvent]
    deliveries: dict[str, int]


class WouldSend(TypedDict):
    """The deliveries that would be tried."""

    would_send: list[ListedEvent]


class RetriedEvents(TypedDict):
    """How many deliveries wait again."""

    waiting_again: int


class TestedChannels(TypedDict):
    """The id of the sample, and what each channel said: taken, or why not."""

    id: str
    channels: dict[str, str]


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", nargs="?", default="list", choices=("list", "deliver", "retry", "test"), help="what to do (list)")
    add("what", nargs="?", default="", metavar="ID", help="retry: the id of an event, or its beginning; test: a NodeName")
    add("--all", action="store_true", help="retry: all events that were given up or left out")
    add("--store", metavar="DIR", default=STORE, help="the folder of `fairlead collect` (%(default)s)")
    add("--state", metavar="DIR", default=EVENTS, help="the folder of the queue (%(default)s)")
    add("--site", metavar="FILE", default="", help=f"the site with [events] ({SITE})")
    add("--count", type=int, default=30, metavar="N", help="list: the N newest events (%(default)s)")
    add("-n", "--dry-run", action="store_true", help="print what would be sent, send nothing, change nothing")
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.what and args.action in ("list", "deliver"):
        raise UsageError(f"{args.action} takes no ID")
    if args.action == "list":
        return _list(args)
    if args.action == "retry":
        return _retry(args)
    return _test(args) if args.action == "test" else _deliver(args)


def say(text: str) -> None:
    print(f"fairlead events: {one_line(text, 600)}", file=sys.stderr, flush=True)


def _list(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.event_store import EventStore

    with EventStore(args.state, write=False) as store:
        found, counts = store.listed(max(1, args.count)), store.counts()
    if args.json:
        print_json(ListedEvents(events=[_data(each) for each in found], deliveries=counts))
        return ExitCode.OK
    rows = [
        (
            each.id[:10],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.event.at_unix)),
            each.event.kind,
            each.event.node,
            each.event.by or "-",
            each.event.cause or "-",
            each.channel or "-",
            each.state if each.state != "waiting" or not each.tries else f"waiting, {each.tries} tries",
            each.said or each.event.why or each.event.summary,
        )
        for each in found
    ]
    print(columns(rows, ("ID", "TIME", "KIND", "NODE", "BY", "CAUSE", "CHANNEL", "STATE", "WHAT")) if rows else "no event yet")
    print(", ".join(f"{count} {state}" for state, count in counts.items()) or "no channel has got an event")
    return ExitCode.OK


def _data(each: Queued) -> ListedEvent:
    import msgspec

    from fairlead.controller.event_program import body

    of_channel = EventDelivery(channel=each.channel, state=each.state, tries=each.tries, said=each.said)
    delivery = of_channel if each.channel else None
    return {"event": msgspec.json.decode(body(each.event, each.id, "")), "found_unix": each.found_unix, "delivery": delivery}


def _deliver(args: argparse.Namespace) -> ExitCode:
    import msgspec

    from fairlead.controller.event_channels import channels_of
    from fairlead.controller.event_program import EventProgram
    from fairlead.controller.event_store import EventStore
    from fairlead.controller.fleet_store import FleetStore
    from fairlead.controller.lemon_events import lemon_events

    options, where = _options(args)
    if args.dry_run:
        return _would(args, options)
    channels = channels_of(options, where)
    with FleetStore(args.store, write=False) as fleet, EventStore(args.state, write=True) as store:
        _of_one_cluster(store, fleet)
        program = EventProgram(store, fleet, options, channels, say=say, lemons=lambda: lemon_events(args.store, time.time()))
        done = program.run()
    if args.json:
        print_json(msgspec.to_builtins(done))
    else:
        print(
            f"{done.found} new events; {done.delivered} delivered, {done.failed} not taken, {done.abandoned} given up,"
            f" {done.waiting} wait" + ("" if channels else "; [events] declares neither command nor url")
        )
    return ExitCode.TRY_AGAIN if done.failed or done.abandoned else ExitCode.OK


def _of_one_cluster(store: EventStore, fleet: FleetStore) -> None:
    """Raise DataError if the queue is of another cluster than the history of the fleet, else note the cluster."""
    from fairlead.controller.store_file import refuse_other_cluster

    cluster, before = str(fleet.kept("cluster") or ""), str(fleet.kept("cluster_before") or "")
    kept = str(store.kept("cluster") or "")
    if kept != before:
        refuse_other_cluster(store.path, kept, cluster, "name a folder for each cluster: --state DIR")
    if cluster and kept != cluster:
        store.keep({"cluster": cluster})


def _would(args: argparse.Namespace, options: EventsOptions) -> ExitCode:
    """Say what waits, without a lock and without a change. New events are found in a copy in memory."""
    import shutil
    import tempfile

    from fairlead.controller.event_program import EventProgram
    from fairlead.controller.event_store import FILE, EventStore
    from fairlead.controller.fleet_store import FleetStore

    with tempfile.TemporaryDirectory() as copy, FleetStore(args.store, write=False) as fleet:
        for suffix in ("", "-wal"):
            path = os.path.join(args.state, FILE + suffix)
            if os.path.exists(path):
                shutil.copyfile(path, os.path.join(copy, FILE + suffix))
        with EventStore(copy, write=True) as store:
            program = EventProgram(store, fleet, options, {name: _Nothing() for name in options.channels}, say=say)
            program.find()
            found = [each for name in options.channels for each in store.due(name, time.time(), 6 * 3600.0, 500)]
    if args.json:
        print_json(WouldSend(would_send=[_data(each) for each in found]))
        return ExitCode.OK
    for each in found:
        print(f"{each.channel}: {each.event.kind} {each.event.node} {each.event.cause} {each.id[:10]}")
    print(f"{len(found)} deliveries would be tried; nothing was sent or written")
    return ExitCode.OK


class _Nothing:
    """Is a channel of --dry-run. It is never called."""

    name = ""

    def deliver(self, identity: str, body: bytes) -> str:
        raise NotImplementedError


def _retry(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.event_store import EventStore

    if bool(args.what) == args.all:
        raise UsageError("retry needs the ID of an event, or --all", hint="`fairlead events` lists them")
    with EventStore(args.state, write=not args.dry_run) as store:
        ids = store.ids_like(args.what) if args.what else [""]
        if len(ids) != 1:
            known = "no event has" if not ids else "several events have"
            raise InputMissing(f"{known} an id that begins with {one_line(args.what, 40)}", hint="`fairlead events` lists them")
        if args.dry_run:
            print("would let events wait again that were given up or left out; nothing was changed")
            return ExitCode.OK
        count = store.retry(ids[0])
    if args.json:
        print_json(RetriedEvents(waiting_again=count))
    else:
        print(f"{count} deliveries wait again")
    return ExitCode.OK


def _test(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.event_channels import channels_of
    from fairlead.controller.event_program import body, sample
    from fairlead.model.nodelist import is_name

    options, where = _options(args)
    node = args.what or "node1"
    if not is_name(node):
        raise UsageError(f"{one_line(node, 40)}: is not a NodeName")
    if not options.channels:
        raise UsageError("[events] declares neither command nor url", hint="docs/how-to/events.md has examples")
    event, identity = sample(node, time.time())
    text = body(event, identity, options.cluster)
    if args.dry_run:
        print(text.decode())
        return ExitCode.OK
    said = {name: channel.deliver(identity, text) for name, channel in channels_of(options, where).items()}
    if args.json:
        print_json(TestedChannels(id=identity, channels={name: why or "taken" for name, why in said.items()}))
    else:
        print("\n".join(f"{name}: {why or 'taken'}" for name, why in said.items()))
    return ExitCode.TRY_AGAIN if any(said.values()) else ExitCode.OK


def _options(args: argparse.Namespace) -> tuple[EventsOptions, str]:
    """Return [events] of the site's file, or the defaults where there is no such file. Raises ConfigError."""
    from fairlead import config
    from fairlead.fleet.event_options import EventsOptions

    file = args.site or SITE
    return (config.load_site(file).events if args.site or os.path.exists(SITE) else EventsOptions()), file


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.controller.event_program import EventRun

    return {
        "list": ListedEvents,
        "deliver": EventRun,
        "deliver --dry-run": WouldSend,
        "retry": RetriedEvents,
        "test": TestedChannels,
    }
