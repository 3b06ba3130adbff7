"""Reads and changes slurmctld for a maintenance run: one listing for all nodes, and drain, lift and mark for one.

Every write follows decision 7, as the agent's do (``drains.node_writer``): the intent is in the journal, then the node is
read, written, and read again. Nothing is written on the basis of an old reading. A reason is ours if it is the exact text,
plus only what slurmctld appends to it.
"""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Mapping

from msgspec import Struct

from fairlead.drains.node_writer import STALE_SECONDS, NodeWriter, owner_among
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.model.nodelist import expand
from fairlead.model.plain_text import one_line
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import MAINTAIN, Owner, is_ours, keep_off, parse, strip_suffixes
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
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import HOLDING, Scontrol

_HANDS = {Owner.OURS: DrainOwner.OURS, Owner.COVERED: DrainOwner.COVERED, Owner.FREE: DrainOwner.FREE}


class Listing(Struct, frozen=True, kw_only=True):
    """Holds one reading of all nodes and jobs, begun at ``unix``."""

    nodes: Mapping[str, NodeState]
    availability: Mapping[str, NodeAvailability]
    unix: float

    def fresh(self) -> bool:
        """Say whether it is young enough to act on."""
        return time.time() - self.unix < STALE_SECONDS


class Controller:
    """Calls slurmctld. The calls raise SlurmUnavailable (try again) and SlurmError."""

    def __init__(self, client: Scontrol) -> None:
        self.client = client
        self._rules = Rules(own_users=tuple(dict.fromkeys(("root", "slurm", getpass.getuser()))))

    def listing(self) -> Listing:
        unix = time.time()
        nodes = {n.name: n for n in self.client.nodes()}
        text = self.client.ask(["squeue", "-h", "-a", "-t", ",".join(sorted(HOLDING)), "-o", "%A|%t|%e|%N"])
        jobs = jobs_by_node(text)
        availability = {
            name: NodeAvailability(
                name=name,
                partitions=n.partitions,
                usable=n.available and not silent(n),
                out=not n.available,
                maintained=n.drained and n.reason.startswith(MAINTAIN),
                since=float(n.reason_time),
                jobs=len(ends := jobs.get(name, [])),
                jobs_end=max(ends, default=0.0),
            )
            for name, n in nodes.items()
        }
        return Listing(nodes=nodes, availability=availability, unix=unix)

    def seen(self, work: NodeWork, listing: Listing) -> NodeInSlurm:
        """Return the node as this listing has it."""
        return self._seen(work, listing.nodes[work.slurm], listing.availability[work.slurm].jobs)

    def now(self, work: NodeWork) -> NodeInSlurm:
        """Return the node as it is now, with its jobs."""
        jobs = self.client.jobs_on(work.slurm)
        return self._seen(work, self.client.node(work.slurm), len(jobs))

    def service_of(self, work: NodeWork, listing: Listing) -> NodeService | None:
        """Return whether the node of a run is in service now; None where slurmctld no longer has such a node."""
        state = listing.nodes.get(work.slurm)
        if state is None:
            return None
        return NodeService(hand=self._hand(work, state), serving=listing.availability[work.slurm].usable, who=who(state))

    def _seen(self, work: NodeWork, state: NodeState, jobs: int) -> NodeInSlurm:
        hand = self._hand(work, state)
        off = keep_off(state.states) if hand is DrainOwner.FREE else ""
        lost = False
        if hand is DrainOwner.FREE and work.drained and not work.kept:
            lost = self.client.began() >= work.drained
        since = float(state.reason_time)
        return NodeInSlurm(hand=hand, who=who(state), off=off, jobs=jobs, lost=lost, since=since, silent=silent(state))

    def _hand(self, work: NodeWork, state: NodeState) -> DrainOwner:
        texts = tuple(as_reason(text) for text in (work.mark, work.text) if text)
        owner, _ = owner_among(state, texts, self._rules)
        if owner is Owner.OURS and not state.drained:
            return DrainOwner.OTHER  # it is down without a drain, with our reason
        return _HANDS.get(owner, DrainOwner.OTHER)

    def left_by(self, state: NodeState, texts: frozenset[str]) -> str:
        """Return the reason that an ended run of ours has written, if the node has exactly that; "" for none."""
        user, reason = state.reason_user, state.reason
        return next((t for t in texts if state.drained and is_ours(reason, user, as_reason(t), self._rules)), "")

    # -- writing: one try, with its reading before and after -----------------------------------------------

    def drain(self, work: NodeWork, took: str) -> tuple[Move | None, float]:
        """Try once to write our drain, whose intent is in the journal. Return the next step (None: try again) and since when
        the node is drained. ``took``: the reason of an earlier maintenance, which may be replaced; "" for none."""
        writer = self._writer(work)
        state = writer.read()
        seen = self._seen(work, state, 0)
        move = maintenance_steps.before_drain(work, seen, adopt=bool(took and self.left_by(state, frozenset({took}))))
        if move is None and writer.fresh():
            try:
                writer.write(lambda: self.client.drain(work.slurm, work.text))
            except SlurmUnavailable:
                raise
            except SlurmError as e:
                move = Move(
                    MaintenanceStep.TAKEN if work.drained else MaintenanceStep.SKIPPED, maintenance_steps.untouched(str(e))
                )
            else:
                seen = self.now(work)
                move = maintenance_steps.read_back(work, seen)
        return move, seen.since

    def lift(self, work: NodeWork, plan: MaintenancePlan) -> Move | None:
        """Try once to lift our drain; return the next step (None: try again). A node that we have rebooted and found well may
        be DOWN with our reason. That is slurmctld's mark for the reboot (ReturnToService 0 and 1), and it is lifted too."""
        writer = self._writer(work)
        state = writer.read()
        seen = self._seen(work, state, 0)
        move = maintenance_steps.lifted(work, seen, time.time(), plan)
        if move is None and seen.hand is DrainOwner.OURS and writer.fresh():
            writer.write(lambda: self._resume(work, down="DOWN" in state.states))
            move = maintenance_steps.lifted(work, self.now(work), time.time(), plan)
        return move

    def mark(self, work: NodeWork) -> Move | None:
        """Try once to write into our reason what went wrong; return the next step (None: try again). The node's state stays."""
        writer = self._writer(work)
        seen = self._seen(work, writer.read(), 0)
        if seen.hand is DrainOwner.COVERED:
            return Move(MaintenanceStep.FAILED, f"{work.detail}; slurmctld keeps it drained: {seen.who}")
        if seen.hand is not DrainOwner.OURS:
            return Move(MaintenanceStep.TAKEN, f"{work.detail}; left as somebody else has set it since: {seen.who}")
        if not writer.fresh():
            return None
        writer.write(lambda: self.client.update_reason(work.slurm, work.mark))
        return Move(MaintenanceStep.FAILED, f"{work.detail}; stays drained")

    def _writer(self, work: NodeWork) -> NodeWriter:
        return NodeWriter(self.client, work.slurm, from_request=True)

    def _resume(self, work: NodeWork, *, down: bool) -> None:
        """Lift the drain, and also the DOWN that our own reboot has caused."""
        if work.boot_after and down:
            self.client.ask(["scontrol", "update", f"NodeName={work.slurm}", "State=RESUME"])
        else:
            self.client.resume(work.slurm)

    def registered(self, work: NodeWork) -> str:
        """Return when the node's slurmd began, in slurmctld's words. After a reboot another value says that the node is back."""
        text = self.client.ask(["scontrol", "-o", "show", "node", work.slurm])
        return next((w.partition("=")[2] for w in text.split() if w.startswith("SlurmdStartTime=")), "")


def as_reason(text: str) -> Reason:
    """Return one of our own texts as a token. Raises ValueError for any other text."""
    found = parse(text)
    if found is None:
        raise ValueError(f"{text!r} is no reason of ours")
    return found


def silent(state: NodeState) -> bool:
    """Say whether slurmctld gets no answer from the slurmd there, or refuses its registration. slurmctld starts no job on such
    a node. It says so also of every node that RESUME has brought back from DOWN, until the next ping
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
    """Return when the jobs on each node have to end, from squeue's ``%A|%t|%e|%N``; inf for no limit. Raises SlurmError."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 4 or not words[0].isdigit():
            raise SlurmError(f"squeue: its output is not what was asked for: {line[:80]!r}")
        end = float(words[2]) if words[2].isdigit() else math.inf
        for node in expand(words[3]) if words[3] else ():
            found.setdefault(node, []).append(end)
    return found
