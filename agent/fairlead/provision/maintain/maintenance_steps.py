"""Describes a node's way through a maintenance run, as data and pure functions: they take what was seen, and return the next
step.

A step is written to the journal *before* it is done, and each can be done twice. Whenever a run was killed, it is right to do
the journal's step again. Therefore no other recovery is needed than to go on.

    queued -> draining -> waiting -> applying -> rebooting -> verifying -> resuming -> done
                 |           |           |            |            |
                 +- lifting -+           +---------- marking ------+-> failed      (stays drained, the reason says why)
                       |
                       v
                   given_back, not_begun

From ``waiting`` a node may go through ``undoing`` back to ``queued``: another run has drained nodes at the same time, and a
floor was broken.

Any step in between may lead to ``taken``: somebody else has drained the node, and nothing more is written about it. A step may
lead to ``draining`` again where slurmctld was killed and has lost our drain. ``verifying`` may lead to ``applying`` once more
where the reboot has changed what the node is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

#: Nothing is done to the node before our drain is this old. Until then another admin host that has read the node as free may
#: write its own reason over ours (nobody acts on a reading older than 2 s, docs/decisions/0007).
SETTLE_SECONDS = 2.5
#: A write that slurmctld has not answered may still arrive. A node counts as free of our drain only after this time.
LATE_SECONDS = 15.0
#: slurmctld pings a resumed node in its next second. A loaded one may take longer, so this is the shortest wait.
ANSWER_SECONDS = 60.0
#: The beginning of the failure of a node that was well and was resumed, and then does not answer slurmctld.
RESUMED = "resumed, and does not answer slurmctld"
#: A slurmctld that is killed forgets what is younger than its last save (SAVE_MAX_WAIT is 5 s, src/slurmctld/state_save.c). If a
#: drain was older than this and is gone, somebody has lifted it.
KEPT_SECONDS = 15.0


class MaintenanceStep(StrEnum):
    """Names the step that a node is in. The last six are ends."""

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
#: Steps in which the node has our drain, or our drain is about to be written or lifted. These nodes are in work.
IN_WORK = frozenset(MaintenanceStep) - ENDS - {MaintenanceStep.QUEUED}
#: Ends in which our drain was lifted, where there was one.
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
        {MaintenanceStep.DONE, MaintenanceStep.TAKEN, MaintenanceStep.FAILED, MaintenanceStep.MARKING}
    ),
    MaintenanceStep.LIFTING: frozenset({MaintenanceStep.RELEASED, MaintenanceStep.TAKEN, MaintenanceStep.FAILED}),
    MaintenanceStep.UNDOING: frozenset(
        {MaintenanceStep.QUEUED, MaintenanceStep.LIFTING, MaintenanceStep.TAKEN, MaintenanceStep.FAILED}
    ),
    MaintenanceStep.MARKING: frozenset({MaintenanceStep.FAILED, MaintenanceStep.TAKEN}),
    **dict.fromkeys(ENDS, frozenset()),
}


class MaintenancePlan(Struct, frozen=True, kw_only=True):
    """Holds what a run was asked for. Times are in seconds, ``opens`` and ``window`` (when the window ends) in Unix seconds; 0
    for no such bound.

    batch: how many nodes are in work at once. max_failed: no further nodes are started after so many failures. floors: by
    partition, how many nodes stay usable there.
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
    """Describes one node of a run, as the journal has it. Times are Unix seconds, 0 for not yet.

    text: our exact reason. mark: the exact reason that says why the node failed. replaced_reason: the exact reason of an
    earlier maintenance, which ours has replaced; such a node is never resumed untouched. floors_kept: all nodes were listed
    after the drain, and no floor was broken. drained: when, by slurmctld's clock. drain_read_at: when this host first read
    that. kept: the drain is old enough to be in slurmctld's saved state. sent: when a write to slurmctld went out that has not
    been answered.

    boot_before, registered_before: boot id and slurmd's start before the reboot. machine: what the machine says it is (serial
    numbers, machine id). again: it was applied once more after the reboot. known: findings before the maintenance. pending:
    settings that wait for a reboot. The journal's keys took, room and stands are those of fairlead 0.1.0.
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
        """Return this node one step further. Raises ValueError for a step that does not follow, which would be a bug of
        fairlead."""
        if step not in NEXT[self.step]:
            raise ValueError(f"{self.node}: {step} does not follow {self.step}")
        ended = now if step in ENDS else self.ended
        sent = self.sent if step is MaintenanceStep.LIFTING else 0.0  # a drain that was sent may still arrive
        work = replace(self, step=step, since=now, detail=detail, ended=ended, sent=sent)
        if step is MaintenanceStep.QUEUED:
            work = replace(work, began=0.0, drained=0.0, drain_read_at=0.0, kept=False, floors_kept=False)
        return work


class DrainOwner(StrEnum):
    """Says who has drained the node: nobody, this run, somebody else, or slurmctld itself with a reason of its own over ours."""

    FREE = "free"
    OURS = "ours"
    OTHER = "other"
    COVERED = "covered"


class NodeInSlurm(Struct, frozen=True, kw_only=True):
    """Describes one node as slurmctld has it. who: state, reason and user in words. off: why nothing may be written now, ""
    for nothing.

    jobs: how many jobs the node has. lost: slurmctld may have forgotten our drain, because it began after the drain was made
    and the drain was young. since: the time of the reason, by slurmctld's clock. silent: slurmctld gets no answer from the
    slurmd there, or refuses its registration.
    """

    hand: DrainOwner
    who: str = ""
    off: str = ""
    jobs: int = 0
    lost: bool = False
    since: float = 0.0
    silent: bool = False


class NodeService(Struct, frozen=True, kw_only=True):
    """Says whether a node is in service when a report is made. serving: new jobs start there. who: state, reason and user in
    words."""

    hand: DrainOwner
    serving: bool
    who: str


class Move(Struct, frozen=True):
    """Holds the next step, and why in one line."""

    step: MaintenanceStep
    why: str = ""


class ApplyOutcome(Struct, frozen=True, kw_only=True):
    """Holds what a provisioning run said about one node. trouble: why it failed, "" when it did not. changed: what was changed
    (in a dry run: would be). pending: what waits for a reboot. waiting: what waits for anything else."""

    trouble: str = ""
    changed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class NodeReading(Struct, frozen=True, kw_only=True):
    """Holds what was read of a node over ssh. trouble: why it could not be read. stranger: another machine answers there.

    machine: its serial numbers. verdict: ok, warn, drain, unknown, stale or none. age_seconds: the age of the agent's last
    sweep. bad: findings that speak against service. worse: those of checks that may drain, also if they were there before the
    maintenance.
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
    """Return the move before the drain is written: None to write it, ``draining`` to wait. ``adopt``: the node has the drain
    of an ended run of ours."""
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
    """Return the summary of our drain. A person who reads it in `sinfo -R` before a resume has to know of the reboot."""
    return f"{plan.reason} (node will reboot)" if plan.reboot else plan.reason


