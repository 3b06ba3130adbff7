"""Collects the history of the fleet: which nodes there are, what their agents say of their service, and Slurm's node events.

A node whose state or reason in Slurm has changed since the last round is asked in this round. Every node is asked again after
``EACH_SECONDS``: its record is complete for 30 days, so nothing is lost while nobody could ask it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from fairlead.controller import round_clock
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.service_files import records_of
from fairlead.errors import SlurmError
from fairlead.fleet.node_events import COLUMNS, out_of_service
from fairlead.fleet.service_record import ServiceRecord
from fairlead.model.isolated import isolated
from fairlead.model.nodelist import fold
from fairlead.slurm.client import POWER, switched_off
from fairlead.slurm.scontrol import Scontrol

EACH_SECONDS = 6 * 3600.0
AGAIN_SECONDS = 600.0  # a node that did not answer is asked again after this time
DAY_SECONDS = 86400
EVENTS_BACK_SECONDS = 3600  # slurmdbd may learn of an event so much later


class ServiceSource(Protocol):
    """Fetches what nodes say of their time in service."""

    def fetch(self, nodes: Sequence[str]) -> Mapping[str, tuple[Mapping[str, bytes], str]]:
        """Return for each node its files by their names, and in one line why there are none, or ""."""


class FleetRound(Struct, kw_only=True):
    """Counts what one round did. asked: the nodes that were asked. silent: those that gave no record."""

    nodes: int = 0
    asked: int = 0
    changed: int = 0
    events: int = 0
    silent: tuple[str, ...] = ()


class FleetCollection:
    """Collects for one cluster. nodes: the nodes that have an agent, or None for all nodes. days: how long history is kept. say:
    prints a line."""

    def __init__(
        self,
        store: FleetStore,
        client: Scontrol,
        source: ServiceSource,
        *,
        say: Callable[[str], object],
        nodes: frozenset[str] | None = None,
        days: int = 400,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._forgets = True
        self._store, self._client, self._source, self._say, self._nodes, self._days, self._clock = (
            store,
            client,
            source,
            say,
            nodes,
            days,
            clock,
        )

    def round(self) -> FleetRound:
        """Do one round. Raises HostError and DataError of the store; what Slurm or a node does not give is only said."""
        now = self._clock()
        done = FleetRound()
        self._check_clock(now)
        if self._forgets:
            self._store.forget_erased(now)
        try:
            slurm = self._client.nodes()
        except SlurmError as e:
            self._say(f"{e}; no node is asked for its history")
            return done
        listed = {node.name: (",".join(sorted(node.states)), node.reason) for node in slurm}
        off = {node.name for node in slurm if switched_off(node.states)}
        nodes = sorted(name for name in listed if self._nodes is None or name in self._nodes)
        done.nodes = len(nodes)
        self._ask([name for name in nodes if name not in off], listed, now, done)
        self._store.keep({"nodes": nodes})
        self._events(now, done)
        self._topology()
        return done

    def _check_clock(self, now: float) -> None:
        clock = round_clock.decoded(self._store.kept("clock") or "")
        if step := round_clock.step_seconds(clock, now):
            self._say(round_clock.step_text(step, self._days))
        clock = round_clock.after_round(clock, now, self._days)
        self._store.keep({"clock": round_clock.encoded(clock)})
        self._forgets = now >= clock.forgets_unix

    def _forgotten(self, now: float) -> float:
        """Return the time before which history is forgotten."""
        return now - self._days * DAY_SECONDS if self._forgets else 0.0

    def _ask(self, nodes: Sequence[str], listed: Mapping[str, tuple[str, str]], now: float, done: FleetRound) -> None:
        """Ask the nodes that are due."""
        states: dict[str, list[str]] = self._store.kept("states") or {}
        asked: dict[str, float] = self._store.kept("asked") or {}
        # a time that is further ahead than any that is set here is of a clock that was ahead of the present one
        late = {n for n in nodes if not now < asked.get(n, 0.0) <= now + EACH_SECONDS}
        due = [n for n in nodes if states.get(n) != list(_stable(listed[n])) or n in late]
        found, silent = [], []
        without: dict[str, list[str]] = {}
        if due:
            answers = self._source.fetch(due)
            for node in due:
                files, trouble = answers.get(node, ({}, "no answer"))
                records, mistakes = _read(node, files, now)
                if trouble:
                    without.setdefault(trouble, []).append(node)
                for mistake in mistakes:
                    self._say(mistake)
                found += records
                asked[node] = now + (EACH_SECONDS if records else AGAIN_SECONDS)
                silent += [] if records else [node]
                states[node] = list(_stable(listed[node]))
            for trouble, names in without.items():  # a rack that is off is one line
                self._say(f"{fold(names)}: {trouble}")
            done.changed = self._store.add(found, self._forgotten(now))
        done.asked, done.silent = len(due), tuple(silent)
        self._store.keep({"states": states, "asked": asked})

    def _events(self, now: float, done: FleetRound) -> None:
        since: float = min(self._store.kept("events_until") or now - self._days * DAY_SECONDS, now)
        begin = f"start=uts{int(since - EVENTS_BACK_SECONDS)}"
        words = ["sacctmgr", "-n", "-P", "show", "event", begin, f"format={','.join(COLUMNS)}"]
        try:
            text = self._client.ask(words)
        except SlurmError as e:
            if self._store.kept("events_said") != str(e):
                self._say(f"{e}; availability is counted from the nodes' own records")
                self._store.keep({"events_said": str(e)})
            return
        mistakes: list[str] = []
        found = out_of_service(["|".join(COLUMNS), *text.splitlines()], mistakes)
        for mistake in mistakes[:5]:
            self._say(mistake)
        self._store.add_events(found, self._forgotten(now))
        self._store.keep({"events_until": now, "events_said": ""})
        done.events = len(found)

    def _topology(self) -> None:
        """Keep which nodes are below which leaf switch or in which block."""
        try:
            groups = self._client.topology()
        except SlurmError:
            return  # the groups of the last round stay
        of: dict[str, list[str]] = {}
        for group in groups:
            for node in group.nodes:
                of.setdefault(node, []).append(f"{group.kind} {group.name}")
        self._store.keep({"groups": of})


def _read(node: str, files: Mapping[str, bytes], now: float) -> tuple[list[ServiceRecord], list[str]]:
    """Return the records of a node, and in one line each what could not be read."""
    mistakes: list[str] = []

    def failed(why: str) -> list[ServiceRecord]:
        mistakes.append(f"{node}: {why}")
        return []

    return isolated(lambda: records_of(node, files, now, mistakes), failed), mistakes


def _stable(said: tuple[str, str]) -> tuple[str, str]:
    """Return what matters of a node's state: whether it is out of service, and why. A job that begins is no news."""
    states, reason = said
    parts = ("DRAIN", "DOWN", "FAIL", "MAINT")
    out = ",".join(word for word in states.split(",") if word not in POWER and any(part in word for part in parts))
    return out, reason
