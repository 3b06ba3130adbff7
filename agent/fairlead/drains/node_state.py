"""Compares this node's drain state in Slurm with the ledger. It finds out who has drained the node, and which writes of
fairlead may still arrive or were lost.

"Our drain" is a drain that fairlead has set on this node.
"""

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
# An intent in the ledger may be at most this old when it is written to slurmctld, because its time limits how late the write may
# arrive.
SAVED_SECONDS = 30.0
#: From Slurm 23.11 on, `scontrol reconfigure` restarts slurmctld, and every slurmd within these seconds after slurmctld.
RECONFIGURE_SECONDS = (0.0, 5.0)
RECONFIGURE_GAP_SECONDS = 150.0  # after a longer gap between readings, something else may have happened to slurmctld too


class DrainLoss(NamedTuple):
    """Describes why a drain may have disappeared although no person resumed the node.

    why: the cause, or "" if only a person can have lifted the drain. known: the names of the evidence that still counts as
    acknowledged.
    """

    why: str = ""
    known: tuple[str, ...] = ()


class NodeDrainState:
    """Holds what every step of the protocol needs to know of this node.

    writer: reads the node, and allows a write only after a fresh reading. hidden: returns what has failed on the node since a
    Unix time and is not shown by Slurm because our drain is set. stranger: returns why this machine is not that node. barred:
    returns why nothing may be written now, such as an admin hold. It is called while the ledger is locked. Each of these three
    functions returns one line, or "" if there is nothing to report.

    boot_id: this node's boot id, or "" if it is not known. reconfigured: returns whether `scontrol reconfigure` has restarted
    the node's slurmd. known: the names of the evidence that is known now, or None to keep the names in the ledger. The caller
    sets it before each protocol.
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
        """Return in one line why a drain by a person would be refused now, or "" if it would not be. With ``lift``, do so for a
        resume. This writes nothing."""
        entry = self.ledger.load()
        owner, entry = self.owner_and_entry(mine, entry) if entry else (self.classify_owner(mine, None), None)
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            return f"{owner.value}: {who(mine)}"
        if not lift:
            return "" if mine.drained else keep_off(mine.states) or self.stranger(mine)
        return self.why_not_resume(mine, entry.since) if entry and mine.drained else "the node has no drain of fairlead's"

    def write(self, call: Callable[[], None], otherwise: LedgerEntry | None) -> None:
        """Write to slurmctld with ``call``. If the last reading or the saved intent is too old for that, save ``otherwise`` in
        the ledger and raise SlurmUnavailable. The caller then tries again."""
        now = self.clock()
        # the times in the ledger are wall-clock times, so a step of that clock makes the saved intent unusable
        stepped = abs(self.wall() - self._saved_unix - (now - self._saved_at)) > STALE_SECONDS
        try:
            self.writer.require_fresh(also=now - self._saved_at <= SAVED_SECONDS and not stepped)
        except SlurmUnavailable:
            self.ledger.save(otherwise)
            raise
        call()

    def drain(self, reason: str, *, otherwise: LedgerEntry | None) -> None:
        """Drain the node with this reason. ``otherwise``: see ``write``."""
        self.write(partial(self.client.drain, self.node, reason), otherwise)

    def resume(self, *, otherwise: LedgerEntry | None) -> None:
        """Lift the drain of the node. ``otherwise``: see ``write``."""
        self.write(partial(self.client.resume, self.node), otherwise)

    def mark_confirmed(self, entry: LedgerEntry, mine: NodeState) -> LedgerEntry:
        """Return the entry after the last reading has shown our drain."""
        known_before = entry.phase is Phase.DRAINED and not entry.sent and entry.written
        written = entry.written if known_before else max(1, mine.reason_time)
        return self.with_reading(replace(entry, phase=Phase.DRAINED, sent=0.0, written=written), mine)

    def with_reading(self, entry: LedgerEntry, mine: NodeState) -> LedgerEntry:
        """Return the entry with the data of the last reading. That reading shows our drain, or a person's drain in its place."""
        # A reboot that is requested and not issued waits for a job. If the drain is then gone and the boot id is the same, a
        # person has resumed the node.
        asked = rebooting(mine.states) and ("REBOOT_ISSUED" in mine.states or not self.boot_id)
        reboot = RebootState.ASKED if asked else RebootState.OVER if reboot_mark(mine.reason) else RebootState.NONE
        by_wall = int(self.writer.asked_unix - SKEW_SECONDS)
        if self._confirmed_since[0] != entry.token.token:
            self._confirmed_since = (entry.token.token, max(mine.reason_time, by_wall if entry.seen else 0), self.writer.asked)
        _, first, at = self._confirmed_since
        # ``seen`` is right even if somebody sets this node's clock
        seen = max(mine.reason_time, min(by_wall, first + int(self.writer.asked - at)))
        known = entry.known if self.known is None else self.known
        return replace(entry, seen=seen, boot=self.boot_id, reboot=reboot, known=known, freed=False)

    def mark_written(self, entry: LedgerEntry, mine: NodeState | None = None) -> LedgerEntry:
        """Return the entry of a drain that was just written and that no reading has shown.

        ``mine``: the last reading. If it shows a drain by somebody else, the entry gets the time of that drain. Otherwise it
        gets a time shortly before now.
        """
        at = max(1, mine.reason_time if mine is not None and mine.drained else int(self.wall() - SKEW_SECONDS))
        known = entry.known if self.known is None else self.known
        return replace(entry, phase=Phase.DRAINED, written=at, seen=at, boot=self.boot_id, known=known)

    def why_rebooted(self, entry: LedgerEntry, mine: NodeState) -> str:
        """Return why a reboot may have lifted the drain of the entry, or "" if no reboot can have done that."""
        if entry.boot and self.boot_id and entry.boot != self.boot_id:
            return "the node has booted since the drain was last seen"
        if entry.reboot is RebootState.ASKED:
            return "slurmctld was to reboot the node"
        if entry.reboot is RebootState.NONE and reboot_mark(mine.reason) and parse(mine.reason) in entry.texts:
            return "slurmctld has rebooted the node"
        return ""

    def why_lost(self, entry: LedgerEntry, mine: NodeState) -> DrainLoss:
        """Return why slurmctld may have lost the drain of the entry although no person lifted it. This takes 2 to 4 RPCs.

        If slurmctld was already running when the drain was last seen, a person must have lifted it. If slurmctld started
        later, it may have started without its state, or with an old state, so the drain may be lost. The drain is not lost if
        slurmctld still knows something that was written after our drain and before the drain was last seen.

        If slurmctld started together with this node's slurmd, somebody has reconfigured Slurm, which loses nothing. But it is
        not known what happened before that: a person may have lifted the drain. So only evidence about past events, which is a
        kernel record, counts as acknowledged.
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
        """Return the entry of our drain after a person has lifted it through fairlead. That person acknowledges all evidence that
        is known now."""
        known = tuple(dict.fromkeys((*entry.known, *(self.known or ()))))
        return replace(entry, phase=Phase.DRAINED, freed=True, known=known)

    def ledger_after(self, entry: LedgerEntry) -> LedgerEntry | None:
        """Return the entry to save when our drain is not on the node any more. While a write of ours may still arrive, return an
        entry, else None."""
        return entry.dropped(self.writer.asked_unix)

    def result_without_entry(self, mine: NodeState, *, edited: bool = False) -> Result:
        """Return the result for a node without an entry in the ledger. Nobody has drained it, or somebody else has. ``edited``:
        True if somebody has changed the words of a drain that is in the ledger."""
        owner = Owner.FOREIGN if edited else self.classify_owner(mine, None)
        return result(Outcome.FREE if owner is Owner.FREE else Outcome(owner.value), mine, who(mine))

    def why_not_resume(self, mine: NodeState, since: float) -> str:
        """Return why a drain that began at Unix time ``since`` may not be lifted now, or "" if it may be lifted."""
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
        """Return who owns the node's state if ``token`` is the text of our drain. See ``policy.ownership.classify``."""
        return classify(mine.states, mine.reason, mine.reason_user, token, self.rules, prolog_refused=prolog_refused)

    def owner_and_entry(self, mine: NodeState, entry: LedgerEntry, *, prolog_refused: bool = False) -> tuple[Owner, LedgerEntry]:
        """Return who owns the node's state, and the entry. If one of several texts of ours is on the node, the entry gets that
        text as its ``token``."""
        texts = (entry.token, *entry.late)
        owner, token = owner_among(mine, texts, self.rules, prolog_refused=prolog_refused)
        if token is not None and token != entry.token:
            entry = entry.turned_to(token)
        if (owner is Owner.COVERED and not entry.ours) or (owner is Owner.OURS and entry.phase is Phase.TAKEN):
            # slurmctld, or a late write of ours, has replaced a reason, and it is not known who wrote that reason
            return Owner.FOREIGN, entry
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
        """Return the Unix time to save in the ledger. An intent that is saved now must be written to slurmctld within
        ``SAVED_SECONDS``, or not at all."""
        self._saved_at, self._saved_unix = self.clock(), self.wall()
        return self._saved_unix

    def new_entry(self, token: Token, phase: Phase) -> LedgerEntry:
        """Return a new entry of this node and machine."""
        return LedgerEntry(node=self.node, phase=phase, token=token, since=self.wall(), machine=self.ledger.machine)
