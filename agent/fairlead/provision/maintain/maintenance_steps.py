"""Describes the steps of a node in a maintenance run, as data and pure functions. Each function takes what was read and returns
the next step. "Our drain" is the drain that this run has set on the node.

A step is written to the journal *before* it is done, and every step can be done twice. After a kill the run does the journal's
last step again and goes on. No other recovery is needed.

    queued -> draining -> waiting -> applying -> rebooting -> verifying -> resuming -> done
                 |           |           |            |            |
                 +- lifting -+           +---------- marking ------+-> failed      (stays drained, the reason says why)
                       |
                       v
                   given_back, not_begun

If another run has drained nodes at the same time and a floor was broken, a node goes from ``waiting`` through ``undoing`` back
to ``queued``.

A node whose drain slurmctld refuses to lift goes from ``resuming``, ``lifting`` or ``undoing`` to ``marking``. A node that was
verified long ago, or that slurmctld reboots, goes from ``resuming`` back to ``verifying``.

A step between ``queued`` and the end may lead to ``taken``: somebody else has drained or resumed the node, and fairlead writes
nothing more to it. If slurmctld was killed and has lost our drain, a step leads to ``draining`` again. If the reboot has changed
the node's hardware or driver, ``verifying`` may lead to ``applying`` once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

#: Nothing is done to the node before our drain is this old. Until then another admin host may write its own reason over ours,
#: because it has read the node before our drain (no program acts on a reading older than 2 s, docs/decisions/0007).
SETTLE_SECONDS = 2.5
#: A drain that slurmctld has not answered may still take effect. So fairlead waits this long after it has sent the drain before
#: it treats a node without our drain as given back.
LATE_SECONDS = 15.0
#: slurmctld pings a resumed node within a second. A loaded slurmctld may take longer, so fairlead waits at least this long.
ANSWER_SECONDS = 60.0
#: The detail of a failed node begins with this text if the node was resumed and then did not answer slurmctld.
RESUMED = "resumed, and does not answer slurmctld"
#: A killed slurmctld loses the changes since its last save (SAVE_MAX_WAIT is 5 s, src/slurmctld/state_save.c). A drain that is
#: older than KEPT_SECONDS was saved. If such a drain is gone, somebody has lifted it.
KEPT_SECONDS = 15.0
#: What ``NodeInSlurm.off`` says of a node that slurmctld is going to reboot or has rebooted (policy.ownership.keep_off).
REBOOTING = "rebooting"


class MaintenanceStep(StrEnum):
    """Names the step that a node is in. After one of the last six steps no other step follows (see ``ENDS``)."""

    QUEUED = "queued"
    DRAINING = "draining"
    WAITING = "waiting"
    APPLYING = "applying"
    REBOOTING = "rebooting"
    VERIFYING = "verifying"
    RESUMING = "resuming"
    LIFTING = "lifting"
    UNDOING = "undoing"
    MARKING = "marking"
    DONE = "done"
    FAILED = "failed"
    TAKEN = "taken"
    SKIPPED = "skipped"
    RELEASED = "given_back"
    NOT_BEGUN = "not_begun"


ENDS = frozenset(
    {
        MaintenanceStep.DONE,
        MaintenanceStep.FAILED,
        MaintenanceStep.TAKEN,
        MaintenanceStep.SKIPPED,
        MaintenanceStep.RELEASED,
        MaintenanceStep.NOT_BEGUN,
    }
)
#: Steps in which the node has our drain, or our drain is about to be written or lifted. A node in such a step is in work.
IN_WORK = frozenset(MaintenanceStep) - ENDS - {MaintenanceStep.QUEUED}
#: Those of ``ENDS`` after which the node no longer has our drain, because it was lifted or never set.
LIFTED = frozenset({MaintenanceStep.DONE, MaintenanceStep.RELEASED, MaintenanceStep.NOT_BEGUN})
#: Steps in which the node must have our drain.
DRAIN_NEEDED = frozenset(
    {MaintenanceStep.WAITING, MaintenanceStep.APPLYING, MaintenanceStep.REBOOTING, MaintenanceStep.VERIFYING}
)

NEXT: Mapping[MaintenanceStep, frozenset[MaintenanceStep]] = {
    MaintenanceStep.QUEUED: frozenset({MaintenanceStep.DRAINING, MaintenanceStep.SKIPPED, MaintenanceStep.NOT_BEGUN}),
    MaintenanceStep.DRAINING: frozenset(
        {
            MaintenanceStep.WAITING,
            MaintenanceStep.LIFTING,
            MaintenanceStep.MARKING,
            MaintenanceStep.SKIPPED,
            MaintenanceStep.TAKEN,
            MaintenanceStep.NOT_BEGUN,
        }
    ),
    MaintenanceStep.WAITING: frozenset(
        {
            *(
                MaintenanceStep.APPLYING,
                MaintenanceStep.VERIFYING,
                MaintenanceStep.DRAINING,
                MaintenanceStep.LIFTING,
                MaintenanceStep.UNDOING,
                MaintenanceStep.MARKING,
            ),
            *(MaintenanceStep.TAKEN, MaintenanceStep.FAILED),
        }
    ),
    MaintenanceStep.APPLYING: frozenset(
        {
            MaintenanceStep.REBOOTING,
            MaintenanceStep.VERIFYING,
            MaintenanceStep.WAITING,
            MaintenanceStep.DRAINING,
            MaintenanceStep.MARKING,
            MaintenanceStep.TAKEN,
            MaintenanceStep.FAILED,
        }
    ),
    MaintenanceStep.REBOOTING: frozenset(
        {
            MaintenanceStep.VERIFYING,
            MaintenanceStep.WAITING,
            MaintenanceStep.DRAINING,
            MaintenanceStep.MARKING,
            MaintenanceStep.TAKEN,
            MaintenanceStep.FAILED,
        }
    ),
    MaintenanceStep.VERIFYING: frozenset(
        {
            MaintenanceStep.RESUMING,
            MaintenanceStep.APPLYING,
            MaintenanceStep.DRAINING,
            MaintenanceStep.MARKING,
            MaintenanceStep.TAKEN,
            MaintenanceStep.FAILED,
        }
    ),
    MaintenanceStep.RESUMING: frozenset(
        {
            MaintenanceStep.DONE,
            MaintenanceStep.VERIFYING,
            MaintenanceStep.TAKEN,
            MaintenanceStep.FAILED,
            MaintenanceStep.MARKING,
        }
    ),
    MaintenanceStep.LIFTING: frozenset(
        {MaintenanceStep.RELEASED, MaintenanceStep.TAKEN, MaintenanceStep.FAILED, MaintenanceStep.MARKING}
    ),
    MaintenanceStep.UNDOING: frozenset(
        {
            MaintenanceStep.QUEUED,
            MaintenanceStep.LIFTING,
            MaintenanceStep.TAKEN,
            MaintenanceStep.FAILED,
            MaintenanceStep.MARKING,
        }
    ),
    MaintenanceStep.MARKING: frozenset({MaintenanceStep.FAILED, MaintenanceStep.TAKEN}),
    **dict.fromkeys(ENDS, frozenset()),
}


class MaintenancePlan(Struct, frozen=True, kw_only=True):
    """Holds the options of a run. The fields that end in ``_seconds``, and max_wait, are in seconds.

    batch: how many nodes may be in work at once. max_failed: after this many failed nodes no further node is started. floors: by
    partition, how many nodes must stay usable. opens, window: when the maintenance window begins and ends, in Unix seconds.
    max_wait: how long a node may wait for its jobs or for a limit. A 0 in opens, window or max_wait means no limit.
    """

    reason: str
    batch: int = 1
    max_failed: int = 1
    floors: dict[str, int] = {}
    reboot: bool = False
    opens: float = 0.0
    window: float = 0.0
    max_wait: float = 0.0
    reboot_seconds: float = 1800.0
    verify_seconds: float = 300.0
    settle_seconds: float = SETTLE_SECONDS


class NodeWork(Struct, frozen=True, kw_only=True):
    """Describes one node of a run, as the journal has it. Times are in Unix seconds, and 0 if the event has not happened yet.

    text: the exact reason of our drain. mark: the exact reason that replaces ``text`` when the node has failed. replaced_reason:
    the exact reason of an earlier maintenance run, which our drain replaces. A node with such a reason is not resumed if its
    work has not begun. floors_kept: all nodes were listed after our drain was set, and no floor was broken.

    drained: when our drain was set, by slurmctld's clock. drain_read_at: when this host first read our drain. kept: our drain is
    old enough to be in slurmctld's saved state. sent: when this host sent a drain whose result is not known yet.

    boot_before: the boot id before the work. registered_before: slurmd's start time before the reboot. machine: the serial
    numbers of the machine, or its machine id. again: the node was applied once more after the reboot. known: the findings before
    the maintenance. pending: the settings that wait for a reboot. In the journal, the
    fields replaced_reason, floors_kept and drain_read_at still have their names of fairlead 0.1.0: `took`, `room` and `stands`.
    """

    node: str
    slurm: str
    step: MaintenanceStep = MaintenanceStep.QUEUED
    since: float = 0.0
    detail: str = ""
    text: str = ""
    mark: str = ""
    replaced_reason: str = field(default="", name="took")
    floors_kept: bool = field(default=False, name="room")
    began: float = 0.0
    sent: float = 0.0
    drained: float = 0.0
    drain_read_at: float = field(default=0.0, name="stands")
    kept: bool = False
    idle: float = 0.0
    ended: float = 0.0
    boot_before: str = ""
    boot_after: str = ""
    registered_before: str = ""
    machine: str = ""
    again: bool = False
    known: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    def at(self, step: MaintenanceStep, now: float, detail: str = "") -> NodeWork:
        """Return this node with its next step. Raises ValueError if ``step`` cannot follow the present step, which would be a
        bug of fairlead."""
        if step not in NEXT[self.step]:
            raise ValueError(f"{self.node}: {step} does not follow {self.step}")
        ended = now if step in ENDS else self.ended
        sent = self.sent if step is MaintenanceStep.LIFTING else 0.0  # a drain that was sent may still take effect
        work = replace(self, step=step, since=now, detail=detail, ended=ended, sent=sent)
        if step is MaintenanceStep.QUEUED:
            work = replace(work, began=0.0, drained=0.0, drain_read_at=0.0, kept=False, floors_kept=False)
        return work

    @property
    def newest(self) -> float:
        """Return the latest time that this host has recorded for the node."""
        return max(self.since, self.began, self.sent, self.drain_read_at, self.idle, self.ended)

    def not_after(self, now: float) -> NodeWork:
        """Return this node with no time after ``now`` that a limit is counted from. The times of a clock that was ahead are then
        those of the present moment."""
        if self.newest <= now:
            return self
        since, drain_read_at = min(self.since, now), min(self.drain_read_at, now)
        if self.ended:
            return replace(self, since=since)
        began, sent, idle = min(self.began, now), min(self.sent, now), min(self.idle, now)
        return replace(self, since=since, began=began, sent=sent, drain_read_at=drain_read_at, idle=idle)


class DrainOwner(StrEnum):
    """Says who has drained the node. free: nobody. ours: this run. other: somebody else. covered: this run, but slurmctld has
    replaced our reason by its own."""

    FREE = "free"
    OURS = "ours"
    OTHER = "other"
    COVERED = "covered"


class NodeInSlurm(Struct, frozen=True, kw_only=True):
    """Describes one node as slurmctld has it. who: the node's state, reason and user in words. off: why nothing may be written
    to the node now, or "" if it may be written.

    jobs: how many jobs the node has. lost: slurmctld may have forgotten our drain, because it was restarted after our drain and
    may not have saved it. since: the time of the node's reason, by slurmctld's clock. silent: slurmctld gets no answer from the
    node's slurmd, or refuses its registration.
    """

    hand: DrainOwner
    who: str = ""
    off: str = ""
    jobs: int = 0
    lost: bool = False
    since: float = 0.0
    silent: bool = False


class NodeService(Struct, frozen=True, kw_only=True):
    """Says whether a node is in service when a report is made. hand: who has drained the node. serving: new jobs start on the
    node. who: the node's state, reason and user in words."""

    hand: DrainOwner
    serving: bool
    who: str


