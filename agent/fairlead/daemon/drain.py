"""Drain and resume, so that no person's drain is lost and no drain of ours is forgotten.

slurmctld has no compare-and-swap: a second drain erases the first reason. So every change is read, intent on disk,
write, read back. Each protocol is a generator that yields the name of its next step *before* it takes it; ``outcome.finish``
runs one to its end, and the tests kill themselves between any two steps. What a killed agent left is settled by the
next start or attempt, from the ledger and one reading. RPCs: drain 5 (6 with its undoing), resume 5 (6), look 2; and 2
to 4 more where a drain that stood is gone.
"""

from __future__ import annotations

from collections.abc import Generator

from msgspec.structs import replace

from fairlead.daemon.ledger import Entry, Phase
from fairlead.daemon.outcome import Outcome, Result, Steps, erased, in_the_way, result, who
from fairlead.daemon.own_node import Lost, OwnNode
from fairlead.policy.drain_limits import DrainLimit
from fairlead.policy.ownership import MAINTAIN, MANUAL, PROLOG_ERROR, Owner, keep_off, parse
from fairlead.slurm.client import NodeState


class Drain(OwnNode):
    """The protocols of one node."""

    def drain(
        self, check: str, summary: str, *, job: int | None = None, certain: bool = False, prolog_refused: bool = False
    ) -> Steps:
        """Drain with a reason of ours, where nobody else holds the node and the rules across nodes leave room."""
        if why := self.barred():
            return Result(outcome=Outcome.HELD, detail=why)
        entry = before = self.ledger.load()
        if entry is None or entry.phase is Phase.DRAINING:
            entry = self._intent(before, check, summary, job)
            # Saved before the reading, not after it: nothing slow then stands between reading and writing.
            yield "save"
            self.ledger.save(entry)
        yield "read"
        listed = self._nodes()
        mine = self._own(listed)
        owner, entry = self._owner(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.COVERED:
            return Result(outcome=Outcome.DRAINED, detail=who(mine), states=mine.states)
        if owner is Owner.OURS and mine.drained:
            if check == MANUAL != entry.token.check:
                if why := keep_off(mine.states):
                    return result(Outcome.HELD, mine, why)
                return (yield from self._take_over(summary))
            return (yield from self._stand(entry, mine, listed))
        if entry.phase is not Phase.DRAINING:
            gone = yield from self._gone(entry, owner, mine)
            if check == MANUAL and gone.outcome not in (Outcome.FOREIGN, Outcome.HELD):
                return (yield from self.drain(check, summary))  # a person wants it drained, whoever has just resumed it
            return gone
        refusal: Result | None = None
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            refusal = result(Outcome(owner.value), mine, who(mine))
        elif why := keep_off(mine.states) or in_the_way(check, mine) or self.stranger(mine):
            refusal = result(Outcome.HELD, mine, why)
        elif hold := self.fleet.before(self.node, entry.token, listed, certain=certain):
            refusal = replace(result(Outcome.OVER_BUDGET, mine, hold.text), limit=hold)
        unsent = self._left(replace(entry, sent=0.0))
        if refusal is not None:
            yield "save"
            self.ledger.save(unsent)
            return replace(refusal, marked=owner is Owner.PROLOG_ERROR)
        yield "write"
        self._fresh(unsent)
        self.client.drain(self.node, entry.token.text)
        window = self.clock() - self._asked
        yield "read back"
        listed = self._nodes()
        mine = self._own(listed)
        entry = replace(entry, sent=0.0)
        owner, entry = self._owner(mine, entry)
        if owner is Owner.OURS:
            return replace((yield from self._stand(entry, mine, listed)), window_seconds=window)
        if mine.drained:  # else no reading has shown our drain: whoever lifted it has seen nothing of what it is for
            entry = self._sent(entry, mine)
        return replace((yield from self._gone(entry, owner, mine, again=False)), window_seconds=window)

    def _take_over(self, summary: str) -> Steps:
        """A person's words in place of the agent's own: the node is drained already, and from now on until that person
        says otherwise."""
        before = self.ledger.load()
        entry = self._sent(self._intent(before, MANUAL, summary, None))
        yield "save"
        self.ledger.save(entry)
        yield "write"
        self._fresh(before)
        self.client.drain(self.node, entry.token.text)
        yield "read back"
        mine = self._node()
        entry = replace(entry, sent=0.0)
        owner, entry = self._owner(mine, entry)
        if owner is Owner.OURS:
            return (yield from self._stand(replace(entry, phase=Phase.DRAINING), mine, ()))
        return (yield from self._gone(self._sent(entry, mine), owner, mine, again=False))

    def resume(self, *, by_hand: bool = False) -> Steps:
        """Lift our own drain, and only that. ``by_hand``: a person does; the ledger goes on naming the drain, so that the
        agent finds it lifted, running now or later, and takes that for an acknowledgement."""
        if why := self.barred():
            return Result(outcome=Outcome.HELD, detail=why)
        entry = self.ledger.load()
        if entry is not None and not by_hand and (entry.manual or entry.phase is Phase.DRAINING):
            return (yield from self.look())  # not what the order was for: somebody has drained it by hand since
        if entry is not None and entry.ours:
            # Saved before the reading, as a drain's intent is. By hand it goes on to say that our drain stands.
            now = self._saved()
            entry = replace(entry, phase=Phase.DRAINED) if by_hand else replace(entry, phase=Phase.RESUMING, lifting=now)
            yield "save"
            self.ledger.save(entry)
        yield "read"
        mine = self._node()
        if entry is None:
            return self._unknown(mine)
        owner, entry = self._owner(mine, entry)
        if owner not in (Owner.OURS, Owner.COVERED) or not mine.drained:
            if by_hand and owner is Owner.FREE and entry.phase is not Phase.DRAINING:
                yield "save"
                self.ledger.save(self._freed(entry))  # whoever or whatever has lifted it, a person wants it so
                return result(Outcome.ACKNOWLEDGED, mine, "resumed in Slurm")  # the agent is to hear of it too
            yield "save"
            return self._forget(replace(entry, lifting=0.0), owner, mine)
        why = self._not_yet(mine, entry.since)
        if owner is Owner.COVERED and not by_hand:
            why = why or f"slurmctld has replaced the reason, so a person has to resume it: {who(mine)}"
        if why:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.DRAINED, lifting=0.0))
            return result(Outcome.HELD, mine, why)
        ours = mine.reason
        yield "write"
        self._fresh(replace(entry, phase=Phase.DRAINED, lifting=0.0))
        self.client.resume(self.node)
        window = self.clock() - self._asked
        yield "read back"
        mine = self._node()
        entry = replace(entry, lifting=0.0)
        yield "save"
        if mine.drained:
            owner, entry = self._owner(mine, entry)
            if owner in (Owner.OURS, Owner.COVERED):
                self.ledger.save(replace(entry, phase=Phase.DRAINED))
                return replace(result(Outcome.HELD, mine, who(mine)), window_seconds=window)
            return replace(self._forget(entry, owner, mine), window_seconds=window)
        if theirs := erased(mine, ours):
            self.ledger.save(entry := replace(entry, phase=Phase.TAKEN, theirs=theirs, lifting=self.wall()))
            return replace((yield from self._put_back(entry, mine)), window_seconds=window)
        self.ledger.save(self._freed(entry) if by_hand else self._left(entry))
        return replace(result(Outcome.RESUMED, mine), window_seconds=window)

    def look(self, *, prolog_refused: bool = False, lift: bool = False, since: float = 0.0) -> Steps:
        """What stands in Slurm of what the ledger says; finishes or undoes what a killed agent began.

        prolog_refused: our prolog refused a job at Unix time ``since``: "Prolog error" is Slurm's mark for that.
        lift: jobs may run here, so the mark goes (RPCs: 5).
        """
        entry = self.ledger.load()
        nothing_stands = entry is None or entry.phase is Phase.DRAINING
        if lift and prolog_refused and nothing_stands:
            yield "save"
            self.ledger.save(replace(entry or self._nothing(), lifting=self._saved()))
        yield "read"
        if entry is not None and entry.phase in (Phase.DRAINING, Phase.UNDOING):
            listed = self._nodes()
            mine = self._own(listed)
        else:
            listed = ()
            mine = self._node()
        if prolog_refused and nothing_stands and self._classify(mine, None, prolog_refused=True) is Owner.PROLOG_ERROR:
            why = self._not_yet(mine, since) or self.barred() or self.stranger(mine) if lift else "no job may run here yet"
            if not why:
                return (yield from self._unmark(entry, mine))
            if lift:
                self.ledger.save(entry)
            return replace(result(Outcome.HELD, mine, f"{PROLOG_ERROR} stays: {why}"), marked=True)
        if lift and prolog_refused and nothing_stands:
            self.ledger.save(entry)
        if entry is None:
            return self._unknown(mine)
        owner, entry = self._owner(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.OURS and mine.drained:
            return (yield from self._stand(entry, mine, listed))
        if owner is Owner.COVERED:
            yield "save"
            self.ledger.save(self._standing(replace(entry, phase=Phase.DRAINED), mine))
            return result(Outcome.DRAINED, mine, who(mine))
        return (yield from self._gone(entry, owner, mine))

    def _unmark(self, before: Entry | None, marked: NodeState) -> Steps:
        """Lift Slurm's mark for our prolog's refusal. ``before``: what the ledger said until then."""
        yield "write"
        self._fresh(before)
        self.client.resume(self.node)
        window = self.clock() - self._asked
        yield "read back"
        mine = self._node()
        if not mine.drained and (theirs := erased(mine, marked.reason)):
            self.ledger.save(entry := replace(before or self._nothing(), theirs=theirs, lifting=self.wall()))
            return replace((yield from self._put_back(entry, mine)), window_seconds=window)
        self.ledger.save(before)
        if mine.drained:
            return replace(result(Outcome.FOREIGN, mine, who(mine)), window_seconds=window)
        return replace(result(Outcome.RESUMED, mine, "the mark of our prolog's refusal was lifted"), window_seconds=window)

    def _put_back(self, entry: Entry, mine: NodeState) -> Steps:
        """Our resume has lifted a drain with somebody's own words, which they had put over ours just before. 24.11 without
        slurmdbd leaves the words behind, which shows it. Done by the next look where it does not work at once."""
        yield "put back"
        self._fresh(entry)
        self.client.drain(self.node, entry.theirs)
        self.ledger.save(replace(self._standing(entry, mine), theirs="", lifting=0.0))
        return result(Outcome.FOREIGN, mine, f"put back: {entry.theirs}")

    def adopt(self) -> Steps:
        """Take over a drain of fairlead's form whose ledger was lost; the caller has asked a person."""
        yield "read"
        mine = self._node()
        found = parse(mine.reason)
        if found is None or found.text.startswith(MAINTAIN) or self._classify(mine, None) is not Owner.ORPHAN:
            return self._unknown(mine)  # a drain of maintenance is the admin host's: its node may be half changed
        yield "save"
        self.ledger.save(self._seen(self._entry(found, Phase.DRAINED), mine))
        return result(Outcome.DRAINED, mine, mine.reason)

    def _stand(self, entry: Entry, mine: NodeState, listed: tuple[NodeState, ...]) -> Steps:
        """Our drain is there: keep it, or undo it where it is past a limit that looks across nodes."""
        over: DrainLimit | None = None
        if listed and entry.phase in (Phase.DRAINING, Phase.UNDOING):
            over = self.fleet.after(self.node, entry.token, listed)
        if over is not None and over.wait:
            return replace(result(Outcome.CONTESTED, mine, over.text), limit=over)
        if over is not None:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.UNDOING, lifting=self._saved()))
            yield "undo"
            self._fresh(entry)
            self.client.resume(self.node)
            yield "save"
            self.ledger.save(self._left(replace(entry, sent=0.0)))
            return replace(result(Outcome.OVER_BUDGET, mine, over.text), limit=over, undone=True)
        stands = self._seen(entry, mine)
        if stands != entry:
            yield "save"
            self.ledger.save(stands)
        return result(Outcome.DRAINED, mine, entry.token.text)

    def _gone(self, entry: Entry, owner: Owner, mine: NodeState, *, again: bool = True) -> Steps:
        """Our drain, or one that we have just written, or a person's in its place, does not stand (any more). What a reboot
        has lifted or slurmctld has lost is acknowledged by nobody, and is to be made again: a person's drain (``again``)
        here, the agent's by its next order."""
        marked = owner is Owner.PROLOG_ERROR  # only on a node that is not drained: ours had gone before
        owner = Owner.FREE if marked else owner
        if entry.theirs and owner is Owner.FREE and entry.late_lift(self._asked_at) and not keep_off(mine.states):
            return (yield from self._put_back(entry, mine))
        lost = Lost()
        if entry.phase in (Phase.DRAINED, Phase.TAKEN) and not entry.freed and (mine.drained or not keep_off(mine.states)):
            again = again and entry.manual and entry.phase is Phase.DRAINED  # words in its place are not ours to write
            lost = yield from self._unasked(entry, mine)
            if lost.why and again and (why := self.barred()):
                return result(Outcome.HELD, mine, f"{lost.why}; the drain is not made again: {why}")
            if lost.why and owner is Owner.FREE:
                yield "save"
                self.ledger.save(self._left(entry))
                if again:
                    return (yield from self.drain(MANUAL, entry.token.summary))
                return replace(result(Outcome.LOST, mine, lost.why), marked=marked, known=lost.known)
            entry = replace(entry, phase=Phase.DRAINING, written=0) if lost.why else entry
        yield "save"
        return replace(self._forget(entry, owner, mine), marked=marked)

    def _unasked(self, entry: Entry, mine: NodeState) -> Generator[str, None, Lost]:
        """Why the drain that stood may have gone without a person's resume."""
        if entry.phase is Phase.TAKEN and mine.drained and mine.reason_time == entry.written:
            return Lost()  # the same words of a person as before
        if why := self._rebooted(entry, mine):
            return Lost(why)
        yield "ask"
        return self._lost(entry, mine)

    def _forget(self, entry: Entry, owner: Owner, mine: NodeState) -> Result:
        """The node is not drained by us (any more): by whom, or by nobody; and what that means."""
        stood = entry.phase in (Phase.DRAINED, Phase.TAKEN)
        why = keep_off(mine.states) if not mine.drained and (stood or entry.phase is Phase.RESUMING) else ""
        if why and (owner in (Owner.FREE, Owner.OURS) or why.startswith("power")):
            if not why.startswith(("power", "down")):
                return result(Outcome.HELD, mine, f"{why}: who lifted the drain is seen when that is over")
            # slurmctld clears DRAIN itself when it powers a node down or waits in vain for one (its power_save.c).
            self.ledger.save(self._left(entry))
            return result(Outcome.HELD, mine, f"{why}: slurmctld has lifted the drain, nobody has resumed the node")
        if owner is not Owner.FREE and not (owner is Owner.OURS and not mine.drained):
            taken = entry.phase is not Phase.DRAINING and owner is not Owner.PROLOG_ERROR
            theirs = replace(self._standing(entry, mine), phase=Phase.TAKEN, written=mine.reason_time)
            self.ledger.save(theirs if taken else self._left(entry))
            return result(Outcome.FOREIGN, mine, who(mine))
        self.ledger.save(self._left(entry))
        if entry.phase is Phase.DRAINED and entry.late_lift(self._asked_at):
            return result(Outcome.RESUMED, mine, "a resume of ours that was not answered has arrived")
        if stood:
            return replace(result(Outcome.ACKNOWLEDGED, mine, "resumed in Slurm"), known=entry.known)
        return result(Outcome.FREE if entry.phase is Phase.DRAINING else Outcome.RESUMED, mine)
