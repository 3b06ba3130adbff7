"""Drives a maintenance run: one loop that reads Slurm, takes each node's next step, and begins new nodes.

The journal has each step before it is done, so a killed run goes on when it is driven again. ssh and provisioning run in other
threads. Only the loop itself writes to slurmctld and to the journal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.ownership import MAINTAIN, build
from fairlead.provision.ansible_lock import wait_released
from fairlead.provision.maintain import maintenance_steps, node_verification
from fairlead.provision.maintain.begin_limits import BeginChoice, Budget
from fairlead.provision.maintain.controller import Controller, Listing
from fairlead.provision.maintain.drain_room import DrainRoom
from fairlead.provision.maintain.maintenance_display import SilentDisplay
from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_steps import (
    IN_WORK,
    KEPT_SECONDS,
    LIFTED,
    ApplyOutcome,
    DrainOwner,
    MaintenanceStep,
    Move,
    NodeReading,
    NodeWork,
)
from fairlead.provision.maintain.node_access import NodeAccess
from fairlead.provision.maintain.run_clock import STEP_SECONDS, behind_text, set_text

CHECK = MAINTAIN.split(":")[1]
POLL_SECONDS = 1.0
ABORT_SECONDS = 60.0
ORDER_AGAIN_SECONDS = 60.0
SSH_AT_ONCE = 32
STOPPING = "stopping: nodes already in progress will be finished.\nPress Ctrl-C again to leave them as they are."


class Maintenance:
    """Drives one run. ``budgets``: the drain budget of each node, by Slurm name. ``aborting``: begin no node, and bring the nodes
    in work to a condition in which they can be left. window_asked: a person has just named the window by the present clock."""

    def __init__(
        self,
        run: MaintenanceRun,
        journal: Journal,
        controller: Controller,
        nodes: NodeAccess,
        *,
        budgets: Mapping[str, Budget],
        shown: SilentDisplay | None = None,
        aborting: bool = False,
        window_asked: bool = False,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.run = run
        self.works = list(run.works)
        self.stop_asked = self.leave_asked = False
        self.waits_because = ""
        self.closed = ""
        self._plan = run.plan
        self._journal = journal
        self._controller = controller
        self._nodes = nodes
        self._room = DrainRoom(controller, budgets, journal.earlier_reasons(w.slurm for w in run.works))
        self._shown = shown or SilentDisplay()
        self._aborting = aborting
        self._poll = poll_seconds
        self._flying: dict[Future[Any], tuple[tuple[int, ...], Callable[[Any], None]]] = {}
        self._grouped: set[bool] = set()
        self._ordered: dict[int, float] = {}
        self._well: set[int] = set()
        self._why: dict[int, str] = {}
        self._said_why: dict[int, str] = {}
        self._unlisted: dict[int, float] = {}
        self._slurm_trouble = ""
        self._slurm_again = 0.0
        self._slurm_pause = 0.0
        self._clock = controller.clock
        self._window_asked = window_asked
        self._said_step = 0.0
        self._behind = 0.0
        self._progress = self._clock.now()
        self._pool = ThreadPoolExecutor(max_workers=SSH_AT_ONCE)

    # -- the loop ------------------------------------------------------------------------------------

    def drive(self) -> bool:
        """Drive the run until every node has ended, and return True. Return False if the run has stopped before that. A stop, the
        end of the window (``closed``) or a full disk stops the run when no node is in work any more. ``leave_asked`` stops it at
        once. The run can then be driven again. Raises HostError if the journal cannot be written."""
        with self._journal.driving(self.run.id):
            try:
                left = self._journal.ansible_lock(self.run.id)  # two Ansibles must not change one node at the same time
                if not wait_released(left, self._shown.say, lambda: self.stop_asked):
                    return False
                self._take_up()
                while not (self.leave_asked or self._finished()):
                    self._turn()
                    time.sleep(self._poll / 4)
                if self.leave_asked or any(w.step is MaintenanceStep.QUEUED for w in self.works):
                    return False
                self._journal.end(self.run.id, "aborted" if self._aborting else "ended")
                return True
            finally:
                self._pool.shutdown(wait=not self.leave_asked, cancel_futures=True)

    def _finished(self) -> bool:
        stopped = self.stop_asked or bool(self._journal.full or self.closed)
        return not self._flying and all(w.ended or (stopped and w.step is MaintenanceStep.QUEUED) for w in self.works)

    def _turn(self) -> None:
        works = [replace(w, detail=self._why[at]) if at in self._why else w for at, w in enumerate(self.works)]
        waits_because = self._slurm_trouble or self._journal.full or self.waits_because
        self._say_clock()
        notice = STOPPING if self.stop_asked else waits_because and f"no further node is started now: {waits_because}"
        self._shown.show(works, notice, self._clock.now())
        try:
            for future in [f for f in self._flying if f.done()]:
                indexes, then = self._flying.pop(future)
                self._try(indexes, partial(then, future.result()))
            if time.monotonic() < self._slurm_again:
                return
            listing = self._controller.listing()
            for at in range(len(self.works)):
                if self.works[at].step in IN_WORK and not self._in_flight(at):
                    self._try((at,), partial(self._step, at, listing))
            for at in range(len(self.works)):
                self._try((at,), partial(self._lost_lift, at, listing))
            self._groups(listing)
            self._begin(listing)
        except SlurmError as e:  # the loop tries again, because every step may be done twice
            self._unavailable(e)
            return
        self._answers()

    def _try(self, indexes: Sequence[int], act: Callable[[], object]) -> None:
        """Call ``act``, which concerns these nodes. An error that slurmctld reports for one node stops no other node. Raises
        SlurmUnavailable if slurmctld does not answer."""
        try:
            act()
        except SlurmUnavailable:
            raise
        except SlurmError as e:
            for at in indexes:
                if self.works[at].step is MaintenanceStep.VERIFYING:
                    self._not_yet(at, str(e))
                else:
                    self._wait(at, str(e))

    def _wait(self, at: int, why: str) -> None:
        """Remember why Slurm does not let the node take its next step, and say it once."""
        self._why[at] = why
        if self._said_why.get(at) != why:
            self._said_why[at] = why
            self._shown.say(f"{self.works[at].node}: {why}")

    def _unavailable(self, error: SlurmError) -> None:
        self._slurm_pause = min(15.0, self._slurm_pause * 2 or 1.0)
        self._slurm_again = time.monotonic() + self._slurm_pause
        if not self._slurm_trouble:
            self._shown.say(f"{error}; fairlead asks again until it answers")
        self._slurm_trouble = str(error)

    def _answers(self) -> None:
        if self._slurm_trouble:
            self._shown.say("slurmctld answers again")
        self._slurm_trouble, self._slurm_pause = "", 0.0
        self._slurm_again = time.monotonic() + self._poll

    def _in_flight(self, at: int) -> bool:
        return any(at in indexes for indexes, _ in self._flying.values())

    def _send(self, indexes: Sequence[int], act: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._flying[self._pool.submit(act)] = (tuple(indexes), then)

    # -- the journal -----------------------------------------------------------------------------------

    def _put(self, at: int, work: NodeWork) -> None:
        before, self.works[at] = self.works[at].step, work
        self._journal.put(self.run.id, at, work, new=work.step is not before)
        if work.step is not before:
            self._progress = self._clock.now()
            self._shown.moved(work)

    def _move(self, at: int, move: Move, **more: Any) -> None:
        now = self._clock.now()
        work = replace(self.works[at].at(move.step, now, move.why), **more)
        if move.step is MaintenanceStep.MARKING:
            work = replace(work, mark=self._reason(work, maintenance_steps.marked(self._plan, move.why)))
        elif move.step is MaintenanceStep.APPLYING:
            work = replace(work, idle=work.idle if work.again else now)
        elif move.step is MaintenanceStep.DRAINING:
            work = replace(
                work, began=work.began or now, text=work.text or self._reason(work, maintenance_steps.announced(self._plan))
            )
        self._put(at, work)
        self._why.pop(at, None)
        self._said_why.pop(at, None)
        self._well.discard(at)

    def _reason(self, work: NodeWork, summary: str) -> str:
        token = work.text.split(" ", 1)[0].rpartition(":")[2] if work.text else secrets.token_hex(6)
        return build(CHECK, token, summary).text

    def _take_up(self) -> None:
        """Prepare the nodes of a run that is driven again. The time limits of reboots and verifications start again. If the clock
        is behind what the journal has, all limits do: otherwise they would wait until the clock is there again."""
        now = self._clock.now()
        behind = max([self.run.began, *(w.newest for w in self.works)]) - now
        self.works = [w.not_after(now) for w in self.works]
        if behind > STEP_SECONDS:
            self._behind = behind
            self._shown.say(f"{behind_text(behind)}: time limits begin again now; set the clock right: timedatectl")
        for at, work in enumerate(self.works):
            move = maintenance_steps.abort(work) if self._aborting else None
            if move is not None:
                self._move(at, move)
            elif work.step in (MaintenanceStep.REBOOTING, MaintenanceStep.VERIFYING):
                self._put(at, replace(work, since=self._clock.now()))

    # -- the clock ---------------------------------------------------------------------------------------

    def _say_clock(self) -> None:
        """Say once that somebody has set the clock."""
        step = self._clock.step_seconds()
        if abs(step - self._said_step) <= STEP_SECONDS:
            return
        self._said_step = step
        unaffected = "the time limits of this run are not affected; check the clock: timedatectl"
        agrees = "the clock agrees again with the time since this run began"
        self._shown.say(f"{set_text(step)}: {unaffected}" if step else agrees)

    def _no_window(self) -> str:
        """Return why the window of this run cannot be kept, or "" if it can."""
        if not self._plan.window or not (why := self._clock_trouble()):
            return ""
        return f"{why}, so the window cannot be kept"

    def _clock_trouble(self) -> str:
        if step := self._clock.step_seconds():
            return set_text(step)
        return behind_text(self._behind) if self._behind and not self._window_asked else ""

    # -- beginning nodes --------------------------------------------------------------------------------

    def _begin(self, listing: Listing) -> None:
        if self._aborting or self.stop_asked or self._journal.full:
            return
        now = self._clock.now()
        choice = self._room.choice(self.works, self._plan, listing, now)
        if why := self._no_window():
            choice = BeginChoice(over=choice.over, closed=why)
        self.waits_because, self.closed = choice.waits_because or choice.closed, choice.closed
        if now < self._plan.opens and not choice.closed:
            self._progress, opens = now, time.localtime(self._plan.opens)
            self.waits_because = f"the window begins at {time.strftime('%Y-%m-%d %H:%M:%S', opens)}"
        over = choice.over
        idle = not any(w.step in IN_WORK for w in self.works)
        if choice.waits_because and idle and self._plan.max_wait and now - self._progress >= self._plan.max_wait:
            over = choice.waits_because
        begun = 0
        for at, work in enumerate(self.works):
            if work.step is not MaintenanceStep.QUEUED:
                continue
            if over:
                self._move(at, Move(MaintenanceStep.NOT_BEGUN, f"not begun: {over}"))
            elif work.slurm in choice.begin and not self._journal.full and (not begun or listing.fresh(self._clock.now())):
                begun += 1
                if move := self._room.refusal(work, listing):
                    self._move(at, move)
                else:
                    took = self._room.replaceable_reason(work, listing)
                    self._move(at, Move(MaintenanceStep.DRAINING, "drain"), replaced_reason=took, floors_kept=bool(took))
                    self._try((at,), partial(self._drain, at))

    def _stays(self, at: int, listing: Listing) -> bool:
        """Say whether our drain may stay. Otherwise undo it, or wait for other runs. ``listing`` was read after our drain."""
        work = self.works[at]
        if work.floors_kept or self._aborting:
            return True
        over = self._room.below(work, self._plan, listing)
        if over is None:
            self._why.pop(at, None)
            self._put(at, replace(work, floors_kept=True))
            return True
        self._why[at] = over.why
        if not over.wait:
            self._move(at, Move(MaintenanceStep.UNDOING, f"{over.why}: another run has drained nodes at the same time"))
            self._lift(at)
        return False

    def _lift(self, at: int) -> None:
        work = self.works[at]
        if (move := self._controller.lift(work, self._plan)) and self._taken(at, move):
            self._move(at, Move(move.step, move.why or work.detail))
            if move.step is MaintenanceStep.QUEUED:
                self._room.undone()

    def _taken(self, at: int, move: Move) -> bool:
        """Say whether the move leads to another step. If it does not, say why the node waits."""
        if move.step is not self.works[at].step:
            return True
        self._wait(at, move.why)
        return False

    # -- one node's step ---------------------------------------------------------------------------------

    def _step(self, at: int, listing: Listing) -> None:
        work, now = self.works[at], self._clock.now()
        if work.slurm not in listing.nodes:
            since = self._unlisted.setdefault(at, now)
            gone = maintenance_steps.unlisted(work, since, now, self._plan, aborting=self._aborting)
            if self._taken(at, gone):
                self._move(at, gone)
            return
        self._unlisted.pop(at, None)
        if work.step is MaintenanceStep.DRAINING:
            if why := self._room.none(work, self.works, self._plan, listing):
                self._why[at] = why
                if self._plan.max_wait and now - work.began >= self._plan.max_wait:
                    self._move(at, maintenance_steps.untaken(work, f"not begun: {why}"))
            else:
                self._drain(at)
        elif work.step in (MaintenanceStep.RESUMING, MaintenanceStep.LIFTING, MaintenanceStep.UNDOING):
            self._lift(at)
        elif work.step is MaintenanceStep.MARKING:
            if (move := self._controller.mark(work)) and self._taken(at, move):
                self._move(at, move)
        else:
            seen = self._controller.seen(work, listing)
            if seen.hand is DrainOwner.OURS and not work.kept and now - work.drain_read_at >= KEPT_SECONDS:
                work = replace(work, kept=True)
                self._put(at, work)
            if work.step is MaintenanceStep.WAITING:
                if seen.hand is DrainOwner.OURS and not self._stays(at, listing):
                    return
                work = self.works[at]
                moved = maintenance_steps.waiting(work, seen, now, self._plan, aborting=self._aborting)
                if moved and self._taken(at, moved):
                    self._move(at, moved)
            elif move := maintenance_steps.drain_lost(work, seen):
                self._move(at, move)
            elif work.step is MaintenanceStep.APPLYING and not work.boot_before:
                self._read(at, self._before)
            elif work.step is MaintenanceStep.REBOOTING:
                self._read(at, self._rebooting)
            elif work.step is MaintenanceStep.VERIFYING and at not in self._well:
                self._read(at, self._verifying)

    def _drain(self, at: int) -> None:
        self._put(at, replace(self.works[at], sent=self._clock.now()))
        work = self.works[at]
        move, since = self._controller.drain(work, work.replaced_reason)
        if move is None or not self._taken(at, move):
            return
        now = self._clock.now()
        stands = {"drained": since or now, "drain_read_at": now, "kept": False} if move.step is MaintenanceStep.WAITING else {}
        self._move(at, move, **stands)

    def _lost_lift(self, at: int, listing: Listing) -> None:
        """Lift the node's drain again if it is back because a killed slurmctld has forgotten that it was lifted."""
        work = self.works[at]
        lifted = work.step in (MaintenanceStep.QUEUED, *LIFTED) and work.text and work.since < listing.unix
        if not lifted or work.slurm not in listing.nodes:
            return
        if self._controller.owner(work, listing) is not DrainOwner.OURS:
            self._said_why.pop(at, None)
            return
        move = self._controller.lift(work, self._plan)
        refused = move is not None and move.step in (work.step, MaintenanceStep.MARKING)
        again = f"not resumed: {move.why}" if move is not None and refused else "resumed again"
        self._wait(at, f"slurmctld has forgotten that it was resumed: {again}")

    # -- the node itself -----------------------------------------------------------------------------------

    def _read(self, at: int, then: Callable[[int, NodeReading], None]) -> None:
        node = self.works[at].node
        self._send((at,), lambda: self._nodes.read(node), lambda reading: then(at, reading))

    def _before(self, at: int, reading: NodeReading) -> None:
        """Record the node's boot id, its machine and its findings before the node is changed."""
        work = self.works[at]
        if reading.stranger or reading.trouble:
            self._move(at, Move(MaintenanceStep.MARKING, f"nothing was changed, ssh: {reading.stranger or reading.trouble}"))
            return
        known = (*reading.bad, *reading.worse)
        self._put(at, replace(work, boot_before=reading.boot, machine=reading.machine, known=known))

    def _groups(self, listing: Listing) -> None:
        """Start one provisioning run for all nodes that are ready to be applied, and one dry run for all that are ready to be
        checked. The two may run at the same time."""
        for check, step in ((False, MaintenanceStep.APPLYING), (True, MaintenanceStep.VERIFYING)):
            chosen = []
            for at, work in enumerate(self.works):
                if check in self._grouped or work.step is not step or self._in_flight(at):
                    continue
                if not (at in self._well if check else bool(work.boot_before)) or work.slurm not in listing.nodes:
                    continue
                seen = self._controller.seen(work, listing)
                if move := maintenance_steps.drain_lost(work, seen) if check else maintenance_steps.ready(work, seen):
                    self._move(at, move)
                else:
                    chosen.append(at)
            if chosen:
                self._provision(chosen, check=check)

    def _provision(self, chosen: Sequence[int], *, check: bool) -> None:
        nodes = [self.works[at].node for at in chosen]
        self._grouped.add(check)

        def then(said: Mapping[str, ApplyOutcome]) -> None:
            self._grouped.discard(check)
            for at in chosen:
                found = said.get(self.works[at].node, ApplyOutcome(trouble="the provisioning run has no result for it"))
                (self._checked if check else self._applied)(at, found)

        self._send(chosen, lambda: self._nodes.apply(nodes, check=check), then)

    def _applied(self, at: int, said: ApplyOutcome) -> None:
        work = self.works[at]
        self._move(at, maintenance_steps.applied(work, said, self._plan), changed=(*work.changed, *said.changed))

    def _rebooting(self, at: int, reading: NodeReading) -> None:
        work, now = self.works[at], self._clock.now()
        if move := node_verification.rebooting(work, reading, now, self._plan):
            if move.step is MaintenanceStep.VERIFYING:
                self._nodes.forget(work.node)
                self._move(at, move, boot_after=reading.boot)
            else:
                self._move(at, move)
        elif self._aborting:
            self._move(at, Move(MaintenanceStep.MARKING, "aborted while it was to be rebooted"))
        elif not reading.trouble and now - self._ordered.get(at, 0.0) >= ORDER_AGAIN_SECONDS:
            self._order(at)

    def _order(self, at: int) -> None:
        work = self.works[at]
        if move := maintenance_steps.ready(work, self._controller.now(work)):
            self._move(at, move)
            return
        registered = work.registered_before or self._controller.registered(work)
        self._put(at, replace(work, registered_before=registered))
        self._ordered[at] = self._clock.now()

        def then(trouble: str) -> None:
            if trouble:
                self._move(at, Move(MaintenanceStep.MARKING, f"could not be rebooted: {trouble}"))

        self._send((at,), lambda: self._nodes.reboot(work.node, work.boot_before), then)

    def _verifying(self, at: int, reading: NodeReading) -> None:
        work = self.works[at]
        if why := node_verification.unwell(work, reading, self._clock.now()) or self._unregistered(work):
            self._not_yet(at, why)
        else:
            self._well.add(at)

    def _unregistered(self, work: NodeWork) -> str:
        """Return why slurmctld cannot use the node yet, or "" if it can."""
        seen = self._controller.now(work)
        if seen.silent:
            return "slurmd there does not answer slurmctld, or slurmctld refuses its registration"
        if seen.off:
            return f"in slurmctld it is {seen.off}"
        if work.boot_after:
            began = self._controller.registered(work)
            if began == work.registered_before or not began.isdigit():  # slurmctld has no time before slurmd has registered
                return "slurmd has not registered since the reboot"
        return ""

    def _checked(self, at: int, said: ApplyOutcome) -> None:
        if said.trouble:
            self._well.discard(at)
            self._not_yet(at, said.trouble)
            return
        move = maintenance_steps.verified(self.works[at], said, self._plan)
        more = {"again": True} if move.step is MaintenanceStep.APPLYING else {"pending": said.pending}
        self._move(at, move, **more)

    def _not_yet(self, at: int, why: str) -> None:
        self._why[at] = why
        limit = min(ABORT_SECONDS, self._plan.verify_seconds) if self._aborting else self._plan.verify_seconds
        if self._clock.now() - self.works[at].since >= limit:
            self._move(at, Move(MaintenanceStep.MARKING, f"not well after {limit:.0f} s: {why}"))
