"""Reads and changes nodes in slurmctld for a maintenance run. ``listing`` reads all nodes. ``drain``, ``lift`` and ``mark``
change one node.

The intent of every write is in the journal before the write. Then ``drains.read_write_read`` makes the change in the same
steps as for the agent. This module has only the rule that decides: a reason is ours if it is the exact text of this run, with
nothing after it but what slurmctld appends. "Our drain" is the drain that this run has set on a node.
"""

from __future__ import annotations

import getpass
import math
import os
import pwd
from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from fairlead.drains.node_writer import STALE_SECONDS, NodeWriter, owner_among
from fairlead.drains.outcome import erased, finish
from fairlead.drains.read_write_read import NodeChange, WriteDecision, change_node
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.model.nodelist import expand
from fairlead.model.plain_text import one_line
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import MAINTAIN, Owner, in_maintenance, is_ours, keep_off, parse, strip_suffixes
from fairlead.policy.ownership import Token as Reason
from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.begin_limits import NodeAvailability
from fairlead.provision.maintain.maintenance_steps import (
    DrainOwner,
    MaintenancePlan,
    MaintenanceStep,
    Move,
    NodeInSlurm,
    NodeService,
    NodeWork,
)
from fairlead.provision.maintain.run_clock import RunClock
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import HOLDING, Scontrol

T = TypeVar("T")

#: Why a node waits in its step although its reading allows the write, for example because the primary's host does not answer.
_TOO_SLOW = f"nothing is written, because the readings of slurmctld take longer than {STALE_SECONDS:.0f} s"
_HANDS = {Owner.OURS: DrainOwner.OURS, Owner.COVERED: DrainOwner.COVERED, Owner.FREE: DrainOwner.FREE}


class Listing(Struct, frozen=True, kw_only=True):
    """Holds one reading of all nodes and jobs. unix: when the reading began, by the controller's RunClock."""

    nodes: Mapping[str, NodeState]
    availability: Mapping[str, NodeAvailability]
    unix: float

    def fresh(self, now: float) -> bool:
        """Say whether the listing is young enough to act on."""
        return now - self.unix < STALE_SECONDS


