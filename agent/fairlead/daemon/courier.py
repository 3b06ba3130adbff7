"""Carries orders to slurmctld in a thread of its own, so that the loop never waits for an RPC.

An order stands until it is done or replaced. slurmctld away: tried again with a growing, jittered wait, for ever. While
a drain of ours stands it is looked at every ``look_seconds`` (two RPCs: somebody may have resumed it, and then the prolog
must not refuse); a node that is not drained costs slurmctld nothing. ``pace`` says when it is looked at sooner, and how
seldom otherwise.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from fairlead.daemon import log
from fairlead.daemon.drain import Drain
from fairlead.daemon.evidence import Known
from fairlead.daemon.ledger import Phase
from fairlead.daemon.outcome import CONTEST_SECONDS, UNDONE_SECONDS, Outcome, Result, Steps
from fairlead.daemon.pace import Pace
from fairlead.daemon.refusal import Refusal
from fairlead.errors import FairleadError
from fairlead.policy.drain_limits import DrainLimit

BACKOFF_MAX_SECONDS = 60.0
BUDGET_BACKOFF_MAX_SECONDS = 256.0  # each try lists all nodes: hundreds of held nodes must not keep slurmctld busy


class Want(Struct, frozen=True, kw_only=True):
    """An order: ``kind`` keep, drain or resume, and the parts of the reason. ``certain``: see ``policy.drain_limits``.
    ``held``: to keep, and to drain as soon as the rules across nodes leave room. ``fit``: jobs may run here, so Slurm's mark
    for a job that our prolog refused is to go."""

    kind: str = "keep"
    check: str = ""
    summary: str = ""
    job: int | None = None
    certain: bool = False
    held: bool = False
    fit: bool = False


class Standing(Struct, frozen=True, kw_only=True):
    """What is known of this node in Slurm.

    reason: of our own drain. held: why an order is not carried out; foreign: it is because somebody else holds the node.
    over_budget: the rule across nodes that left no room, in one line, for a while after it was asked; limit: the same as
    data. error: slurmctld's last refusal or silence.
    acknowledged: how many drains of ours a person has resumed; lost: how many have gone without that need; why_lost: the last
    of them; known: the names of the evidence that the last of either covers. returned: how
    often the node has gone back into service, by the agent's resume or a person's. taken: whose words stand in place of ours,
    as far as known, "" for nobody's. manual: a person drained it through
    fairlead. looks: how often our drain was seen standing. check, since: of our own drain, what it
    is for and when it was begun (Unix time in seconds).
    """

    drained: bool = False
    reason: str = ""
    held: str = ""
    foreign: bool = False
    over_budget: str = ""
    limit: DrainLimit | None = None
    error: str = ""
    acknowledged: int = 0
    known: tuple[str, ...] = ()
    returned: int = 0
    lost: int = 0
    why_lost: str = ""
    taken: str = ""
    manual: bool = False
    looks: int = 0
    check: str = ""
    since: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether an order to drain has come to an end for now: it stands in Slurm, or somebody else holds the node."""
        return self.drained or bool(self.held)

    @property
    def suspicion(self) -> str:
        """``over_budget`` where common cause or a suspect job is what holds."""
        return self.over_budget if self.limit is not None and self.limit.kind.suspicion else ""


