"""One node of a slurmctld with its ledger: whose its state is, and what may still arrive or be lost of what was written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.daemon.fleet import Fleet
from fairlead.daemon.ledger import Entry, Ledger, Phase, Reboot
from fairlead.daemon.outcome import Outcome, Result, result, who
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import Owner, Token, build, classify, keep_off, parse, reboot_mark, rebooting
from fairlead.policy.tracks import of_the_past
from fairlead.slurm.client import NodeState, SlurmClient, Stamp

STALE_SECONDS = 2.0  # how long a reading is good for: it bounds the window in which another's change could be overwritten
SKEW_SECONDS = 5.0  # between this node's clock and slurmctld's
SAVED_SECONDS = 30.0  # and the intent in the ledger, whose time says until when what was sent may still arrive
#: `scontrol reconfigure` starts slurmctld anew from 23.11 on, and every slurmd in the same seconds.
RECONFIGURE_SECONDS = (0.0, 5.0)
RECONFIGURE_GAP_SECONDS = 150.0  # and something else may have been done to slurmctld where we had not looked for longer


class Lost(NamedTuple):
    """Why a drain that is gone need not have been lifted by a person, "" where only a person can have lifted it; and the names
    of the evidence that counts as acknowledged all the same."""

    why: str = ""
    known: tuple[str, ...] = ()


class OwnNode:
    """What every protocol of drain.py needs.

    hidden: looks for what Slurm hid under our reason since a Unix time; stranger: why this machine is not that node;
    barred: why nothing may be written now (a hold), asked with the ledger's lock. Each gives one line, "" for nothing.
    boot_id: of this node, "" where it is not known. reconfigured: whether `scontrol reconfigure` has started its
    slurmd anew. not_after: told before each write for how many seconds more it may
    be sent. known: the names of the evidence that is known now, None where the caller knows of none; set before each protocol.
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
        boot_id: str = "",
        reconfigured: Callable[[], bool] = lambda: False,
        not_after: Callable[[float], None] = lambda seconds: None,
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
        self.boot_id = boot_id
        self.reconfigured = reconfigured
        self.not_after = not_after
        self.known: tuple[str, ...] | None = None
        self.wall = wall
        self.clock = clock
        self._saved_at = self._saved_wall = 0.0
        self._asked_at = 0.0  # Unix time before the last reading: what arrived later is not in it
        self._asked = self._read_at = 0.0  # the same by the clock, and when it was answered
        self._stood: tuple[str, int, float] = ("", 0, 0.0)  # a token, when it was first seen standing, and the clock then

    def foresee(self, mine: NodeState, *, lift: bool) -> str:
        """Why a drain (``lift``: a resume) by hand would be refused now, in one line; "" for nothing seen. Writes nothing."""
        entry = self.ledger.load()
        owner, entry = self._owner(mine, entry) if entry else (self._classify(mine, None), None)
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            return f"{owner.value}: {who(mine)}"
        if not lift:
            return "" if mine.drained else keep_off(mine.states) or self.stranger(mine)
        return self._not_yet(mine, entry.since) if entry and mine.drained else "nothing of ours to lift"

    def _fresh(self, otherwise: Entry | None) -> None:
        """Nothing is written on a reading that is old: this process was stopped, or the disk was, and people act meanwhile.
        Raises SlurmUnavailable then, for another try; the ledger says ``otherwise``."""
        now = self.clock()
        stepped = abs(self.wall() - self._saved_wall - (now - self._saved_at)) > STALE_SECONDS  # the ledger's times are wall time
        age = now - self._read_at
        if age > STALE_SECONDS or now - self._saved_at > SAVED_SECONDS or stepped:
            self.ledger.save(otherwise)
            raise SlurmUnavailable(f"{age:.0f} s went by after the reading of {self.node}: not written")
        self.not_after(STALE_SECONDS - age)

    def _seen(self, entry: Entry, mine: NodeState) -> Entry:
        """The entry of our drain, which stands."""
        known_before = entry.phase is Phase.DRAINED and not entry.sent and entry.written
        written = entry.written if known_before else max(1, mine.reason_time)
        return self._standing(replace(entry, phase=Phase.DRAINED, sent=0.0, written=written), mine)

    def _standing(self, entry: Entry, mine: NodeState) -> Entry:
        """The entry with what the last reading says of the drain that stands, ours or a person's in its place."""
        # One that is only requested waits for a job. In the same boot it never came: a person has resumed the node instead.
        asked = rebooting(mine.states) and ("REBOOT_ISSUED" in mine.states or not self.boot_id)
        reboot = Reboot.ASKED if asked else Reboot.OVER if reboot_mark(mine.reason) else Reboot.NONE
        by_wall = int(self._asked_at - SKEW_SECONDS)
        if self._stood[0] != entry.token.token:
            self._stood = (entry.token.token, max(mine.reason_time, by_wall if entry.seen else 0), self._asked)
        _, first, at = self._stood
        seen = max(mine.reason_time, min(by_wall, first + int(self._asked - at)))  # whatever is done to this node's clock
        known = entry.known if self.known is None else self.known
        return replace(entry, seen=seen, boot=self.boot_id, reboot=reboot, known=known, freed=False)

    def _sent(self, entry: Entry, mine: NodeState | None = None) -> Entry:
        """The entry of a drain that was written a moment ago and that no reading has shown: by now somebody else's words stand
        there, whose time is known (``mine``), or none."""
        at = max(1, mine.reason_time if mine is not None and mine.drained else int(self.wall() - SKEW_SECONDS))
        known = entry.known if self.known is None else self.known
        return replace(entry, phase=Phase.DRAINED, written=at, seen=at, boot=self.boot_id, known=known)

    def _rebooted(self, entry: Entry, mine: NodeState) -> str:
        """Why a reboot, and no person, may have lifted the drain that the entry names; "" for none."""
        if entry.boot and self.boot_id and entry.boot != self.boot_id:
            return "the node has booted since it was last seen drained"
        if entry.reboot is Reboot.ASKED:
            return "slurmctld was to reboot the node"
        if entry.reboot is Reboot.NONE and reboot_mark(mine.reason) and parse(mine.reason) in entry.texts:
            return "slurmctld has rebooted the node"
        return ""

    def _lost(self, entry: Entry, mine: NodeState) -> Lost:
        """Why slurmctld, and no person, may have lost the drain that the entry names. RPCs: 2 to 4.

        One that began after the drain was last seen standing may have begun without its state, or with an old one. It has not
        where it still knows something that was written after our drain and before that time. Where it began with this node's
        slurmd, somebody has reconfigured Slurm: that loses nothing, but who knows what came before it. So a person may have
        lifted the drain, and of what they may have known only the past counts. Else nothing of it can be told."""
        seen = entry.seen or entry.written or entry.since
        began = self.client.began()
        if began < seen:
            return Lost()
        if not mine.drained and mine.reason_time and parse(mine.reason) in entry.texts:
            return Lost()  # 24.11 without slurmdbd leaves our words where a person has lifted the drain
        stamps = {stamp.name: stamp for stamp in self.client.stamps()}
        own = stamps.pop(self.node, Stamp(name=self.node))
        if entry.written and any(entry.written < s.reason_time <= seen and s.reason_time < began for s in stamps.values()):
            return Lost()
        first, last = RECONFIGURE_SECONDS
        soon = began - seen <= RECONFIGURE_GAP_SECONDS and first <= own.slurmd_began - began <= last
        if soon and self.reconfigured():
            why = "slurmctld was reconfigured since it was last seen drained, and may have begun without its state before that"
            return Lost(why, tuple(name for name in entry.known if of_the_past(name)))
        return Lost("slurmctld has begun anew since it was last seen drained")

    def _freed(self, entry: Entry) -> Entry:
        """The entry of our drain that a person has lifted through fairlead: they know what is known now."""
        known = tuple(dict.fromkeys((*entry.known, *(self.known or ()))))
        return replace(entry, phase=Phase.DRAINED, freed=True, known=known)

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
        mine = self.client.node(self.node)
        self._read_at = self.clock()
        return mine

    def _nodes(self) -> tuple[NodeState, ...]:
        self._asked_at, self._asked = self.wall(), self.clock()
        listed = self.client.nodes()
        self._read_at = self.clock()
        return listed

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