class Controller:
    """Calls slurmctld. A method raises SlurmUnavailable if the caller should try again, and SlurmError for other errors."""

    def __init__(self, client: Scontrol) -> None:
        self.client = client
        self.clock = RunClock()
        self._rules = Rules(own_users=tuple(dict.fromkeys(("root", "slurm", own_user()))))

    def listing(self) -> Listing:
        unix = self.clock.now()
        nodes = {n.name: n for n in self.client.nodes()}
        if not nodes:  # every node of a run would count as taken out of Slurm
            raise SlurmUnavailable("sinfo has listed no node at all")
        text = self.client.queue("-t", ",".join(sorted(HOLDING)), "-o", "%A|%t|%e|%N")
        jobs = jobs_by_node(text)
        availability = {
            name: NodeAvailability(
                name=name,
                partitions=n.partitions,
                usable=n.available and not silent(n),
                out=not n.available,
                maintained=n.drained and n.reason.startswith(MAINTAIN),
                reserved=in_maintenance(n.states),
                since=float(n.reason_time),
                jobs=len(ends := jobs.get(name, [])),
                jobs_end=max(ends, default=0.0),
            )
            for name, n in nodes.items()
        }
        return Listing(nodes=nodes, availability=availability, unix=unix)

    def seen(self, work: NodeWork, listing: Listing) -> NodeInSlurm:
        """Return the node as it was when this listing was read."""
        return self._seen(work, listing.nodes[work.slurm], listing.availability[work.slurm].jobs)

    def owner(self, work: NodeWork, listing: Listing) -> DrainOwner:
        """Return who had drained the node when this listing was read. This asks slurmctld nothing."""
        return self._hand(work, listing.nodes[work.slurm])

    def now(self, work: NodeWork) -> NodeInSlurm:
        """Return the node as it is now, with its jobs."""
        jobs = self.client.jobs_on(work.slurm)
        return self._seen(work, self.client.node(work.slurm), len(jobs))

    def service_of(self, work: NodeWork, listing: Listing) -> NodeService | None:
        """Return whether the node of a run is in service now, or None if slurmctld no longer has such a node."""
        state = listing.nodes.get(work.slurm)
        if state is None:
            return None
        return NodeService(hand=self._hand(work, state), serving=listing.availability[work.slurm].usable, who=who(state))

    def _seen(self, work: NodeWork, state: NodeState, jobs: int) -> NodeInSlurm:
        hand = self._hand(work, state)
        off = keep_off(state.states) if hand in (DrainOwner.FREE, DrainOwner.OURS) else ""
        lost = False
        if hand is DrainOwner.FREE and work.drained and not work.kept:
            lost = self.client.began() >= work.drained
        since = float(state.reason_time)
        return NodeInSlurm(hand=hand, who=who(state), off=off, jobs=jobs, lost=lost, since=since, silent=silent(state))

    def _hand(self, work: NodeWork, state: NodeState) -> DrainOwner:
        texts = tuple(as_reason(text) for text in (work.mark, work.text) if text)
        owner, _ = owner_among(state, texts, self._rules)
        if owner is Owner.OURS and not state.drained:
            return DrainOwner.OTHER  # the node has our reason, but it is down and not drained
        return _HANDS.get(owner, DrainOwner.OTHER)

    def left_by(self, state: NodeState, texts: frozenset[str]) -> str:
        """Return which of ``texts`` is exactly the reason of the drained node, or "" if none is. ``texts``: reasons that earlier
        runs have written."""
        user, reason = state.reason_user, state.reason
        return next((t for t in texts if state.drained and is_ours(reason, user, as_reason(t), self._rules)), "")

    # -- writing: the rules are here, and ``drains.read_write_read`` has the steps -------------------------

    def drain(self, work: NodeWork, took: str) -> tuple[Move | None, float]:
        """Try once to set our drain. Its intent is in the journal already. Return the next move, or None to try again, and the
        time of the node's reason by slurmctld's clock. ``took``: the reason of an earlier maintenance run that may be replaced,
        or "" if there is none."""

        def decide(state: NodeState) -> WriteDecision[tuple[Move | None, float]]:
            seen = self._seen(work, state, 0)
            move = maintenance_steps.before_drain(work, seen, adopt=bool(took and self.left_by(state, frozenset({took}))))
            return WriteDecision(move is None, (move or Move(work.step, _TOO_SLOW), seen.since))

        def judge() -> tuple[Move | None, float]:
            seen = self.now(work)
            return maintenance_steps.read_back(work, seen), seen.since

        def refused(error: SlurmError) -> tuple[Move | None, float]:
            seen = self.now(work)  # scontrol may have ended with an error after slurmctld had set the drain
            if seen.hand is DrainOwner.OURS:
                return maintenance_steps.read_back(work, seen), seen.since
            return maintenance_steps.drain_refused(work, str(error)), 0.0

        return self._change(
            work,
            NodeChange(
                decide=decide,
                write=lambda state: self.client.drain(work.slurm, work.text),
                judge=judge,
                refused=refused,
            ),
        )

    def lift(self, work: NodeWork, plan: MaintenancePlan) -> Move | None:
        """Try once to lift our drain. Return the next move, or None to try again.

        A node that this run has rebooted may be DOWN with our reason, because slurmctld sets a rebooted node DOWN
        (ReturnToService 0 and 1). DOWN is then lifted together with the drain.
        """

        def decide(state: NodeState) -> WriteDecision[Move | None]:
            seen = self._seen(work, state, 0)
            move = maintenance_steps.before_lift(work, seen, self.clock.now(), plan)
            write = move is None and seen.hand is DrainOwner.OURS
            return WriteDecision(write, Move(work.step, _TOO_SLOW) if write else move)

        def judge() -> Move | None:
            jobs = len(self.client.jobs_on(work.slurm))
            state = self.client.node(work.slurm)
            if move := self._put_back(work, state):
                return move
            return maintenance_steps.lifted(work, self._seen(work, state, jobs), self.clock.now(), plan)

        def refused(error: SlurmError) -> Move | None:
            move = maintenance_steps.lifted(work, self.now(work), self.clock.now(), plan)
            return move or maintenance_steps.lift_refused(work, str(error), self.clock.now(), plan)

        return self._change(
            work,
            NodeChange(
                decide=decide,
                write=lambda state: self._resume(work, down="DOWN" in state.states),
                judge=judge,
                refused=refused,
            ),
        )

    def _put_back(self, work: NodeWork, state: NodeState) -> Move | None:
        """Drain the node again if our resume has lifted the drain that a person had set after our reading. Slurm 24.11 without
        slurmdbd leaves that person's reason on the node. ``state``: as read just after the resume."""
        theirs = erased(state, work.text)
        if self._hand(work, state) is not DrainOwner.FREE or not theirs or (work.mark and not erased(state, work.mark)):
            return None
        self.client.not_after(STALE_SECONDS)
        self.client.drain(work.slurm, theirs)
        return Move(MaintenanceStep.TAKEN, f"somebody drained it as it was resumed, put back: {one_line(theirs)[:160]}")

    def mark(self, work: NodeWork) -> Move | None:
        """Try once to write into our reason what went wrong. Return the next move, or None to try again. The node's state does
        not change. The reason is not read back, because the run is done with the node in any case."""

        def decide(state: NodeState) -> WriteDecision[Move | None]:
            move = maintenance_steps.before_mark(work, self._seen(work, state, 0))
            return WriteDecision(move is None, move or Move(work.step, _TOO_SLOW))

        ended = f"{work.detail}; stays drained"
        return self._change(
            work,
            NodeChange(
                decide=decide,
                write=lambda state: self.client.update_reason(work.slurm, work.mark),
                judge=lambda: Move(MaintenanceStep.FAILED, ended),
                refused=lambda error: Move(MaintenanceStep.FAILED, f"{ended}, and its reason does not say so: {error}"),
            ),
        )

    def _change(self, work: NodeWork, change: NodeChange[T]) -> T:
        writer = NodeWriter(self.client, work.slurm, not_after=self.client.not_after, from_request=True)
        return finish(change_node(writer, change))

    def _resume(self, work: NodeWork, *, down: bool) -> None:
        """Lift the drain, and also the DOWN that our own reboot has caused."""
        if work.boot_after and down:
            self.client.resume_down(work.slurm)
        else:
            self.client.resume(work.slurm)

    def registered(self, work: NodeWork) -> str:
        """Return the node's SlurmdStartTime as scontrol prints it. If the value is another number after a reboot, slurmd has
        registered again. Raises SlurmError if scontrol does not print it."""
        text = self.client.ask(["scontrol", "-o", "show", "node", work.slurm])
        if found := next((w.partition("=")[2] for w in text.split() if w.startswith("SlurmdStartTime=")), ""):
            return found
        raise SlurmError(f"scontrol: its output about {work.slurm} has no SlurmdStartTime")