class Move(Struct, frozen=True):
    """Holds the next step of a node, and the reason for it in one line. If the next step is the present one, the node has to wait
    in it, and the reason says why."""

    step: MaintenanceStep
    why: str = ""


class ApplyOutcome(Struct, frozen=True, kw_only=True):
    """Holds the result of a provisioning run for one node. trouble: why the run failed on this node, or "". changed: what the
    run has changed, or in a dry run would change. pending: the settings that wait for a reboot. waiting: the settings that wait
    for anything else."""

    trouble: str = ""
    changed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class NodeReading(Struct, frozen=True, kw_only=True):
    """Holds what was read from a node over ssh. trouble: why the node could not be read, or "". stranger: a text that
    says which other machine answers at the node's address, or "" if no other machine does.

    machine: the machine's serial numbers. verdict: ok, warn, drain, unknown, stale or none. age_seconds: the age of the agent's
    last sweep. bad: the findings of level drain or unknown. worse: those findings in ``bad`` whose check is in mode enforce. A
    finding in ``worse`` keeps the node drained even if the node had it before the maintenance.
    """

    trouble: str = ""
    stranger: str = ""
    boot: str = ""
    machine: str = ""
    verdict: str = "none"
    text: str = ""
    age_seconds: float | None = None
    verdict_boot: str = ""
    bad: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()