class Courier:
    """``fileno()`` becomes readable when ``standing`` has changed; ``take()`` gives it."""

    def __init__(
        self,
        drain: Drain,
        *,
        splay_seconds: float = 0.0,
        look_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drain = drain
        self._splay_seconds = splay_seconds
        self._look_seconds = look_seconds
        self._clock = clock
        self._condition = threading.Condition()
        self._want = Want()
        self._stop = False
        self._refusal = Refusal()
        self._asked = False  # the last attempt spoke to slurmctld
        self._untold = False  # that it was lifted is not known yet to whoever gives the orders
        self._failures = 0
        self._squeezed = 0
        self._known: Known | None = None
        entry = drain.ledger.load()
        self._taken = entry is not None and entry.phase is Phase.TAKEN
        self._pace = Pace(entry, lambda: self._drain.fleet.crowd)
        stands = entry is not None and entry.phase is Phase.DRAINED
        self._standing = Standing(
            drained=stands,
            reason=entry.token.text if entry and stands else "",
            manual=bool(entry and entry.manual),
            check=entry.token.check if entry and stands else "",
            since=entry.since if entry and stands else 0.0,
        )
        self._due = self._clock() if entry is not None else float("inf")  # a look
        self._not_before = 0.0  # of the next attempt at an order
        self._budget_until = 0.0
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no further step; one under way is not waited for (the ledger knows how far it came)."""
        with self._condition:
            self._stop = True
            self._condition.notify()

    def close(self) -> None:
        """Close the pipe; for a courier whose thread was never started or has ended."""
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        return self._reader

    @property
    def topology(self) -> str:
        """What is known of slurmctld's topology, in one line."""
        return self._drain.fleet.topology

    def take(self) -> Standing:
        """The standing now; empties the pipe."""
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        with self._condition:
            if self._untold:
                self._untold, self._want = False, Want()  # orders from before it are void
            return self._standing

    def want(self, want: Want, known: Known | None = None) -> None:
        """Give an order; the same one again is no news. ``known``: the evidence that is known now; None leaves it as it was."""
        with self._condition:
            self._known = known or self._known
            if want.kind != self._want.kind:
                if not self._failures:
                    self._not_before = 0.0
                if self._standing.held:
                    self._set(replace(self._standing, held="", foreign=False))
            if want.certain and (limit := self._standing.limit) is not None and limit.kind.suspicion:
                self._set(replace(self._standing, over_budget="", limit=None))  # it does not hold what is certain
            changed = want != self._want
            if changed and want.fit:
                self._refusal.hurry(self._clock())
            self._want = want
            if self._wake() or changed:
                self._condition.notify()

    def _wake(self) -> bool:
        """New evidence has come: look whether our drain still stands, and try again what waits for somebody else."""
        now = self._clock()
        if not self._pace.is_new(self._known, now):
            return False
        if self._standing.drained or self._taken:
            self._due = min(self._due, now)
        elif not self._standing.held:
            return False
        if self._standing.held and not self._failures:
            self._not_before = 0.0
        self._pace.woken(now)
        return True

    def change(self, drain: Drain, *, splay_seconds: float, look_seconds: float) -> None:
        """Go on with another drain protocol (a reloaded document)."""
        with self._condition:
            drain.fleet.follow(self._drain.fleet)
            self._drain = drain
            self._look_seconds = look_seconds
            self._splay_seconds = splay_seconds

    def refused(self) -> None:
        """Our prolog refused a job: Slurm marks the node for it, if it is not drained."""
        with self._condition:
            self._refusal.begin(self._clock(), time.time())
            self._condition.notify()

    @property
    def refusal_pending(self) -> bool:
        """Whether Slurm's mark for a refused job may still come or stand; the job's record is kept until then."""
        with self._condition:
            return self._refusal.pending

    @property
    def waits(self) -> bool:
        """Whether it matters what others do to the node in Slurm: a drain stands, ours or one in the way of an order."""
        return self._standing.drained or self._taken or bool(self._standing.held)

    def stirred(self, *, watched: bool, stirred: bool) -> None:
        """slurmctld has spoken to this node's slurmd (``daemon.slurmd``): somebody may have resumed the node."""
        with self._condition:
            self._pace.watched = watched
            if not stirred or self._failures:
                return
            at = self._pace.stir(self._clock())
            if self._standing.drained or self._taken:
                self._due = min(self._due, at)
            elif self._standing.held:
                self._not_before = min(self._not_before, at)
            self._condition.notify()

    def look(self) -> None:
        """Somebody has changed the ledger (`fairlead drain` or `resume`): read what stands now."""
        with self._condition:
            self._due = min(self._due, self._clock())
            self._condition.notify()

    def due(self) -> float:
        """When something is to be done next (CLOCK_MONOTONIC seconds)."""
        standing = self._standing
        times = [self._due, self._refusal.due, self._drain.fleet.due]
        if standing.over_budget:
            times.append(self._budget_until)
        elif (self._want.kind == "drain" and not standing.drained and not self._untold) or (
            self._want.kind == "resume" and standing.drained and not standing.manual
        ):
            times.append(self._not_before)
        return max(min(times), self._not_before if self._failures else 0.0)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stop and (wait := self.due() - self._clock()) > 0:
                    self._condition.wait(min(wait, 3600.0))
                if self._stop:
                    return
            for _ in self.turn():
                pass

    def turn(self) -> Generator[str, None, None]:
        """One attempt at what is due, if anything is; yields the name of each step of the protocol before it is taken."""
        with self._condition:
            began = self._clock()
            if self.due() > began:
                return
            again = bool(self._standing.over_budget) and began >= self._budget_until
            if again and not self._want.held:
                self._set(replace(self._standing, over_budget="", limit=None))
                return
            want = replace(self._want, kind="drain", held=False) if again else self._want
            standing, drain = self._standing, self._drain
            refused_since = self._refusal.since if self._refusal.pending else None
            known = self._known
        if drain.fleet.due <= began:
            drain.fleet.refresh()
            return
        if known is not None:  # what comes from here on, a person who resumes the node has not seen
            drain.known = known.names
        try:
            result = yield from self._attempt(drain, want, standing, refused_since, began)
        except FairleadError as e:
            self._failed(str(e))
        except Exception as e:  # a bug here must not silence the thread: say it and try again
            self._failed(f"{type(e).__name__}: {e}")
        else:
            if self._asked and known is not None:
                self._pace.looked_with = known.drains
            self._done(result, want, began)

    def _attempt(self, drain: Drain, want: Want, standing: Standing, refused_since: float | None, began: float) -> Steps:
        refused = refused_since is not None
        look = partial(drain.look, prolog_refused=refused, lift=want.fit, since=refused_since or 0.0)
        marks = began >= self._refusal.due
        looks = marks or began >= self._due
        self._asked = True
        if want.kind == "drain" and not standing.drained and self._splay_seconds:
            time.sleep(random.uniform(0, self._splay_seconds))  # not with the lock: people's commands wait for that
        with drain.ledger.locked():
            if want.kind == "resume" and standing.drained and not standing.manual and not marks:
                return (yield from drain.resume())
            if want.kind == "drain" and not standing.drained and not self._untold:
                return (yield from self._order(drain, want, refused))
            if looks:
                return (yield from look())
        self._asked = False
        return Result(outcome=Outcome.DRAINED if standing.drained else Outcome.FREE, detail=standing.reason)

    def _order(self, drain: Drain, want: Want, refused: bool) -> Steps:
        return drain.drain(want.check, want.summary, job=want.job, certain=want.certain, prolog_refused=refused)

    def _failed(self, error: str) -> None:
        with self._condition:
            if self._standing.error != error:
                log.line(log.WARNING, "slurm unavailable", error=error)
            wait = min(BACKOFF_MAX_SECONDS, 2.0**self._failures) * random.uniform(0.5, 1.0) + self._pace.spread()
            self._failures = min(self._failures + 1, 10)
            self._not_before = self._clock() + wait
            self._due = min(self._due, self._not_before)  # also when the order is withdrawn: what was sent may have arrived
            self._set(replace(self._standing, error=error))

    def _done(self, result: Result, want: Want, began: float) -> None:
        now = self._clock()
        outcome = result.outcome
        with self._condition:
            if self._failures:
                log.line(log.NOTICE, "slurm answers again")
            self._failures = 0
            self._not_before = 0.0
            self._due = float("inf")
            before = self._standing
            entry = self._drain.ledger.load()
            drained = entry is not None and entry.ours
            self._taken = taken = entry is not None and entry.phase is Phase.TAKEN
            acknowledged = outcome is Outcome.ACKNOWLEDGED
            self._untold = self._untold or acknowledged
            held = result.detail if outcome in (Outcome.HELD, Outcome.FOREIGN, Outcome.ORPHAN) else ""
            after = Standing(
                drained=drained,
                reason=entry.token.text if entry is not None and drained else "",
                held=held if want.kind != "keep" else "",
                foreign=outcome in (Outcome.FOREIGN, Outcome.ORPHAN) and want.kind != "keep",
                over_budget=result.detail if outcome is Outcome.OVER_BUDGET else "",
                limit=result.limit if outcome is Outcome.OVER_BUDGET else None,
                acknowledged=before.acknowledged + acknowledged,
                known=result.known if acknowledged or outcome is Outcome.LOST else before.known,
                returned=before.returned + (acknowledged or (before.drained and outcome is Outcome.RESUMED)),
                lost=before.lost + (outcome is Outcome.LOST),
                why_lost=result.detail if outcome is Outcome.LOST else before.why_lost,
                taken=(result.detail if outcome is Outcome.FOREIGN else before.taken) if taken else "",
                looks=before.looks + (self._asked and outcome is Outcome.DRAINED),
                manual=bool(entry and drained and entry.manual),
                check=entry.token.check if entry is not None and drained else "",
                since=entry.since if entry is not None and drained else 0.0,
            )
            if held or outcome is Outcome.DRAINED or drained:
                self._due = now + self._pace.look_seconds(self._look_seconds)
                self._not_before = now + self._look_seconds * random.uniform(0.5, 1.0) if held else 0.0
            if held and not drained:
                self._due = float("inf")  # the order itself is tried again
            if entry is not None and not drained:  # taken by a person, or something sent may still arrive
                self._due = now + (self._pace.look_seconds(self._look_seconds) if taken else self._look_seconds)
            if self._asked:
                self._due = min(self._due, self._pace.unsettled(result, entry, now))
            if outcome is Outcome.OVER_BUDGET:
                self._squeezed = min(self._squeezed + 1, 8)
                wait = min(BUDGET_BACKOFF_MAX_SECONDS, 2.0**self._squeezed) * random.uniform(0.3, 1.0)
                later = random.uniform(*UNDONE_SECONDS) * max(1.0, now - began) if result.undone else 0.0
                self._budget_until = now + max(wait, later)
            elif outcome is Outcome.CONTESTED:  # settled by a look, whatever is wanted then
                self._due = self._not_before = now + random.uniform(*CONTEST_SECONDS)
            else:
                self._squeezed = 0
            if self._asked and self._refusal.pending and self._refusal.began <= began:
                settled = outcome in (Outcome.DRAINED, Outcome.RESUMED)
                again = self._look_seconds * random.uniform(0.8, 1.2) if want.fit else float("inf")
                self._refusal.looked(now, marked=result.marked, settled=settled, again_seconds=again)
            if (before.drained, before.held, before.over_budget) != (
                after.drained,
                after.held,
                after.over_budget,
            ) or (acknowledged or outcome is Outcome.RESUMED):
                log.line(
                    log.WARNING if outcome is not Outcome.RESUMED else log.NOTICE,
                    f"slurm {outcome.value}",
                    check=want.check,
                    detail=result.detail,
                    window_ms=f"{result.window_seconds * 1000:.1f}" if result.window_seconds else "",
                    trouble=self._drain.ledger.trouble,
                )
            self._set(after)

    def _set(self, standing: Standing) -> None:
        if standing != self._standing:
            self._standing = standing
            try:
                os.write(self._writer, b"x")
            except BlockingIOError:
                pass  # it is full of news already
