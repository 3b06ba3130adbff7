"""One node of a slurmctld with its ledger: whose its state is, and what may still arrive or be lost of what was written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec.structs import replace

from fairlead.daemon.fleet import Fleet
from fairlead.daemon.ledger import Entry, Ledger, Phase
from fairlead.daemon.outcome import Outcome, Result, result, who
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.ownership import Owner, Token, build, classify, keep_off
from fairlead.policy.rules import Rules
from fairlead.slurm.client import NodeState, SlurmClient

STALE_SECONDS = 2.0  # how long a reading is good for: it bounds the window in which another's change could be overwritten
#: slurmctld saves what has changed up to 5 s later (SAVE_MAX_WAIT, slurmctld/state_save.c), and that takes it a moment. What
#: one that is killed had not saved is gone.
UNSAVED_SECONDS = 15.0
SKEW_SECONDS = 5.0  # between this node's clock and slurmctld's
SAVED_SECONDS = 30.0  # and the intent in the ledger, whose time says until when what was sent may still arrive


class OwnNode:
    """What every protocol of drain.py needs.

    hidden: looks for what Slurm hid under our reason since a Unix time; stranger: why this machine is not that node;
    barred: why nothing may be written now (a hold), asked with the ledger's lock. Each gives one line, "" for nothing.
    """

    def __init__(
        self,
        client: SlurmClient,
        ledger: Ledger,
        node: str,
        rules: Rules,
        *,
        hidden: Callable[[float], str] = lambda since: "",
        stranger: Callable[[NodeState], str] = lambda mine: "",
        barred: Callable[[], str] = lambda: "",
        fleet: Fleet | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.node = node
        self.rules = rules
        self.hidden = hidden
        self.stranger = stranger
        self.barred = barred
        self.fleet = fleet or Fleet(rules)
        self.wall = wall
        self.clock = clock
        self._saved_at = self._saved_wall = 0.0
        self._asked_at = 0.0  # Unix time before the last reading: what arrived later is not in it
        self._asked = 0.0  # the same by the clock
        self._stood: tuple[int, float] = (0, 0.0)  # the entry's ``written``, and since when we know that it stands

    def foresee(self, mine: NodeState, *, lift: bool) -> str:
        """Why a drain (``lift``: a resume) by hand would be refused now, in one line; "" for nothing seen. Writes nothing."""
        entry = self.ledger.load()
        owner, entry = self._owner(mine, entry) if entry else (self._classify(mine, None), None)
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            return f"{owner.value}: {who(mine)}"
        if not lift:
            return "" if mine.drained else keep_off(mine.states) or self.stranger(mine)
        return self._not_yet(mine, entry.since) if entry and mine.drained else "nothing of ours to lift"

    def _fresh(self, read_at: float, otherwise: Entry | None) -> None:
        """Nothing is written on a reading that is old: this process was stopped, or the disk was, and people act meanwhile.
        Raises SlurmUnavailable then, for another try; the ledger says ``otherwise``."""
        now = self.clock()
        stepped = abs(self.wall() - self._saved_wall - (now - self._saved_at)) > STALE_SECONDS  # the ledger's times are wall time
        if now - read_at > STALE_SECONDS or now - self._saved_at > SAVED_SECONDS or stepped:
            self.ledger.save(otherwise)
            raise SlurmUnavailable(f"{now - read_at:.0f} s went by after the reading of {self.node}: not written")

    def _seen(self, entry: Entry, mine: NodeState) -> Entry:
        """The entry of our drain, which stands. Until it has stood for ``UNSAVED_SECONDS`` slurmctld may not have saved it."""
        written = entry.written if entry.phase is Phase.DRAINED and not entry.sent else max(1, mine.reason_time)
        return self._aged(replace(entry, phase=Phase.DRAINED, sent=0.0, written=written))

    def _aged(self, entry: Entry) -> Entry:
        """The entry of a node that is drained, by us or in our place, as it was at the last reading: has that been saved?"""
        if self._stood[0] != entry.written:
            self._stood = (entry.written, self.clock())
        return replace(entry, written=0) if self._asked - self._stood[1] >= UNSAVED_SECONDS else entry

    def _just_now(self, mine: NodeState | None = None) -> int:
        """``Entry.written`` of what was written a moment ago, and whose own time is not known: by now somebody else's words stand
        there, whose time is (``mine``), or none."""
        return max(1, mine.reason_time if mine is not None and mine.drained else int(self.wall() - SKEW_SECONDS))

    def _left(self, entry: Entry) -> Entry | None:
        return entry.dropped(self._asked_at)

    def _unknown(self, mine: NodeState) -> Result:
        """Without an entry: is it somebody's?"""
        owner = self._classify(mine, None)
        return result(Outcome.FREE if owner is Owner.FREE else Outcome(owner.value), mine, who(mine))

    def _not_yet(self, mine: NodeState, since: float) -> str:
        """Why a drain of Unix time ``since`` may not be lifted now."""
        if why := keep_off(mine.states):
            return why
        if "INVALID_REG" in mine.states:  # slurmctld refuses it then
            return "slurmd registers with less than slurm.conf says: scontrol show node"
        if "DOWN" in mine.states:
            return "down in slurmctld: slurmd does not answer, or somebody set it"
        if "COMPLETING" in mine.states:
            return "a job is still completing: a step that cannot be killed, or an epilog that runs"
        return self.hidden(since)

    def _node(self) -> NodeState:
        self._asked_at, self._asked = self.wall(), self.clock()
        return self.client.node(self.node)

    def _nodes(self) -> tuple[NodeState, ...]:
        self._asked_at, self._asked = self.wall(), self.clock()
        return self.client.nodes()

    def _own(self, listed: tuple[NodeState, ...]) -> NodeState:
        for node in listed:
            if node.name == self.node:
                return node
        raise SlurmError(f"slurmctld has no node {self.node} in any partition", hint="slurm.node_name must be its NodeName")

    def _classify(self, mine: NodeState, token: Token | None, *, prolog_refused: bool = False) -> Owner:
        return classify(mine.states, mine.reason, mine.reason_user, token, self.rules, prolog_refused=prolog_refused)

    def _owner(self, mine: NodeState, entry: Entry, *, prolog_refused: bool = False) -> tuple[Owner, Entry]:
        """Whose it is, and the entry with the text that stands where several may."""
        owner = self._classify(mine, entry.token, prolog_refused=prolog_refused)
        if owner is not Owner.OURS:
            for token in entry.late:
                if self._classify(mine, token) is Owner.OURS:
                    owner, entry = Owner.OURS, entry.turned_to(token)
        if (owner is Owner.COVERED and not entry.ours) or (owner is Owner.OURS and entry.phase is Phase.TAKEN):
            return Owner.FOREIGN, entry  # whose words slurmctld, or a late write of ours, has replaced is not known
        return owner, entry

    def _intent(self, before: Entry | None, check: str, summary: str, job: int | None) -> Entry:
        """A drain about to be written, after what the ledger said ``before``."""
        token = build(check, secrets.token_hex(6), summary, job=job)
        now = self._saved()
        return before.intend(token, now) if before else replace(self._entry(token, Phase.DRAINING), sent=now)

    def _nothing(self) -> Entry:
        """An entry that says only that something may still arrive."""
        return self._entry(build("prolog", secrets.token_hex(6), "-"), Phase.DRAINING)

    def _saved(self) -> float:
        """Unix time, for the ledger; what is saved now has to be written soon or not at all."""
        self._saved_at, self._saved_wall = self.clock(), self.wall()
        return self._saved_wall

    def _entry(self, token: Token, phase: Phase) -> Entry:
        return Entry(node=self.node, phase=phase, token=token, since=self.wall(), machine=self.ledger.machine)