# -- in the queue and before the drain --------------------------------------------------------------


def before_drain(work: NodeWork, seen: NodeInSlurm, *, adopt: bool = False) -> Move | None:
    """Return the move of a node before our drain is written. None means that the drain may be written now. A move to
    ``draining`` means that the drain has to wait. ``adopt``: the node has the drain of an earlier maintenance run, which our
    drain may replace."""
    if seen.hand is DrainOwner.OURS:
        return Move(MaintenanceStep.WAITING, "drained")
    again = bool(work.drained)  # the node had our drain before, and slurmctld has lost it
    if seen.hand is DrainOwner.COVERED or (seen.hand is DrainOwner.OTHER and not adopt):
        return (
            Move(MaintenanceStep.TAKEN, f"somebody else holds it now: {seen.who}")
            if again
            else Move(MaintenanceStep.SKIPPED, untouched(seen.who))
        )
    if seen.off:
        return (
            Move(MaintenanceStep.DRAINING, f"waits: {seen.off}") if again else Move(MaintenanceStep.SKIPPED, untouched(seen.off))
        )
    return None


def announced(plan: MaintenancePlan) -> str:
    """Return the summary in the reason of our drain. It announces the reboot to a person who reads `sinfo -R` and wants to
    resume the node."""
    return f"{plan.reason} (node will reboot)" if plan.reboot else plan.reason


