"""Carries out the main loop's orders in slurmctld in a separate thread, so that the loop never waits for an RPC.

"Our drain" is the drain that fairlead has set on this node, and "our prolog" is fairlead's prolog. An order is valid until it
is done or replaced. While slurmctld does not answer, the courier tries the order again without end, each time after a longer
random wait. While our drain is set, the courier asks slurmctld about it every ``reconcile_seconds`` (two RPCs). Somebody may
have resumed the node, and the prolog must then not refuse jobs. A node that is not drained causes no RPC. ``pace`` decides when
to ask sooner or less often.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator
from functools import partial

from msgspec.structs import replace

from fairlead.daemon.slurmctld.pace import FAILED_PER_SECOND, LIMITED_PER_SECOND, Pace
from fairlead.daemon.slurmctld.refusal import Refusal
from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState, blocked_because, state_after
from fairlead.drains.acknowledgement import KnownEvidence
from fairlead.drains.ledger import LedgerEntry, Phase
from fairlead.drains.outcome import CONTEST_SECONDS, UNDONE_SECONDS, Outcome, Result, Steps
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import FairleadError, NoSlurmConf
from fairlead.host import log

# Each attempt at a drain lists all nodes. Thousands of nodes whose drain is delayed by a limit, or that get no answer in time,
# must not keep slurmctld busy. So both waits grow with the cluster (``Pace.wait_max``).
BACKOFF_MAX_SECONDS = 60.0
BUDGET_BACKOFF_MAX_SECONDS = 256.0
# Without slurm.conf nothing reaches slurmctld, so an attempt costs only this node. slurmd fetches the file when it starts, and a
# job may come a moment later.
NO_CONF_SECONDS, NO_CONF_TRIES = 0.5, 120


class Courier:
    """Carries out the loop's orders. ``fileno()`` becomes readable when the state has changed, and ``take()`` returns the
    state."""

    def __init__(
        self,
        drain: DrainProtocol,
        *,
        splay_seconds: float = 0.0,
        reconcile_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drain = drain
        self._splay_seconds = splay_seconds
        self._reconcile_seconds = reconcile_seconds
        self._clock = clock
        self._condition = threading.Condition()
        self._want = CourierOrder()
        self._stop = False
        self._refusal = Refusal()
        self._asked = False  # whether the last attempt asked slurmctld
        self._resume_unreported = False  # somebody resumed the node and the loop does not know it yet, so its orders are void
        self._failures = 0
        self._without_conf = 0  # how many attempts have found no slurm.conf
        self._squeezed = 0
        self._known: KnownEvidence | None = None
        entry = drain.ledger.load()
        self._taken = entry is not None and entry.phase is Phase.TAKEN
        self._pace = Pace(entry, lambda: self._drain.limits.crowd)
        drained = entry is not None and entry.phase is Phase.DRAINED
        self._state = SlurmState(
            drained=drained,
            reason=entry.token.text if entry and drained else "",
            manual=bool(entry and entry.manual),
            check=entry.token.check if entry and drained else "",
            since=entry.since if entry and drained else 0.0,
        )
        self._due = self._clock() if entry is not None else float("inf")  # time of the next reconciliation
        self._not_before = 0.0  # earliest time of the next attempt at an order
        self._budget_until = 0.0
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._close = weakref.finalize(self, _close, self._reader, self._writer)
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the thread take no further step. This does not wait for a step that has begun. The ledger shows how far the
        thread came."""
        with self._condition:
            self._stop = True
            self._condition.notify()

    def close(self) -> None:
        """Close the pipe. This is for a courier whose thread was never started or has ended. A courier that nothing refers to
        any more closes it too."""
        self._close()

    def fileno(self) -> int:
        return self._reader

    @property
    def topology(self) -> str:
        """Return what is known of slurmctld's topology, in one line."""
        return self._drain.limits.topology

    def take(self) -> SlurmState:
        """Return the node's state in Slurm as far as it is known, and empty the pipe."""
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        with self._condition:
            if self._resume_unreported:
                self._resume_unreported, self._want = False, CourierOrder()  # orders from before the resume are void
            return self._state

    def want(self, want: CourierOrder, known: KnownEvidence | None = None) -> None:
        """Set the order. The same order again changes nothing. ``known``: the evidence that is known now, or None if the evidence
        of the last call is still valid."""
        with self._condition:
            self._known = known or self._known
            if want.kind != self._want.kind:
                if not self._failures:
                    self._not_before = 0.0
                if self._state.blocked_because:
                    self._set(replace(self._state, blocked_because="", foreign=False))
            if want.certain and (limit := self._state.limit) is not None and limit.kind.suspicion:
                self._set(replace(self._state, over_budget="", limit=None))  # this limit does not delay a certain drain
            changed = want != self._want
            if changed and want.fit:
                self._refusal.hurry(self._clock())
            self._want = want
            if self._wake() or changed:
                self._condition.notify()

    def _wake(self) -> bool:
        """If there is new evidence, make a question to slurmctld due now and return True. The question is whether our drain is
        still set, or whether a blocked order is possible now."""
        now = self._clock()
        if not self._pace.is_new(self._known, now):
            return False
        if self._state.drained or self._taken:
            self._due = min(self._due, now)
        elif not self._state.blocked_because:
            return False
        if self._state.blocked_because and not self._failures:
            self._not_before = 0.0
        self._pace.woken(now)
        return True

    def change(self, drain: DrainProtocol, *, splay_seconds: float, reconcile_seconds: float) -> None:
        """Use another drain protocol, made from a reloaded document."""
        with self._condition:
            drain.limits.take_over(self._drain.limits)
            self._drain = drain
            self._reconcile_seconds = reconcile_seconds
            self._splay_seconds = splay_seconds

    def refused(self) -> None:
        """Expect that slurmctld drains the node with "Prolog error", because our prolog has refused a job. slurmctld does not do
        that on a node that is drained already."""
        with self._condition:
            self._refusal.begin(self._clock(), time.time())
            self._condition.notify()

    @property
    def refusal_pending(self) -> bool:
        """Return whether the drain "Prolog error" for a refused job may still come or is still set. While this is True, the job's
        record is kept."""
        with self._condition:
            return self._refusal.pending

    @property
    def waits(self) -> bool:
        """Return whether changes that somebody else makes to the node in Slurm matter now. They matter while an order is blocked,
        or while our drain or a person's drain in its place is set."""
        return self._state.drained or self._taken or bool(self._state.blocked_because)

    def stirred(self, *, watched: bool, stirred: bool) -> None:
        """If slurmctld has contacted this node's slurmd (``stirred``), ask slurmctld soon, because somebody may have resumed the
        node. ``watched``: whether the agent sees slurmd (``host.slurmd``)."""
        with self._condition:
            self._pace.watched = watched
            if not stirred or self._failures:
                return
            at = self._pace.stir(self._clock())
            if self._state.drained or self._taken:
                self._due = min(self._due, at)
            elif self._state.blocked_because:
                self._not_before = min(self._not_before, at)
            self._condition.notify()

    def reconcile(self) -> None:
        """Compare slurmctld's state with the ledger soon, because somebody has changed it (`fairlead drain` or `resume`)."""
        with self._condition:
            self._due = min(self._due, self._clock())
            self._condition.notify()

    def due(self) -> float:
        """Return the time of the next thing to do (CLOCK_MONOTONIC seconds)."""
        state = self._state
        times = [self._due, self._refusal.due, self._drain.limits.due]
        if state.over_budget:
            times.append(self._budget_until)
        elif (self._want.kind == "drain" and not state.drained and not self._resume_unreported) or (
            self._want.kind == "resume" and state.drained and not state.manual
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
        """Attempt the work that is due, if any is due. Yield the name of each step of the drain protocol before the step."""
        with self._condition:
            began = self._clock()
            if self.due() > began:
                return
            again = bool(self._state.over_budget) and began >= self._budget_until
            if again and not self._want.pending_room:
                self._set(replace(self._state, over_budget="", limit=None))
                return
            want = replace(self._want, kind="drain", pending_room=False) if again else self._want
            state, drain = self._state, self._drain
            refused_since = self._refusal.since if self._refusal.pending else None
            known = self._known
        if drain.limits.due <= began:
            drain.limits.refresh()
            return
        if known is not None:  # a person who resumes the node later acknowledges this evidence, but no newer evidence
            drain.state.known = known.names
        try:
            result = yield from self._attempt(drain, want, state, refused_since, began)
        except FairleadError as e:
            self._failed(str(e), no_conf=isinstance(e, NoSlurmConf))
        except Exception as e:  # a bug here must not end the thread: report it and try again
            self._failed(f"{type(e).__name__}: {e}")
        else:
            if self._asked and known is not None:
                self._pace.asked_with = known.drains
            self._done(result, want, began)

    def _attempt(
        self, drain: DrainProtocol, want: CourierOrder, state: SlurmState, refused_since: float | None, began: float
    ) -> Steps:
        refused = refused_since is not None
        reconcile = partial(drain.reconcile, prolog_refused=refused, lift=want.fit, since=refused_since or 0.0)
        marks = began >= self._refusal.due
        asks = marks or began >= self._due
        self._asked = True
        if want.kind == "drain" and not state.drained and self._splay_seconds:
            time.sleep(random.uniform(0, self._splay_seconds))  # before the ledger's lock, because people's commands wait for it
        with drain.ledger.locked():
            if want.kind == "resume" and state.drained and not state.manual and not marks:
                return (yield from drain.resume())
            if want.kind == "drain" and not state.drained and not self._resume_unreported:
                return (yield from self._order(drain, want, refused))
            if asks:
                return (yield from reconcile())
        self._asked = False
        return Result(outcome=Outcome.DRAINED if state.drained else Outcome.FREE, detail=state.reason)

    def _order(self, drain: DrainProtocol, want: CourierOrder, refused: bool) -> Steps:
        return drain.drain(want.check, want.summary, job=want.job, certain=want.certain, prolog_refused=refused)

    def _failed(self, error: str, *, no_conf: bool = False) -> None:
        with self._condition:
            if self._state.error != error:
                log.line(log.WARNING, "slurmctld unavailable", error=error)
            longest = self._pace.wait_max(BACKOFF_MAX_SECONDS, FAILED_PER_SECOND)
            wait = min(longest, 2.0**self._failures) * random.uniform(0.5, 1.0) + self._pace.spread()
            self._failures = min(self._failures + 1, 10)
            if no_conf and self._without_conf < NO_CONF_TRIES:
                self._without_conf += 1
                self._failures, wait = 1, NO_CONF_SECONDS
            self._not_before = self._clock() + wait
            # the courier asks again even if the order is withdrawn, because the request that was sent may have arrived
            self._due = min(self._due, self._not_before)
            self._set(replace(self._state, error=error, asked=True))

    def _done(self, result: Result, want: CourierOrder, began: float) -> None:
        """Record how an attempt ended."""
        now = self._clock()
        with self._condition:
            if self._failures:
                log.line(log.NOTICE, "slurmctld answers again")
            self._failures = self._without_conf = 0
            entry = self._drain.ledger.load()
            self._taken = entry is not None and entry.phase is Phase.TAKEN
            acknowledged = result.outcome is Outcome.ACKNOWLEDGED
            self._resume_unreported = self._resume_unreported or acknowledged
            before, after = self._state, state_after(self._state, result, entry, ordered=want.kind != "keep", asked=self._asked)
            self._set_times(result, entry, now)
            self._set_retry(result, now, began)
            self._follow_refusal(result, want, now, began)
            if before.differs_for_people(after) or acknowledged or result.outcome is Outcome.RESUMED:
                self._log(result, want)
            self._set(after)

    def _set_times(self, result: Result, entry: LedgerEntry | None, now: float) -> None:
        """Set when slurmctld is asked again about the node, and when an order that is blocked is tried again."""
        drained, taken = entry is not None and entry.ours, self._taken
        blocked = bool(blocked_because(result))
        self._not_before = 0.0
        self._due = float("inf")
        if blocked or drained or result.outcome is Outcome.DRAINED:
            self._due = now + self._pace.ask_seconds(self._reconcile_seconds)
            self._not_before = now + self._reconcile_seconds * random.uniform(0.5, 1.0) if blocked else 0.0
        if blocked and not drained:
            self._due = float("inf")  # the next attempt at the order reads the node anyway
        if entry is not None and not drained:  # a person has replaced our drain, or a request that was sent may still arrive
            self._due = now + (self._pace.ask_seconds(self._reconcile_seconds) if taken else self._reconcile_seconds)
        if self._asked:
            self._due = min(self._due, self._pace.unsettled(result, entry, now))

    def _set_retry(self, result: Result, now: float, began: float) -> None:
        """Set when the courier tries a drain again that a drain limit forbids, or that competes with drains of other nodes for
        the same limit."""
        if result.outcome is Outcome.OVER_BUDGET:
            self._squeezed = min(self._squeezed + 1, 12)
            longest = self._pace.wait_max(BUDGET_BACKOFF_MAX_SECONDS, LIMITED_PER_SECOND)
            wait = min(longest, 2.0**self._squeezed) * random.uniform(0.3, 1.0)
            later = random.uniform(*UNDONE_SECONDS) * max(1.0, now - began) if result.undone else 0.0
            self._budget_until = now + max(wait, later)
        elif result.outcome is Outcome.CONTESTED:  # the next reading decides this, whatever the order is then
            self._due = self._not_before = now + random.uniform(*CONTEST_SECONDS)
        else:
            self._squeezed = 0

    def _follow_refusal(self, result: Result, want: CourierOrder, now: float, began: float) -> None:
        """Record whether this attempt saw the drain "Prolog error" that slurmctld sets for a job that our prolog refused."""
        if self._asked and self._refusal.pending and self._refusal.began <= began:
            settled = result.outcome in (Outcome.DRAINED, Outcome.RESUMED)
            again = self._reconcile_seconds * random.uniform(0.8, 1.2) if want.fit else float("inf")
            self._refusal.asked(now, marked=result.marked, settled=settled, again_seconds=again)

    def _log(self, result: Result, want: CourierOrder) -> None:
        log.line(
            log.WARNING if result.outcome is not Outcome.RESUMED else log.NOTICE,
            f"slurm {result.outcome.value}",
            check=want.check,
            detail=result.detail,
            window_ms=f"{result.window_seconds * 1000:.1f}" if result.window_seconds else "",
            trouble=self._drain.ledger.trouble,
        )

    def _set(self, state: SlurmState) -> None:
        if state != self._state:
            self._state = state
            try:
                os.write(self._writer, b"x")
            except BlockingIOError:
                pass  # the pipe is full, so the loop will read anyway


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
