"""Drains and resumes a node so that no drain by a person is lost and no drain by fairlead is forgotten.

"Our drain" is a drain that fairlead has set on this node, and "our prolog" is fairlead's prolog. slurmctld has no
compare-and-swap: a second drain erases the first reason. So every change has the same steps: save the intent to disk, read,
write, read back. Each protocol is a generator that yields the name of its next step *before* that step. ``outcome.finish`` runs
a protocol to its end, and tests end the process between any two steps. If an agent was killed, the next start or attempt
completes or undoes the change with the ledger and one reading.

A drain takes 5 RPCs, or 6 if it is undone. A resume takes 5 or 6 RPCs. Reconciling takes 2 RPCs. If a confirmed drain is gone, 2
to 4 more RPCs follow.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec.structs import replace

from fairlead.drains.cluster_limits import ClusterLimits
from fairlead.drains.ledger import Ledger, LedgerEntry, Phase, RebootState
from fairlead.drains.node_state import DrainLoss, NodeDrainState
from fairlead.drains.outcome import Outcome, Result, Steps, erased, in_the_way, result, who
from fairlead.drains.read_write_read import write_and_read_back
from fairlead.policy.drain_limits import DrainLimit
from fairlead.policy.ownership import MAINTAIN, MANUAL, PROLOG_ERROR, Owner, keep_off, keep_off_drain, parse, strip_suffixes
from fairlead.slurm.client import NodeState


class DrainProtocol:
    """Drains, resumes and reconciles one node. ``state``: the node's drain state in Slurm, with its ledger."""

    def __init__(self, state: NodeDrainState) -> None:
        self.state = state

    @property
    def node(self) -> str:
        """Return the node's name in Slurm."""
        return self.state.node

    @property
    def ledger(self) -> Ledger:
        """Return the ledger, in which fairlead saves what it writes about the node to slurmctld."""
        return self.state.ledger

    @property
    def limits(self) -> ClusterLimits:
        """Return the drain limits, which are rules over several nodes."""
        return self.state.limits

    def drain(
        self, check: str, summary: str, *, job: int | None = None, certain: bool = False, prolog_refused: bool = False
    ) -> Steps:
        """Drain the node with a reason of fairlead's form, if nobody else has drained it and the drain limits leave room."""
        if why := self.state.barred():
            return Result(outcome=Outcome.BLOCKED, detail=why)
        entry = before = self.ledger.load()
        if entry is None or entry.phase is Phase.DRAINING:
            entry = self.state.intend(before, check, summary, job)
            # The intent is saved before the reading, so that nothing slow happens between reading and writing.
            yield "save"
            self.ledger.save(entry)
        yield "read"
        listed = self.state.writer.read_all()
        mine = self.state.writer.find(listed)
        owner, entry = self.state.owner_and_entry(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.COVERED:
            return Result(outcome=Outcome.DRAINED, detail=who(mine), states=mine.states)
        if owner is Owner.OURS and mine.drained:
            if check == MANUAL != entry.token.check:
                if why := keep_off(mine.states):
                    return result(Outcome.BLOCKED, mine, why)
                return (yield from self._replace_agents_reason(summary))
            return (yield from self._on_still_drained(entry, mine, listed))
        if entry.phase is not Phase.DRAINING:
            missing = yield from self._on_drain_missing(entry, owner, mine)
            if check == MANUAL and missing.outcome not in (Outcome.FOREIGN, Outcome.BLOCKED):
                # a person wants the node drained, even if somebody has just resumed it
                return (yield from self.drain(check, summary))
            return missing
        refusal: Result | None = None
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            refusal = result(Outcome(owner.value), mine, who(mine))
        elif why := keep_off_drain(mine.states) or in_the_way(check, mine) or self.state.stranger(mine):
            refusal = result(Outcome.BLOCKED, mine, why)
        elif hold := self.state.limits.why_no_room(self.node, entry.token, listed, certain=certain):
            refusal = replace(result(Outcome.OVER_BUDGET, mine, hold.text), limit=hold)
        unsent = self.state.ledger_after(replace(entry, sent=0.0))
        if refusal is not None:
            yield "save"
            self.ledger.save(unsent)
            return replace(refusal, marked=owner is Owner.PROLOG_ERROR)
        write = partial(self.state.drain, entry.token.text, otherwise=unsent)
        listed = yield from write_and_read_back(self.state.writer, write, self.state.writer.read_all)
        window = self.state.writer.window_seconds
        mine = self.state.writer.find(listed)
        entry = replace(entry, sent=0.0)
        owner, entry = self.state.owner_and_entry(mine, entry)
        if owner is Owner.OURS:
            return replace((yield from self._on_still_drained(entry, mine, listed)), window_seconds=window)
        if mine.drained:  # otherwise no reading has shown our drain, so the person who lifted it cannot have seen its reason
            entry = self.state.mark_written(entry, mine)
        return replace((yield from self._on_drain_missing(entry, owner, mine, again=False)), window_seconds=window)

    def _replace_agents_reason(self, summary: str) -> Steps:
        """Replace the agent's reason by a person's reason. The node is drained already, and from now on it stays drained until a
        person resumes it."""
        before = self.ledger.load()
        entry = self.state.mark_written(self.state.intend(before, MANUAL, summary, None))
        yield "save"
        self.ledger.save(entry)
        write = partial(self.state.drain, entry.token.text, otherwise=before)
        mine = yield from write_and_read_back(self.state.writer, write, self.state.writer.read)
        entry = replace(entry, sent=0.0)
        owner, entry = self.state.owner_and_entry(mine, entry)
        if owner is Owner.OURS:
            return (yield from self._on_still_drained(replace(entry, phase=Phase.DRAINING), mine, ()))
        return (yield from self._on_drain_missing(self.state.mark_written(entry, mine), owner, mine, again=False))

    def resume(self, *, by_hand: bool = False) -> Steps:
        """Lift our own drain, and no other drain.

        ``by_hand``: True if a person resumes the node. The drain then stays in the ledger. The agent, when it runs, finds that
        the drain was lifted, and counts this as an acknowledgement.
        """
        if why := self.state.barred():
            return Result(outcome=Outcome.BLOCKED, detail=why)
        entry = self.ledger.load()
        if entry is not None and not by_hand and (entry.manual or entry.phase is Phase.DRAINING):
            return (yield from self.reconcile())  # the order is stale: a person has run `fairlead drain` since
        if entry is not None and entry.ours:
            # The intent is saved before the reading, as for a drain. If a person resumes, the phase in the ledger stays DRAINED.
            now = self.state.time_of_save()
            entry = replace(entry, phase=Phase.DRAINED) if by_hand else replace(entry, phase=Phase.RESUMING, lifting=now)
            yield "save"
            self.ledger.save(entry)
        yield "read"
        mine = self.state.writer.read()
        if entry is None:
            return self.state.result_without_entry(mine)
        owner, entry = self.state.owner_and_entry(mine, entry)
        if owner not in (Owner.OURS, Owner.COVERED) or not mine.drained:
            if by_hand and owner is Owner.FREE and entry.phase is not Phase.DRAINING:
                yield "save"
                # Something has lifted the drain already, and a person wants it lifted. The agent reads this in the ledger.
                self.ledger.save(self.state.mark_resumed_by_person(entry))
                return result(Outcome.ACKNOWLEDGED, mine, "resumed in Slurm")
            yield "save"
            return self._drop_entry(replace(entry, lifting=0.0), owner, mine)
        why = self.state.why_not_resume(mine, entry.since)
        if owner is Owner.COVERED and not by_hand:
            why = why or f"slurmctld has replaced the reason, so a person has to resume it: {who(mine)}"
        if why:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.DRAINED, lifting=0.0))
            return result(Outcome.BLOCKED, mine, why)
        ours = mine.reason
        write = partial(self.state.resume, otherwise=replace(entry, phase=Phase.DRAINED, lifting=0.0))
        mine = yield from write_and_read_back(self.state.writer, write, self.state.writer.read)
        window = self.state.writer.window_seconds
        entry = replace(entry, lifting=0.0)
        yield "save"
        if mine.drained:
            owner, entry = self.state.owner_and_entry(mine, entry)
            if owner in (Owner.OURS, Owner.COVERED):
                self.ledger.save(replace(entry, phase=Phase.DRAINED))
                return replace(result(Outcome.BLOCKED, mine, who(mine)), window_seconds=window)
            return replace(self._drop_entry(entry, owner, mine), window_seconds=window)
        if theirs := erased(mine, ours):
            self.ledger.save(entry := replace(entry, phase=Phase.TAKEN, theirs=theirs, lifting=self.state.wall()))
            return replace((yield from self._put_back(entry, mine)), window_seconds=window)
        self.ledger.save(self.state.mark_resumed_by_person(entry) if by_hand else self.state.ledger_after(entry))
        return replace(result(Outcome.RESUMED, mine), window_seconds=window)

    def reconcile(self, *, prolog_refused: bool = False, lift: bool = False, since: float = 0.0) -> Steps:
        """Compare slurmctld's state with the ledger, and complete or undo a change that a killed agent has begun.

        prolog_refused: True if our prolog refused a job, at Unix time ``since``. slurmctld drains the node for that with the
        reason "Prolog error". lift: True if jobs may run here, so that this drain "Prolog error" is lifted (5 RPCs).
        """
        entry = self.ledger.load()
        no_drain_known = entry is None or entry.phase is Phase.DRAINING
        if lift and prolog_refused and no_drain_known:
            yield "save"
            self.ledger.save(replace(entry or self.state.empty_entry(), lifting=self.state.time_of_save()))
        yield "read"
        if entry is not None and entry.phase in (Phase.DRAINING, Phase.UNDOING):
            listed = self.state.writer.read_all()
            mine = self.state.writer.find(listed)
        else:
            listed = ()
            mine = self.state.writer.read()
        marked = prolog_refused and self.state.classify_owner(mine, None, prolog_refused=True) is Owner.PROLOG_ERROR
        if marked and no_drain_known:
            why = self._why_mark_stays(mine, since) if lift else "no job may run here yet"
            if not why:
                return (yield from self._lift_prolog_mark(entry, mine))
            if lift:
                self.ledger.save(entry)
            return replace(result(Outcome.BLOCKED, mine, f"{PROLOG_ERROR} stays: {why}"), marked=True)
        if lift and prolog_refused and no_drain_known:
            self.ledger.save(entry)
        if entry is None:
            return self.state.result_without_entry(mine)
        owner, entry = self.state.owner_and_entry(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.OURS and mine.drained:
            return (yield from self._on_still_drained(entry, mine, listed))
        if owner is Owner.COVERED:
            yield "save"
            self.ledger.save(self.state.with_reading(replace(entry, phase=Phase.DRAINED), mine))
            return result(Outcome.DRAINED, mine, who(mine))
        return (yield from self._on_drain_missing(entry, owner, mine))

    def _why_mark_stays(self, mine: NodeState, since: float) -> str:
        """Return why the drain "Prolog error" may not be lifted now, or "" if it may be lifted."""
        return self.state.why_not_resume(mine, since) or self.state.barred() or self.state.stranger(mine)

    def _lift_prolog_mark(self, before: LedgerEntry | None, marked: NodeState) -> Steps:
        """Lift the drain "Prolog error" that slurmctld has set because our prolog refused a job. ``before``: the ledger's entry,
        which is saved again after the resume."""
        write = partial(self.state.resume, otherwise=before)
        mine = yield from write_and_read_back(self.state.writer, write, self.state.writer.read)
        window = self.state.writer.window_seconds
        if not mine.drained and (theirs := erased(mine, marked.reason)):
            self.ledger.save(entry := replace(before or self.state.empty_entry(), theirs=theirs, lifting=self.state.wall()))
            return replace((yield from self._put_back(entry, mine)), window_seconds=window)
        self.ledger.save(before)
        if mine.drained:
            return replace(result(Outcome.FOREIGN, mine, who(mine)), window_seconds=window)
        return replace(result(Outcome.RESUMED, mine, "the mark of our prolog's refusal was lifted"), window_seconds=window)

    def _put_back(self, entry: LedgerEntry, mine: NodeState) -> Steps:
        """Drain the node again with a person's reason. That person had replaced our reason just before our resume lifted the
        drain. Slurm 24.11 without slurmdbd leaves the person's reason on the node, so fairlead can read it. If this fails, the
        next call of ``reconcile`` tries again."""
        yield "put back"
        self.state.drain(entry.theirs, otherwise=entry)
        self.ledger.save(replace(self.state.with_reading(entry, mine), theirs="", lifting=0.0))
        return result(Outcome.FOREIGN, mine, f"put back: {entry.theirs}")

    def adopt(self) -> Steps:
        """Take over a drain with a reason of fairlead's form that is not in the ledger. The caller has asked a person first."""
        yield "read"
        mine = self.state.writer.read()
        found = parse(mine.reason)
        if found is None or not self.adoptable(mine):
            return self.state.result_without_entry(mine, edited=self._edited(mine))
        yield "save"
        self.ledger.save(self.state.mark_confirmed(self.state.new_entry(found, Phase.DRAINED), mine))
        return result(Outcome.DRAINED, mine, mine.reason)

    def adoptable(self, mine: NodeState) -> bool:
        """Return whether a drain with a reason of fairlead's form may be taken over.

        A drain of maintenance may not: it belongs to the admin host, and its node may be half changed. A drain in this ledger
        whose words somebody has changed may not be taken over either, because it now belongs to that person.
        """
        if mine.reason.startswith(MAINTAIN) or self._edited(mine):
            return False
        return self.state.classify_owner(mine, None) is Owner.ORPHAN

    def _edited(self, mine: NodeState) -> bool:
        """Return whether the reason has the token of a drain in the ledger, but other words."""
        entry, found = self.ledger.load(), parse(mine.reason)
        known = entry.texts if entry is not None else ()
        return found is not None and found not in known and found.token in {token.token for token in known}

    def _on_still_drained(self, entry: LedgerEntry, mine: NodeState, listed: tuple[NodeState, ...]) -> Steps:
        """Keep our drain, which a reading has just shown, or undo it if it exceeds a drain limit."""
        over: DrainLimit | None = None
        if listed and entry.phase in (Phase.DRAINING, Phase.UNDOING):
            over = self.state.limits.why_not_keep(self.node, entry.token, listed)
        if over is not None and over.wait:
            return replace(result(Outcome.CONTESTED, mine, over.text), limit=over)
        if over is not None:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.UNDOING, lifting=self.state.time_of_save()))
            yield "undo"
            self.state.resume(otherwise=entry)
            yield "save"
            self.ledger.save(self.state.ledger_after(replace(entry, sent=0.0)))
            return replace(result(Outcome.OVER_BUDGET, mine, over.text), limit=over, undone=True)
        confirmed = self.state.mark_confirmed(entry, mine)
        if confirmed != entry:
            yield "save"
            self.ledger.save(confirmed)
        return result(Outcome.DRAINED, mine, entry.token.text)

    def _on_drain_missing(self, entry: LedgerEntry, owner: Owner, mine: NodeState, *, again: bool = True) -> Steps:
        """Find out who lifted the drain in the ledger, and record the result in the ledger.

        The last reading does not show that drain. It is our drain, a drain that we have just written, or a person's drain in
        place of ours. If a reboot has lifted the drain or slurmctld has lost it, nobody has acknowledged the drain, so the node
        is drained again. With ``again``, this method drains it again if a person had drained it through fairlead. A drain of
        the agent is made again by the agent's next order.
        """
        marked = owner is Owner.PROLOG_ERROR  # slurmctld sets it only on a node without a drain, so our drain was gone before
        owner = Owner.FREE if marked else owner
        if entry.theirs and owner is Owner.FREE and entry.late_lift(self.state.writer.asked_unix) and not keep_off(mine.states):
            return (yield from self._put_back(entry, mine))
        lost = DrainLoss()
        if entry.phase in (Phase.DRAINED, Phase.TAKEN) and not entry.freed and (mine.drained or not keep_off_drain(mine.states)):
            # a reason that replaced our reason belongs to a person, and fairlead does not write it again
            again = again and entry.manual and entry.phase is Phase.DRAINED
            lost = yield from self._why_not_by_a_person(entry, mine)
            if lost.why and again and (why := self.state.barred()):
                return result(Outcome.BLOCKED, mine, f"{lost.why}; the drain is not made again: {why}")
            if lost.why and owner is Owner.FREE:
                yield "save"
                self.ledger.save(self.state.ledger_after(entry))
                if again:
                    return (yield from self.drain(MANUAL, entry.token.summary))
                return replace(result(Outcome.LOST, mine, lost.why), marked=marked, known=lost.known)
            entry = replace(entry, phase=Phase.DRAINING, written=0) if lost.why else entry
        yield "save"
        return replace(self._drop_entry(entry, owner, mine), marked=marked)

    def _why_not_by_a_person(self, entry: LedgerEntry, mine: NodeState) -> Generator[str, None, DrainLoss]:
        """Return why the drain may have disappeared although no person resumed the node."""
        if entry.phase is Phase.TAKEN and mine.drained and mine.reason_time == entry.written:
            return DrainLoss()  # the node still has the same reason of a person
        if not mine.drained and (why := keep_off(mine.states)):
            return DrainLoss(f"{why}: slurmctld has lifted the drain, nobody has resumed the node")
        if why := self.state.why_rebooted(entry, mine):
            return DrainLoss(why)
        yield "ask"
        return self.state.why_lost(entry, mine)

    def _drop_entry(self, entry: LedgerEntry, owner: Owner, mine: NodeState) -> Result:
        """Remove the entry from the ledger, because our drain is not on the node any more. The result says who else has drained
        the node, if somebody has."""
        confirmed = entry.phase in (Phase.DRAINED, Phase.TAKEN)
        why = keep_off(mine.states) if not mine.drained and (confirmed or entry.phase is Phase.RESUMING) else ""
        if why and (owner in (Owner.FREE, Owner.OURS) or why.startswith("power")):
            if not why.startswith(("power", "down")):
                return result(Outcome.BLOCKED, mine, f"{why}: fairlead sees who lifted the drain when that is over")
            # slurmctld clears DRAIN itself when it powers a node down or waits in vain for a node (power_save.c of Slurm). A
            # person's drain stays in the ledger, as before a reboot, so that it is made again when the node is back.
            by_person = entry.manual and entry.phase is Phase.DRAINED and not entry.freed and why.startswith("power")
            self.ledger.save(replace(entry, reboot=RebootState.ASKED) if by_person else self.state.ledger_after(entry))
            return result(Outcome.BLOCKED, mine, f"{why}: slurmctld has lifted the drain, nobody has resumed the node")
        if owner is not Owner.FREE and not (owner is Owner.OURS and not mine.drained):
            taken = entry.phase is not Phase.DRAINING and owner is not Owner.PROLOG_ERROR
            theirs = replace(self.state.with_reading(entry, mine), phase=Phase.TAKEN, written=mine.reason_time)
            if strip_suffixes(mine.reason) == PROLOG_ERROR:
                # slurmctld has set this reason after the resume. If our own prolog caused it, the agent lifts it. That lift must
                # not acknowledge evidence that is newer than our drain, so the known evidence stays that of the entry.
                theirs = replace(theirs, known=entry.known)
            self.ledger.save(theirs if taken else self.state.ledger_after(entry))
            return result(Outcome.FOREIGN, mine, who(mine))
        self.ledger.save(self.state.ledger_after(entry))
        if entry.phase is Phase.DRAINED and entry.late_lift(self.state.writer.asked_unix):
            return result(Outcome.RESUMED, mine, "a resume of ours that slurmctld had not answered has arrived")
        if confirmed:
            return replace(result(Outcome.ACKNOWLEDGED, mine, "resumed in Slurm"), known=entry.known)
        return result(Outcome.FREE if entry.phase is Phase.DRAINING else Outcome.RESUMED, mine)
