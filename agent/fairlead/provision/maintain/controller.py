"""slurmctld as a maintenance run sees and changes it: one listing for all nodes, and drain, lift and mark for one.

Every write follows decision 7: the intent is in the journal, then the node is read, written, and read again; a reading older
than ``FRESH_SECONDS`` is not acted on. Ours is the exact text, plus only what slurmctld appends to it.
"""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Mapping

from msgspec import Struct

from fairlead.errors import SlurmError
from fairlead.policy.ownership import MAINTAIN, Owner, classify, is_ours, keep_off, parse, strip_suffixes
from fairlead.policy.ownership import Token as Reason
from fairlead.policy.rules import Rules
from fairlead.provision.maintain.limits import Place
from fairlead.provision.maintain.steps import Hand, Seen, Work
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import HOLDING, Scontrol
from fairlead.topology.nodelist import expand

FRESH_SECONDS = 2.0


class Listing(Struct, frozen=True, kw_only=True):
    """One reading of all nodes and jobs. at: monotonic."""

    nodes: Mapping[str, NodeState]
    places: Mapping[str, Place]
    at: float


class Controller:
    """The calls raise SlurmUnavailable (try again) and SlurmError."""

    def __init__(self, client: Scontrol) -> None:
        self.client = client
        self._rules = Rules(own_users=tuple(dict.fromkeys(("root", "slurm", getpass.getuser()))))

    def listing(self) -> Listing:
        at = time.monotonic()
        nodes = {n.name: n for n in self.client.nodes()}
        text = self.client.ask(["squeue", "-h", "-a", "-t", ",".join(sorted(HOLDING)), "-o", "%A|%t|%e|%N"])
        jobs = jobs_by_node(text)
        places = {
            name: Place(
                name=name,
                partitions=n.partitions,
                usable=n.available,
                maintained=n.drained and n.reason.startswith(MAINTAIN),
                jobs=len(ends := jobs.get(name, [])),
                jobs_end=max(ends, default=0.0),
            )
            for name, n in nodes.items()
        }
        return Listing(nodes=nodes, places=places, at=at)

    def seen(self, work: Work, listing: Listing) -> Seen:
        """The node as this listing has it."""
        return self._seen(work, listing.nodes[work.slurm], listing.places[work.slurm].jobs)

    def now(self, work: Work) -> Seen:
        """The node as it is now, its jobs too."""
        jobs = self.client.jobs_on(work.slurm)
        return self._seen(work, self.client.node(work.slurm), len(jobs))

    def seen_alone(self, work: Work, state: NodeState) -> Seen:
        """The node as this reading has it, whatever jobs it has."""
        return self._seen(work, state, 0)

    def _seen(self, work: Work, state: NodeState, jobs: int) -> Seen:
        hand = self._hand(work, state)
        off = keep_off(state.states) if hand is Hand.FREE else ""
        lost = False
        if hand is Hand.FREE and work.drained:
            lost = self.client.began() >= work.drained  # a killed slurmctld forgets what it has not saved
        silent = not state.states.isdisjoint({"NOT_RESPONDING", "INVALID_REG", "UNKNOWN"})
        since = float(state.reason_time)
        return Seen(hand=hand, who=who(state), off=off, jobs=jobs, lost=lost, since=since, silent=silent)

    def _hand(self, work: Work, state: NodeState) -> Hand:
        for text in filter(None, (work.mark, work.text)):
            ours = as_reason(text)
            found = classify(state.states, state.reason, state.reason_user, ours, self._rules)
            if found is Owner.OURS and state.drained:
                return Hand.OURS
            if found is Owner.COVERED:
                return Hand.COVERED
            if found is Owner.FREE:
                return Hand.FREE
        if not work.text:
            found = classify(state.states, state.reason, state.reason_user, None, self._rules)
            return Hand.FREE if found is Owner.FREE else Hand.OTHER
        return Hand.OTHER

    def left_by(self, work: Work, state: NodeState, texts: frozenset[str]) -> str:
        """The reason of an ended run of ours, where exactly that stands on the node; "" for none."""
        user, reason = state.reason_user, state.reason
        return next((t for t in texts if state.drained and is_ours(reason, user, as_reason(t), self._rules)), "")

    # -- writing -----------------------------------------------------------------------------------------

    def drain(self, work: Work, text: str) -> None:
        """Set DRAIN and ``text``. The caller has just read that it may."""
        self.client.drain(work.slurm, text)

    def mark(self, work: Work) -> None:
        """Our reason says from now on what went wrong; the state stays."""
        self.client.update_reason(work.slurm, work.mark)

    def lift(self, work: Work) -> None:
        """Lift our drain. Under our own words, and on a node that we have rebooted and seen well, DOWN is slurmctld's mark for
        that reboot (ReturnToService 0 and 1): it goes too."""
        state = self.client.node(work.slurm)
        if work.boot_after and "DOWN" in state.states and self._hand(work, state) is Hand.OURS:
            self.client.ask(["scontrol", "update", f"NodeName={work.slurm}", "State=RESUME"])
        else:
            self.client.resume(work.slurm)

    def registered(self, work: Work) -> str:
        """When the node's slurmd began, in slurmctld's words: another value after a reboot says that it is back."""
        text = self.client.ask(["scontrol", "-o", "show", "node", work.slurm])
        return next((w.partition("=")[2] for w in text.split() if w.startswith("SlurmdStartTime=")), "")


def as_reason(text: str) -> Reason:
    """One of our own texts as a token. Raises ValueError for a text that is none."""
    found = parse(text)
    if found is None:
        raise ValueError(f"{text!r} is no reason of ours")
    return found


def who(state: NodeState) -> str:
    """Who holds the node, in one line."""
    words = "+".join(sorted(state.states)).lower()
    if not state.reason:
        return words
    token = parse(state.reason)
    kind = "another `fairlead maintain`: " if token is not None and token.text.startswith(MAINTAIN) else ""
    return f"{words} by {state.reason_user or 'unknown'}: {kind}{strip_suffixes(state.reason)[:160]}"


def jobs_by_node(text: str) -> dict[str, list[float]]:
    """When the jobs on each node have to end, of squeue's ``%A|%t|%e|%N``; inf for no limit. Raises SlurmError."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 4 or not words[0].isdigit():
            raise SlurmError(f"squeue: its output is not what was asked for: {line[:80]!r}")
        end = float(words[2]) if words[2].isdigit() else math.inf
        for node in expand(words[3]) if words[3] else ():
            found.setdefault(node, []).append(end)
    return found
