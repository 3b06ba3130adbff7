"""Drain and resume, so that no person's drain is lost and no drain of ours is forgotten.

slurmctld has no compare-and-swap: a second drain erases the first reason. So every change is read, intent on disk,
write, read back. Each protocol is a generator that yields the name of its next step *before* it takes it; ``outcome.finish``
runs one to its end, and the tests kill themselves between any two steps. What a killed agent left is settled by the
next start or attempt, from the ledger and one reading. RPCs: drain 5 (6 with its undoing), resume 5 (6), look 2.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec.structs import replace

from fairlead.daemon.fleet import Fleet
from fairlead.daemon.ledger import Entry, Ledger, Phase
from fairlead.daemon.outcome import Outcome, Result, Steps, erased, in_the_way, result, who
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.fleet import Hold
from fairlead.policy.ownership import MANUAL, PROLOG_ERROR, Owner, Token, build, classify, keep_off, parse
from fairlead.policy.rules import Rules
from fairlead.slurm.client import NodeState, SlurmClient

STALE_SECONDS = 2.0  # how long a reading is good for: it bounds the window in which another's change could be overwritten
SAVED_SECONDS = 30.0  # and the intent in the ledger, whose time says until when what was sent may still arrive


class Drain:
    """The protocols of one node.

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
        read_at = self.clock()
        mine = self._own(listed)
        owner, entry = self._owner(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.COVERED:
            return Result(outcome=Outcome.DRAINED, detail=who(mine), states=mine.states)
        if owner is Owner.OURS and mine.drained:
            if check == MANUAL != entry.token.check:
                if why := keep_off(mine.states):
                    return result(Outcome.HELD, mine, why)
                return (yield from self._take_over(summary, read_at))
            return (yield from self._stand(entry, listed, read_at))
        if entry.phase is not Phase.DRAINING:
            yield "save"
            marked = owner is Owner.PROLOG_ERROR  # only on a node that is not drained: somebody had lifted ours
            gone = replace(self._forget(entry, Owner.FREE if marked else owner, mine), marked=marked)
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
        self._fresh(read_at, unsent)
        self.client.drain(self.node, entry.token.text)
        window = self.clock() - read_at
        yield "read back"
        listed = self._nodes()
        read_at = self.clock()
        mine = self._own(listed)
        entry = replace(entry, sent=0.0)
        owner, entry = self._owner(mine, entry)
        if owner is Owner.OURS:
            return replace((yield from self._stand(entry, listed, read_at)), window_seconds=window)
        yield "save"
        return replace(self._forget(replace(entry, phase=Phase.DRAINED), owner, mine), window_seconds=window)

    def _take_over(self, summary: str, read_at: float) -> Steps:
        """A person's words in place of the agent's own: the node is drained already, and from now on until that person
        says otherwise."""
        before = self.ledger.load()
        entry = replace(self._intent(before, MANUAL, summary, None), phase=Phase.DRAINED)
        yield "save"
        self.ledger.save(entry)
        yield "write"
        self._fresh(read_at, before)
        self.client.drain(self.node, entry.token.text)
        yield "read back"
        mine = self._node()
        entry = replace(entry, sent=0.0)
        owner, entry = self._owner(mine, entry)
        return (yield from self._stand(entry, (), 0.0)) if owner is Owner.OURS else self._forget(entry, owner, mine)

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
        read_at = self.clock()
        if entry is None:
            return self._unknown(mine)
        owner, entry = self._owner(mine, entry)
        if owner not in (Owner.OURS, Owner.COVERED) or not mine.drained:
            if by_hand and owner is Owner.FREE and entry.phase is not Phase.DRAINING:
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
        self._fresh(read_at, replace(entry, phase=Phase.DRAINED, lifting=0.0))
        self.client.resume(self.node)
        window = self.clock() - read_at
        yield "read back"
        read_at = self.clock()
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
            self.ledger.save(replace(entry, phase=Phase.TAKEN))
            return replace((yield from self._put_back(mine, theirs, read_at)), window_seconds=window)
        self.ledger.save(replace(entry, phase=Phase.DRAINED) if by_hand else self._left(entry))
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
        read_at = self.clock()
        if prolog_refused and nothing_stands and self._classify(mine, None, prolog_refused=True) is Owner.PROLOG_ERROR:
            why = self._not_yet(mine, since) or self.barred() or self.stranger(mine) if lift else "no job may run here yet"
            if not why:
                return (yield from self._unmark(entry, mine, read_at))
            if lift:
                self.ledger.save(entry)
            return replace(result(Outcome.HELD, mine, f"{PROLOG_ERROR} stays: {why}"), marked=True)
        if lift and prolog_refused and nothing_stands:
            self.ledger.save(entry)
        if entry is None:
            return self._unknown(mine)
        owner, entry = self._owner(mine, entry, prolog_refused=prolog_refused)
        if owner is Owner.OURS and mine.drained:
            return (yield from self._stand(entry, listed, read_at))
        yield "save"
        if owner is Owner.COVERED:
            self.ledger.save(replace(entry, phase=Phase.DRAINED))
            return result(Outcome.DRAINED, mine, who(mine))
        marked = owner is Owner.PROLOG_ERROR  # only on a node that is not drained: somebody had lifted ours
        return replace(self._forget(entry, Owner.FREE if marked else owner, mine), marked=marked)

    def _unmark(self, before: Entry | None, marked: NodeState, read_at: float) -> Steps:
        """Lift Slurm's mark for our prolog's refusal. ``before``: what the ledger said until then."""
        yield "write"
        self._fresh(read_at, before)
        self.client.resume(self.node)
        window = self.clock() - read_at
        yield "read back"
        read_at = self.clock()
        mine = self._node()
        self.ledger.save(before)
        if mine.drained:
            return replace(result(Outcome.FOREIGN, mine, who(mine)), window_seconds=window)
        if theirs := erased(mine, marked.reason):
            return replace((yield from self._put_back(mine, theirs, read_at)), window_seconds=window)
        return replace(result(Outcome.RESUMED, mine, "the mark of our prolog's refusal was lifted"), window_seconds=window)

    def _put_back(self, mine: NodeState, theirs: str, read_at: float) -> Steps:
        """24.11 without slurmdbd leaves the text behind: somebody had put their own words over ours before we lifted."""
        yield "put back"
        self._fresh(read_at, self.ledger.load())
        self.client.drain(self.node, theirs)
        return result(Outcome.FOREIGN, mine, f"put back: {theirs}")

    def foresee(self, mine: NodeState, *, lift: bool) -> str:
        """Why a drain (``lift``: a resume) by hand would be refused now, in one line; "" for nothing seen. Writes nothing."""
        entry = self.ledger.load()
        owner, entry = self._owner(mine, entry) if entry else (self._classify(mine, None), None)
        if owner in (Owner.FOREIGN, Owner.ORPHAN):
            return f"{owner.value}: {who(mine)}"
        if not lift:
            return "" if mine.drained else keep_off(mine.states) or self.stranger(mine)
        return self._not_yet(mine, entry.since) if entry and mine.drained else "nothing of ours to lift"

    def adopt(self) -> Steps:
        """Take over a drain of fairlead's form whose ledger was lost; the caller has asked a person."""
        yield "read"
        mine = self._node()
        found = parse(mine.reason)
        if found is None or self._classify(mine, None) is not Owner.ORPHAN:
            return self._unknown(mine)
        yield "save"
        self.ledger.save(self._entry(found, Phase.DRAINED))
        return result(Outcome.DRAINED, mine, mine.reason)

    def _stand(self, entry: Entry, listed: tuple[NodeState, ...], read_at: float) -> Steps:
        """Our drain is there: keep it, or undo it where it is past a limit that looks across nodes."""
        over: Hold | None = None
        mine = self._own(listed) if listed else None
        if mine is not None and entry.phase in (Phase.DRAINING, Phase.UNDOING):
            over = self.fleet.after(self.node, entry.token, listed)
        if mine is not None and over is not None and over.wait:
            return replace(result(Outcome.CONTESTED, mine, over.text), limit=over)
        if mine is not None and over is not None:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.UNDOING, lifting=self._saved()))
            yield "undo"
            self._fresh(read_at, entry)
            self.client.resume(self.node)
            yield "save"
            self.ledger.save(self._left(replace(entry, sent=0.0)))
            return replace(result(Outcome.OVER_BUDGET, mine, over.text), limit=over, undone=True)
        if entry.phase is not Phase.DRAINED or entry.sent:
            yield "save"
            self.ledger.save(replace(entry, phase=Phase.DRAINED, sent=0.0))
        return Result(outcome=Outcome.DRAINED, detail=entry.token.text, states=mine.states if mine else frozenset())

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
            self.ledger.save(replace(entry, phase=Phase.TAKEN) if taken else self._left(entry))
            return result(Outcome.FOREIGN, mine, who(mine))
        self.ledger.save(self._left(entry))
        if entry.phase is Phase.DRAINED and entry.late_lift(self._asked_at):
            return result(Outcome.RESUMED, mine, "a resume of ours that was not answered has arrived")
        if stood:
            return result(Outcome.ACKNOWLEDGED, mine, "resumed in Slurm")
        return result(Outcome.FREE if entry.phase is Phase.DRAINING else Outcome.RESUMED, mine)

    def _fresh(self, read_at: float, otherwise: Entry | None) -> None:
        """Nothing is written on a reading that is old: this process was stopped, or the disk was, and people act meanwhile.
        Raises SlurmUnavailable then, for another try; the ledger says ``otherwise``."""
        now = self.clock()
        stepped = abs(self.wall() - self._saved_wall - (now - self._saved_at)) > STALE_SECONDS  # the ledger's times are wall time
        if now - read_at > STALE_SECONDS or now - self._saved_at > SAVED_SECONDS or stepped:
            self.ledger.save(otherwise)
            raise SlurmUnavailable(f"{now - read_at:.0f} s went by after the reading of {self.node}: not written")

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
        self._asked_at = self.wall()
        return self.client.node(self.node)

    def _nodes(self) -> tuple[NodeState, ...]:
        self._asked_at = self.wall()
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