def untouched(why: str) -> str:
    return f"not touched: {why}"


def drain_refused(work: NodeWork, why: str) -> Move:
    """Return the end of a node whose drain slurmctld has refused, and why."""
    return Move(MaintenanceStep.TAKEN if work.drained else MaintenanceStep.SKIPPED, untouched(why))


def read_back(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move after the drain was written; None to read the node again."""
    if seen.hand is DrainOwner.OURS:
        return Move(MaintenanceStep.WAITING, "drained")
    if seen.hand is DrainOwner.FREE:
        return None  # the drain is not there yet, or was lost: the next reading decides
    return Move(MaintenanceStep.TAKEN, f"somebody else drained it at the same time: {seen.who}")


# -- while it has our drain --------------------------------------------------------------------------


def drain_lost(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move of a node that no longer has our drain; None where it has."""
    if seen.hand is DrainOwner.OTHER:
        return Move(MaintenanceStep.TAKEN, f"somebody else holds it now, left to them: {seen.who}")
    if seen.hand is DrainOwner.COVERED:
        return Move(MaintenanceStep.FAILED, f"slurmctld keeps it drained: {seen.who}")
    if seen.hand is DrainOwner.FREE and seen.lost:
        return Move(MaintenanceStep.DRAINING, "slurmctld was restarted and has lost our drain: made again")
    if seen.hand is DrainOwner.FREE:
        return Move(MaintenanceStep.TAKEN, f"somebody has resumed it{amid(work)}: left to them")
    return None


def amid(work: NodeWork) -> str:
    """Return what a person who has resumed a node has to know of its reboot, which cannot be cancelled; "" where none was
    ordered."""
    if work.step is MaintenanceStep.REBOOTING and work.registered_before:
        return " after its reboot was ordered, which cannot be cancelled: jobs that start there before it are lost"
    return ""


def waiting(work: NodeWork, seen: NodeInSlurm, now: float, plan: MaintenancePlan, *, aborting: bool) -> Move | None:
    """Return the move of a node that has our drain and waits for its jobs to end. Jobs are never cancelled; a node that stays
    busy is given back."""
    if moved := drain_lost(work, seen):
        return moved
    begun = bool(work.boot_before)  # its drain was lost during the work, and made again
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
        return Move(MaintenanceStep.APPLYING, "idle")
    if seen.jobs and plan.max_wait and now - work.began >= plan.max_wait:
        if begun:
            return Move(MaintenanceStep.MARKING, f"still busy after {plan.max_wait:.0f} s, in the middle of its work")
        return untaken(work, f"still busy after {plan.max_wait:.0f} s: given back, its jobs go on")
    return None


def untaken(work: NodeWork, why: str) -> Move:
    """Return the move of a node whose work has not begun: it is given back. A node that an earlier run has left drained stays
    drained."""
    if not work.replaced_reason:
        return Move(MaintenanceStep.LIFTING, why)
    return Move(MaintenanceStep.MARKING, f"{why}; an earlier run had left it drained: {work.replaced_reason.partition(' ')[2]}")


def ready(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the move of a node that may not be changed or rebooted now; None where it may, with our drain and no job."""
    if moved := drain_lost(work, seen):
        return moved
    if seen.jobs:
        return Move(MaintenanceStep.WAITING, f"{seen.jobs} jobs have come")
    return None


def applied(work: NodeWork, said: ApplyOutcome, plan: MaintenancePlan) -> Move:
    """Return the move after the provisioning run. What waits for a reboot that nobody asked for is reported, and is no
    failure."""
    if said.trouble:
        return Move(MaintenanceStep.MARKING, f"apply: {said.trouble}")
    if plan.reboot and not work.boot_after:
        return Move(MaintenanceStep.REBOOTING, "reboot")
    return Move(MaintenanceStep.VERIFYING, "applied")


def verified(work: NodeWork, said: ApplyOutcome, plan: MaintenancePlan) -> Move:
    """Return the move after a dry run on a node that is well. The node must be as declared, except for what waits for a reboot
    that nobody asked for.

    What a node should be follows from what it is, and a reboot may change that (a driver, a GPU). Therefore a node is applied
    again once after it.
    """
    if said.changed and work.boot_after and not work.again:
        return Move(MaintenanceStep.APPLYING, f"the reboot has changed the node, applied again: {said.changed[0]}")
    if found := (*said.changed, *said.waiting):
        return Move(MaintenanceStep.MARKING, f"not as declared: {found[0]}")
    if said.pending and plan.reboot:
        return Move(MaintenanceStep.MARKING, f"not in effect after the reboot: {said.pending[0]}")
    return Move(MaintenanceStep.RESUMING, "well")


def marked(plan: MaintenancePlan, why: str) -> str:
    """Return the summary of the reason that a failed node keeps."""
    return f"{plan.reason}; FAILED: {why}"


# -- the end --------------------------------------------------------------------------------------


def before_mark(work: NodeWork, seen: NodeInSlurm) -> Move | None:
    """Return the end of a failed node whose reason is no longer ours to change; None where it still is."""
    if seen.hand is DrainOwner.COVERED:
        return Move(MaintenanceStep.FAILED, f"{work.detail}; slurmctld keeps it drained: {seen.who}")
    if seen.hand is not DrainOwner.OURS:
        return Move(MaintenanceStep.TAKEN, f"{work.detail}; left as somebody else has set it since: {seen.who}")
    return None


def lifted(work: NodeWork, seen: NodeInSlurm, now: float, plan: MaintenancePlan) -> Move | None:
    """Return the move before or after our drain is lifted, in ``resuming``, ``lifting`` or ``undoing``. None means that the
    drain is still to be lifted, or that slurmctld gets no answer from the node yet, so that no job starts there."""
    if seen.hand is DrainOwner.FREE and work.step is MaintenanceStep.RESUMING:
        if not seen.silent:
            return Move(MaintenanceStep.DONE)
        limit = max(ANSWER_SECONDS, plan.verify_seconds)
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


def abort(work: NodeWork) -> Move | None:
    """Return the first move of a run that is being aborted; None where the step goes on as it is.

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