def own_user() -> str:
    """Return the name of this process's user, which slurmctld has as the user of our drains. The environment may name another."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


def as_reason(text: str) -> Reason:
    """Return a reason that fairlead has written, parsed. Raises ValueError for any other text."""
    found = parse(text)
    if found is None:
        raise ValueError(f"{text!r} is no reason of ours")
    return found


def silent(state: NodeState) -> bool:
    """Say whether slurmctld gets no answer from the node's slurmd, or refuses its registration. slurmctld starts no job on such
    a node. A node that RESUME has brought back from DOWN also counts as not responding until slurmctld's next ping
    (src/slurmctld/node_mgr.c, update_node)."""
    return not state.states.isdisjoint({"NOT_RESPONDING", "INVALID_REG", "UNKNOWN"})


def who(state: NodeState) -> str:
    """Return in one line who has drained the node or set it down."""
    words = "+".join(sorted(state.states)).lower()
    if not state.reason:
        return words
    token = parse(state.reason)
    maintained = token is not None and token.text.startswith(MAINTAIN)
    kind, ask = ("another `fairlead maintain`: ", "; its own admin host knows it (--list)") if maintained else ("", "")
    return f"{words} by {state.reason_user or 'unknown'}: {kind}{one_line(strip_suffixes(state.reason))[:160]}{ask}"


def jobs_by_node(text: str) -> dict[str, list[float]]:
    """Return by node when each of its jobs has to end, in Unix seconds, or inf for a job without a time limit. ``text``: the
    output of squeue in the format ``%A|%t|%e|%N``. Raises SlurmError."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 4 or not words[0].isdigit():
            raise SlurmError(f"squeue: its output is not what was asked for: {line[:80]!r}")
        end = float(words[2]) if words[2].isdigit() else math.inf
        try:
            nodes = expand(words[3]) if words[3] else ()
        except ValueError as e:
            raise SlurmError(f"squeue: its output is not what was asked for: {e}") from None
        for node in nodes:
            found.setdefault(node, []).append(end)
    return found