def untouched(why: str) -> str:
    return f"not touched: {why}"


def drain_refused(work: NodeWork, why: str) -> Move:
    """Return the last move of a node whose drain slurmctld has refused. ``why``: slurmctld's error."""
    return Move(MaintenanceStep.TAKEN if work.drained else MaintenanceStep.SKIPPED, untouched(why))


def read_back(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move of a node after our drain was written, or None if the node must be read again."""
    if seen.hand is DrainOwner.OURS:
        return Move(MaintenanceStep.WAITING, "drained")
    if seen.hand is DrainOwner.FREE:
        return None  # the drain is not there yet, or was lost: the next reading decides
    return Move(MaintenanceStep.TAKEN, f"somebody else drained it at the same time: {seen.who}")


# -- while it has our drain --------------------------------------------------------------------------


def drain_lost(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move of a node that no longer has our drain, or None if it still has it."""
    if seen.hand is DrainOwner.OTHER:
        return Move(MaintenanceStep.TAKEN, f"somebody else holds it now, left to them: {seen.who}")
    if seen.hand is DrainOwner.COVERED:
        return Move(MaintenanceStep.FAILED, f"slurmctld keeps it drained: {seen.who}")
    if seen.hand is DrainOwner.FREE and seen.lost:
        return Move(MaintenanceStep.DRAINING, "slurmctld was restarted and has lost our drain: made again")
    if seen.hand is DrainOwner.FREE:
        how = f"slurmctld or somebody has lifted its drain ({seen.off})" if seen.off else "somebody has resumed it"
        return Move(MaintenanceStep.TAKEN, f"{how}{amid(work)}: left to them")
    return None


def amid(work: NodeWork) -> str:
    """Return a warning about the reboot for a person who has resumed the node, or "" if no reboot was ordered. An ordered reboot
    cannot be cancelled."""
    if work.step is MaintenanceStep.REBOOTING and work.registered_before:
        return " after its reboot was ordered, which cannot be cancelled: jobs that start there before it are lost"
    return ""


def waiting(work: NodeWork, seen: NodeInSlurm, now: float, plan: MaintenancePlan, *, aborting: bool) -> Move | None:
    """Return the move of a drained node that waits for its jobs to end, or None if it goes on waiting. Jobs are never cancelled.
    A node that is still busy after ``max_wait`` is given back."""
    if moved := drain_lost(work, seen):
        return moved
    begun = bool(work.boot_before)  # our drain was lost after the work had begun, and was made again
    if aborting and begun:
        why = "aborted in the middle of its work"
        return (
            Move(MaintenanceStep.MARKING, f"{why}, and jobs have come")
            if seen.jobs
            else Move(MaintenanceStep.VERIFYING, f"{why}: is it as declared?")
        )
    if aborting:
        return untaken(work, "aborted before anything was changed")
    if seen.jobs == 0 and now - work.since >= plan.settle_seconds:
        if seen.off == REBOOTING:  # the reboot would cut the apply
            return Move(work.step, f"in slurmctld it is {seen.off}")
        return Move(MaintenanceStep.APPLYING, "idle")
    if seen.jobs and plan.max_wait and now - work.began >= plan.max_wait:
        if begun:
            return Move(MaintenanceStep.MARKING, f"still busy after {plan.max_wait:.0f} s, in the middle of its work")
        return untaken(work, f"still busy after {plan.max_wait:.0f} s: given back, its jobs go on")
    return None


def untaken(work: NodeWork, why: str) -> Move:
    """Return the move that gives back a node whose work has not begun. A node that an earlier run has left drained stays
    drained."""
    if not work.replaced_reason:
        return Move(MaintenanceStep.LIFTING, why)
    return Move(MaintenanceStep.MARKING, f"{why}; an earlier run had left it drained: {work.replaced_reason.partition(' ')[2]}")


def ready(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move of a node that may not be changed or rebooted now, or None if it has our drain and no job."""
    if moved := drain_lost(work, seen):
        return moved
    if seen.jobs:
        return Move(MaintenanceStep.WAITING, f"{seen.jobs} jobs have come")
    return None


def applied(work: NodeWork, said: ApplyOutcome, plan: MaintenancePlan) -> Move:
    """Return the move of a node after the provisioning run. Settings that wait for a reboot are no failure if the run was not
    asked to reboot. The report names them."""
    if said.trouble:
        return Move(MaintenanceStep.MARKING, f"apply: {said.trouble}")
    if plan.reboot and not work.boot_after:
        return Move(MaintenanceStep.REBOOTING, "reboot")
    return Move(MaintenanceStep.VERIFYING, "applied")


def verified(work: NodeWork, said: ApplyOutcome, plan: MaintenancePlan) -> Move:
    """Return the move of a healthy node after a dry run. The node must be as declared. If the run was not asked to reboot,
    settings may still wait for a reboot.

    What a setting wants depends on the node's hardware and driver, and a reboot may change these. Therefore a node that is not
    as declared after its reboot is applied once more.
    """
    if said.changed and work.boot_after and not work.again:
        return Move(MaintenanceStep.APPLYING, f"the reboot has changed the node, applied again: {said.changed[0]}")
    if found := (*said.changed, *said.waiting):
        return Move(MaintenanceStep.MARKING, f"not as declared: {found[0]}")
    if said.pending and plan.reboot:
        return Move(MaintenanceStep.MARKING, f"not in effect after the reboot: {said.pending[0]}")
    return Move(MaintenanceStep.RESUMING, "well")


def marked(plan: MaintenancePlan, why: str) -> str:
    """Return the summary in the reason of a failed node, which stays drained."""
    return f"{plan.reason}; FAILED: {why}"


# -- the end --------------------------------------------------------------------------------------


def before_mark(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the last move of a failed node whose reason we may no longer change, or None if we may."""
    if seen.hand is DrainOwner.COVERED:
        return Move(MaintenanceStep.FAILED, f"{work.detail}; slurmctld keeps it drained: {seen.who}")
    if seen.hand is not DrainOwner.OURS:
        return Move(MaintenanceStep.TAKEN, f"{work.detail}; left as somebody else has set it since: {seen.who}")
    return None


def lifted(work: NodeWork, seen: NodeInSlurm, now: float, plan: MaintenancePlan) -> Move | None:
    """Return the move of a node in ``resuming``, ``lifting`` or ``undoing``, before or after our drain is lifted.

    None means that the node stays in its step: our drain is not lifted yet, a drain that was sent may still take effect, or
    slurmctld gets no answer from the node yet and starts no job on it.
    """
    if seen.hand is DrainOwner.FREE and work.step is MaintenanceStep.RESUMING:
        if not seen.silent:
            return Move(MaintenanceStep.DONE)
        limit = limit_seconds(plan) + ANSWER_SECONDS  # the drain may have been lifted only shortly before the first limit
        return Move(MaintenanceStep.FAILED, f"{RESUMED} after {limit:.0f} s") if now - work.since >= limit else None
    if seen.hand is DrainOwner.FREE and work.step is MaintenanceStep.UNDOING:
        return Move(MaintenanceStep.QUEUED)
    if seen.hand is DrainOwner.FREE:
        late = bool(work.sent) and now - work.sent < LATE_SECONDS
        late = late or (seen.silent and now - work.since < ANSWER_SECONDS)
        return None if late else Move(MaintenanceStep.RELEASED)
    if seen.hand is DrainOwner.OTHER:
        return Move(MaintenanceStep.TAKEN, f"somebody else holds it now, left to them: {seen.who}")
    if seen.hand is DrainOwner.COVERED:
        return Move(MaintenanceStep.FAILED, f"slurmctld keeps it drained: {seen.who}")
    return None


def before_lift(work: NodeWork, seen: NodeInSlurm, now: float, plan: MaintenancePlan) -> Move | None:
    """Return the move of a node in ``resuming``, ``lifting`` or ``undoing`` before our drain is lifted, or None if it may be
    lifted. A verified node is verified again if slurmctld reboots it or powers it down, or if the run or slurmctld was away."""
    if work.step is MaintenanceStep.RESUMING and seen.hand is DrainOwner.OURS:
        if seen.off:
            return Move(MaintenanceStep.VERIFYING, f"not resumed, and verified again: {seen.off}")
        if now - work.since >= limit_seconds(plan):
            return Move(MaintenanceStep.VERIFYING, f"verified again, because it is still drained after {now - work.since:.0f} s")
    return lifted(work, seen, now, plan)


def limit_seconds(plan: MaintenancePlan) -> float:
    """Return how long a node may stay in a step in which slurmctld does not let it go on."""
    return max(ANSWER_SECONDS, plan.verify_seconds)


def lift_refused(work: NodeWork, why: str, now: float, plan: MaintenancePlan) -> Move:
    """Return the move of a node whose drain slurmctld refuses to lift. The run tries again for a limited time. ``why``:
    slurmctld's error."""
    said = f"slurmctld refuses to resume it: {why}"
    over = now - work.since >= limit_seconds(plan) / 2  # before the node would be verified again
    return Move(MaintenanceStep.MARKING if over else work.step, said)


def unlisted(work: NodeWork, since: float, now: float, plan: MaintenancePlan, *, aborting: bool) -> Move:
    """Return the move of a node that slurmctld has not listed since the time ``since``. The run waits for a limited time, because
    the node may come back."""
    over = aborting or now - since >= limit_seconds(plan)
    return Move(MaintenanceStep.TAKEN if over else work.step, "slurmctld has no such node any more")


def abort(work: NodeWork) -> Move | None:
    """Return the first move of a node when its run is aborted, or None if the node goes on with its present step.

    A node that is being applied or verified goes back into service if it is well and as declared. Otherwise it stays drained.
    """
    if work.step is MaintenanceStep.QUEUED:
        return Move(MaintenanceStep.NOT_BEGUN, "aborted before it was begun")
    if work.step is MaintenanceStep.DRAINING and not work.boot_before:
        return untaken(work, "aborted before anything was changed")
    if work.step is MaintenanceStep.UNDOING:
        return Move(MaintenanceStep.LIFTING, "aborted before anything was changed")
    if work.step is MaintenanceStep.APPLYING:
        return Move(MaintenanceStep.VERIFYING, "aborted while it was applied: is it as declared?")
    return None
