"""Knows this node's drain state in Slurm together with our ledger of it. It says who owns the drain, and which of our writes
may still be in flight or have been lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.drains.cluster_limits import ClusterLimits
from fairlead.drains.ledger import Ledger, LedgerEntry, Phase, RebootState
from fairlead.drains.node_writer import STALE_SECONDS, NodeWriter, owner_among
from fairlead.drains.outcome import Outcome, Result, result, who
from fairlead.errors import SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import Owner, Token, build, classify, keep_off, parse, reboot_mark, rebooting
from fairlead.policy.tracks import of_the_past
from fairlead.slurm.client import NodeState, NodeTimes, SlurmClient

SKEW_SECONDS = 5.0  # this node's clock and slurmctld's may differ by this much
# an intent in the ledger may be this old when it is written; its time says how long the write may arrive late
SAVED_SECONDS = 30.0
#: From 23.11 on `scontrol reconfigure` starts slurmctld again, and every slurmd in the same seconds.
RECONFIGURE_SECONDS = (0.0, 5.0)
RECONFIGURE_GAP_SECONDS = 150.0  # after a longer gap between readings, something else may have happened to slurmctld too


class DrainLoss(NamedTuple):
    """Says why a drain may have gone without a person's resume.

    why: "" when only a person can have lifted it. known: the names of the evidence that counts as acknowledged all the same.
    """

    why: str = ""
    known: tuple[str, ...] = ()


class NodeDrainState:
    """Holds what every step of the protocol needs to know of this node.

    writer: reads the node and guards what is written to it. hidden: says what Slurm has hidden under our reason since a Unix
    time. stranger: says why this machine is not that node. barred: says why nothing may be written now (an admin hold); it is
    asked while the ledger's lock is taken. Each of these three returns one line, or "" for nothing.

    boot_id: of this node, "" when it is not known. reconfigured: says whether `scontrol reconfigure` has started the node's
    slurmd again. known: the names of the evidence that is known now, or None when the caller knows of none; set it before each
    protocol.
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
        limits: ClusterLimits | None = None,
        boot_id: str = "",
        reconfigured: Callable[[], bool] = lambda: False,
        not_after: Callable[[float], None] = lambda seconds: None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer = NodeWriter(client, node, not_after=not_after, wall=wall, clock=clock)
        self.ledger = ledger
        self.node = node
        self.rules = rules
        self.hidden = hidden
        self.stranger = stranger
        self.barred = barred
        self.limits = limits or ClusterLimits(rules)
        self.boot_id = boot_id
        self.reconfigured = reconfigured
        self.known: tuple[str, ...] | None = None
        self.wall = wall
        self.clock = clock
        self._saved_at = self._saved_unix = 0.0
        # the token, the time of the first reading that showed it, and the clock at that reading
        self._confirmed_since: tuple[str, int, float] = ("", 0, 0.0)

    @property
    def client(self) -> SlurmClient:
        """Return the connection to slurmctld."""
        return self.writer.client

    def foresee(self, mine: NodeState, *, lift: bool) -> str:
        """Say in one line why a drain (``lift``: a resume) by hand would be refused now, or "" when nothing speaks against it.
        This writes nothing."""
        entry = self.ledger.load()
        owner, entry = self.owner_and_entry(mine, entry) if entry else (self.classify_owner(mine, None), None)
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            return f"{owner.value}: {who(mine)}"
        if not lift:
            return "" if mine.drained else keep_off(mine.states) or self.stranger(mine)
        return self.why_not_resume(mine, entry.since) if entry and mine.drained else "the node has no drain of fairlead's"

    def write(self, call: Callable[[], None], otherwise: LedgerEntry | None) -> None:
        """Write to slurmctld with ``call``, unless the last reading or the saved intent is too old to write on. Then the
        ledger is set to ``otherwise``, and this raises SlurmUnavailable, so that the caller tries again."""
        now = self.clock()
        # the ledger's times are wall-clock times
        stepped = abs(self.wall() - self._saved_unix - (now - self._saved_at)) > STALE_SECONDS
        try:
            self.writer.require_fresh(also=now - self._saved_at <= SAVED_SECONDS and not stepped)
        except SlurmUnavailable:
            self.ledger.save(otherwise)
            raise
        call()

    def drain(self, reason: str, *, otherwise: LedgerEntry | None) -> None:
        """Drain the node with this reason; ``otherwise``: see ``write``."""
        self.write(partial(self.client.drain, self.node, reason), otherwise)

    def resume(self, *, otherwise: LedgerEntry | None) -> None:
        """Lift the drain of the node; ``otherwise``: see ``write``."""
        self.write(partial(self.client.resume, self.node), otherwise)

    def mark_confirmed(self, entry: LedgerEntry, mine: NodeState) -> LedgerEntry:
        """Return the entry after the last reading has shown our drain."""
        known_before = entry.phase is Phase.DRAINED and not entry.sent and entry.written
        written = entry.written if known_before else max(1, mine.reason_time)
        return self.with_reading(replace(entry, phase=Phase.DRAINED, sent=0.0, written=written), mine)

    def with_reading(self, entry: LedgerEntry, mine: NodeState) -> LedgerEntry:
        """Return the entry with what the last reading says of the drain on the node, ours or a person's in its place."""
        # A reboot that is only requested waits for a job. If the node is still in the same boot, a person has resumed it instead.
        asked = rebooting(mine.states) and ("REBOOT_ISSUED" in mine.states or not self.boot_id)
        reboot = RebootState.ASKED if asked else RebootState.OVER if reboot_mark(mine.reason) else RebootState.NONE
        by_wall = int(self.writer.asked_unix - SKEW_SECONDS)
        if self._confirmed_since[0] != entry.token.token:
            self._confirmed_since = (entry.token.token, max(mine.reason_time, by_wall if entry.seen else 0), self.writer.asked)
        _, first, at = self._confirmed_since
        # this is right even when somebody sets this node's clock
        seen = max(mine.reason_time, min(by_wall, first + int(self.writer.asked - at)))
        known = entry.known if self.known is None else self.known
        return replace(entry, seen=seen, boot=self.boot_id, reboot=reboot, known=known, freed=False)

    def mark_written(self, entry: LedgerEntry, mine: NodeState | None = None) -> LedgerEntry:
        """Return the entry of a drain that was just written and that no reading has shown. The node now has somebody else's
        reason, whose time is known (``mine``), or no reason."""
        at = max(1, mine.reason_time if mine is not None and mine.drained else int(self.wall() - SKEW_SECONDS))
        known = entry.known if self.known is None else self.known
        return replace(entry, phase=Phase.DRAINED, written=at, seen=at, boot=self.boot_id, known=known)

    def why_rebooted(self, entry: LedgerEntry, mine: NodeState) -> str:
        """Say why a reboot, and not a person, may have lifted the drain that the entry names; "" when there is no such reason."""
        if entry.boot and self.boot_id and entry.boot != self.boot_id:
            return "the node has booted since the drain was last seen"
        if entry.reboot is RebootState.ASKED:
            return "slurmctld was to reboot the node"
        if entry.reboot is RebootState.NONE and reboot_mark(mine.reason) and parse(mine.reason) in entry.texts:
            return "slurmctld has rebooted the node"
        return ""

    def why_lost(self, entry: LedgerEntry, mine: NodeState) -> DrainLoss:
        """Return why slurmctld, and not a person, may have lost the drain that the entry names. This takes 2 to 4 RPCs.

        If slurmctld was already running when the drain was last seen, a person must have lifted it. If slurmctld started
        later, it may have started without its state, or with an old state, so the drain may be lost. The drain is not lost if
        slurmctld still knows something that was written after our drain and before the drain was last seen.

        If slurmctld started together with this node's slurmd, somebody has reconfigured Slurm, which loses nothing. But what
        happened before that is not known: a person may have lifted the drain. Then only the evidence of the past counts as
        acknowledged.
        """
        seen = entry.seen or entry.written or entry.since
        began = self.client.began()
        if began < seen:
            return DrainLoss()
        if not mine.drained and mine.reason_time and parse(mine.reason) in entry.texts:
            return DrainLoss()  # Slurm 24.11 without slurmdbd leaves our reason on the node when a person lifts the drain
        times = {each.name: each for each in self.client.node_times()}
        own = times.pop(self.node, NodeTimes(name=self.node))
        if entry.written and any(entry.written < s.reason_time <= seen and s.reason_time < began for s in times.values()):
            return DrainLoss()
        first, last = RECONFIGURE_SECONDS
        soon = began - seen <= RECONFIGURE_GAP_SECONDS and first <= own.slurmd_began - began <= last
        if soon and self.reconfigured():
            why = "slurmctld was reconfigured since the drain was last seen, and may have started without its state before that"
            return DrainLoss(why, tuple(name for name in entry.known if of_the_past(name)))
        return DrainLoss("slurmctld has started again since the drain was last seen")

    def mark_resumed_by_person(self, entry: LedgerEntry) -> LedgerEntry:
        """Return the entry of our drain after a person has lifted it through fairlead. That person knows all evidence that is
        known now."""
        known = tuple(dict.fromkeys((*entry.known, *(self.known or ()))))
        return replace(entry, phase=Phase.DRAINED, freed=True, known=known)

    def ledger_after(self, entry: LedgerEntry) -> LedgerEntry | None:
        """Return what the ledger has to say once the node is not drained by us: None, or an entry while a write may still
        arrive."""
        return entry.dropped(self.writer.asked_unix)

    def result_without_entry(self, mine: NodeState, *, edited: bool = False) -> Result:
        """Return the result for a node of which the ledger has no entry: it is free, or somebody else's. ``edited``: somebody
        has changed the words of a drain that the ledger does know."""
        owner = Owner.FOREIGN if edited else self.classify_owner(mine, None)
        return result(Outcome.FREE if owner is Owner.FREE else Outcome(owner.value), mine, who(mine))

    def why_not_resume(self, mine: NodeState, since: float) -> str:
        """Say why a drain of Unix time ``since`` may not be lifted now, or "" when it may be."""
        if why := keep_off(mine.states):
            return why
        if "INVALID_REG" in mine.states:  # slurmctld refuses a resume in this state
            return "slurmd registers with less than slurm.conf says (see scontrol show node)"
        if "DOWN" in mine.states:
            return "down in slurmctld: slurmd does not answer, or somebody set it"
        if "COMPLETING" in mine.states:
            return "a job is still completing: a step that cannot be killed, or an epilog that runs"
        return self.hidden(since)

    def classify_owner(self, mine: NodeState, token: Token | None, *, prolog_refused: bool = False) -> Owner:
        """Return who owns the node's state if ``token`` is our drain; see ``policy.ownership.classify``."""
        return classify(mine.states, mine.reason, mine.reason_user, token, self.rules, prolog_refused=prolog_refused)

    def owner_and_entry(self, mine: NodeState, entry: LedgerEntry, *, prolog_refused: bool = False) -> tuple[Owner, LedgerEntry]:
        """Return who owns the node's state, and the entry with the text that is on the node when several texts may be there."""
        texts = (entry.token, *entry.late)
        owner, token = owner_among(mine, texts, self.rules, prolog_refused=prolog_refused)
        if token is not None and token != entry.token:
            entry = entry.turned_to(token)
        if (owner is Owner.COVERED and not entry.ours) or (owner is Owner.OURS and entry.phase is Phase.TAKEN):
            return Owner.FOREIGN, entry  # nobody knows whose words slurmctld, or a late write of ours, has replaced
        return owner, entry

    def intend(self, before: LedgerEntry | None, check: str, summary: str, job: int | None) -> LedgerEntry:
        """Return the entry of a drain that is about to be written. ``before``: the ledger's entry until now."""
        token = build(check, secrets.token_hex(6), summary, job=job)
        now = self.time_of_save()
        return before.intend(token, now) if before else replace(self.new_entry(token, Phase.DRAINING), sent=now)

    def empty_entry(self) -> LedgerEntry:
        """Return an entry that says only that a write of ours may still arrive."""
        return self.new_entry(build("prolog", secrets.token_hex(6), "-"), Phase.DRAINING)

    def time_of_save(self) -> float:
        """Return the Unix time for the ledger. An intent that is saved now has to be written soon or not at all."""
        self._saved_at, self._saved_unix = self.clock(), self.wall()
        return self._saved_unix

    def new_entry(self, token: Token, phase: Phase) -> LedgerEntry:
        """Return a new entry of this node and machine."""
        return LedgerEntry(node=self.node, phase=phase, token=token, since=self.wall(), machine=self.ledger.machine)
