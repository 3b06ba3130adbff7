"""A node's way through a maintenance run, as data and pure functions: what was seen in, the next step out.

A step is written to the journal *before* it is done, and each can be done twice: whatever the moment in which a run was
killed, doing the journal's step again is right. So there is no other recovery than to go on.

    queued -> draining -> waiting -> applying -> rebooting -> verifying -> resuming -> done
                 |           |           |            |            |
                 +- lifting -+           +---------- marking ------+-> failed      (stays drained, the reason says why)
                       |
                       v
                   given_back, not_begun

From ``waiting`` a node may go through ``undoing`` back to ``queued``: another run has drained nodes at the same time, and a floor
was broken.

``taken`` (somebody else holds the node now: nothing more is written about it) may come from every step in between, and
``draining`` again where slurmctld was killed and has lost our drain; ``applying`` once again from ``verifying``, where the reboot
has changed what the node is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

#: Our drain has to stand so long before anything is done to the node: another admin host that read the node as free may write
#: its own reason over ours so long (a reading older than 2 s is not acted on, docs/decisions/0007).
SETTLE_SECONDS = 2.5
#: What was sent to slurmctld and not answered may still arrive: so long a node is not believed to be free of it.
LATE_SECONDS = 15.0
#: slurmctld pings a node that was resumed in its next second; so long that is waited for at least, however loaded it is.
ANSWER_SECONDS = 60.0
#: How the failure of a node begins that was well, was resumed, and that slurmctld then gets no answer from.
RESUMED = "resumed, and does not answer slurmctld"
#: A slurmctld that is killed forgets what is younger than its last save (SAVE_MAX_WAIT is 5 s, src/slurmctld/state_save.c): what
#: stood so long and is gone was lifted by somebody.
KEPT_SECONDS = 15.0


class Step(StrEnum):
    """Where a node is. The last six are ends."""

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
    GIVEN_BACK = "given_back"
    NOT_BEGUN = "not_begun"


ENDS = frozenset({Step.DONE, Step.FAILED, Step.TAKEN, Step.SKIPPED, Step.GIVEN_BACK, Step.NOT_BEGUN})
#: Steps in which our drain stands, or is about to be written or lifted: these nodes are in work.
IN_WORK = frozenset(Step) - ENDS - {Step.QUEUED}
#: Ends in which a drain of ours was lifted, where there was one.
LIFTED = frozenset({Step.DONE, Step.GIVEN_BACK, Step.NOT_BEGUN})
#: Steps in which our drain has to be there.
STANDING = frozenset({Step.WAITING, Step.APPLYING, Step.REBOOTING, Step.VERIFYING})

NEXT: Mapping[Step, frozenset[Step]] = {
    Step.QUEUED: frozenset({Step.DRAINING, Step.SKIPPED, Step.NOT_BEGUN}),
    Step.DRAINING: frozenset({Step.WAITING, Step.LIFTING, Step.MARKING, Step.SKIPPED, Step.TAKEN, Step.NOT_BEGUN}),
    Step.WAITING: frozenset(
        {
            *(Step.APPLYING, Step.VERIFYING, Step.DRAINING, Step.LIFTING, Step.UNDOING, Step.MARKING),
            *(Step.TAKEN, Step.FAILED),
        }
    ),
    Step.APPLYING: frozenset(
        {Step.REBOOTING, Step.VERIFYING, Step.WAITING, Step.DRAINING, Step.MARKING, Step.TAKEN, Step.FAILED}
    ),
    Step.REBOOTING: frozenset({Step.VERIFYING, Step.WAITING, Step.DRAINING, Step.MARKING, Step.TAKEN, Step.FAILED}),
    Step.VERIFYING: frozenset({Step.RESUMING, Step.APPLYING, Step.DRAINING, Step.MARKING, Step.TAKEN, Step.FAILED}),
    Step.RESUMING: frozenset({Step.DONE, Step.TAKEN, Step.FAILED, Step.MARKING}),
    Step.LIFTING: frozenset({Step.GIVEN_BACK, Step.TAKEN, Step.FAILED}),
    Step.UNDOING: frozenset({Step.QUEUED, Step.LIFTING, Step.TAKEN, Step.FAILED}),
    Step.MARKING: frozenset({Step.FAILED, Step.TAKEN}),
    **dict.fromkeys(ENDS, frozenset()),
}


class Plan(Struct, frozen=True, kw_only=True):
    """What a run was asked for. Times in seconds, ``opens`` and ``window`` (when the window ends) Unix; 0 for no such bound.

    batch: nodes in work at once. max_failed: so many failed nodes end the beginning of new ones. floors: partition to the
    nodes that stay usable there.
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


class Work(Struct, frozen=True, kw_only=True):
    """One node of a run, as the journal has it. Times are Unix seconds, 0 for not yet.

    text: our exact reason; mark: the exact reason that says why the node failed. took: the exact reason of an earlier
    maintenance, in place of which ours was written: such a node is never resumed untouched. room: all nodes were listed after
    the drain, and every floor held. drained: by slurmctld's clock; stands: when
    that was first read, by ours; kept: it stood long enough to outlast any end of slurmctld. sent: when a write to slurmctld
    went out that has not been answered. boot_before, registered_before: boot id and slurmd's start before
    the reboot. machine: what the machine says it is (serial numbers, machine id). again: it was applied once more after the
    reboot. known: findings that stood before. pending: settings that wait for a reboot.
    """

    node: str
    slurm: str
    step: Step = Step.QUEUED
    since: float = 0.0
    detail: str = ""
    text: str = ""
    mark: str = ""
    took: str = ""
    room: bool = False
    began: float = 0.0
    sent: float = 0.0
    drained: float = 0.0
    stands: float = 0.0
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

    def at(self, step: Step, now: float, detail: str = "") -> Work:
        """This node one step on. Raises ValueError for a step that does not follow: that would be a bug of ours."""
        if step not in NEXT[self.step]:
            raise ValueError(f"{self.node}: {step} does not follow {self.step}")
        ended = now if step in ENDS else self.ended
        sent = self.sent if step is Step.LIFTING else 0.0  # a drain that was sent may yet arrive
        work = replace(self, step=step, since=now, detail=detail, ended=ended, sent=sent)
        if step is Step.QUEUED:
            work = replace(work, began=0.0, drained=0.0, stands=0.0, kept=False, room=False)
        return work


class Hand(StrEnum):
    """Who holds the node in Slurm: nobody, this run, somebody else, or slurmctld itself with words of its own over ours."""

    FREE = "free"
    OURS = "ours"
    OTHER = "other"
    COVERED = "covered"


class Seen(Struct, frozen=True, kw_only=True):
    """One node as slurmctld has it. who: state, reason and user in words. off: why nothing may be written now, "" for nothing.

    jobs: that hold it. lost: slurmctld began after our drain was made, and that is young enough to have been forgotten. since:
    of the reason, by slurmctld's clock. silent: slurmctld gets no answer from the slurmd there, or does not take what it says.
    """

    hand: Hand
    who: str = ""
    off: str = ""
    jobs: int = 0
    lost: bool = False
    since: float = 0.0
    silent: bool = False


class Now(Struct, frozen=True, kw_only=True):
    """Where a node is when a report is made. serving: new jobs start there. who: state, reason and user in words."""

    hand: Hand
    serving: bool
    who: str


class Move(Struct, frozen=True):
    """The next step, and why in one line."""

    step: Step
    why: str = ""


class Applied(Struct, frozen=True, kw_only=True):
    """What a provisioning run said of one node. trouble: why it failed, "" when it did not. changed: what was (in a dry run:
    would be) changed; pending: what waits for a reboot; waiting: what waits for anything else."""

    trouble: str = ""
    changed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Looked(Struct, frozen=True, kw_only=True):
    """What a node said of itself over ssh. trouble: why it could not be asked; stranger: another machine answers there.

    machine: its serial numbers. verdict: ok, warn, drain, unknown, stale or none, with the age of the agent's last look.
    bad: findings that speak against service; worse: those of a check that may drain, whatever stood before.
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


def first(work: Work, seen: Seen, *, adopt: bool = False) -> Move | None:
    """Before the drain is written: None to write it, ``draining`` again to wait. ``adopt``: the drain that stands is of a run of
    ours that is done with the node."""
    if seen.hand is Hand.OURS:
        return Move(Step.WAITING, "drained")
    again = bool(work.drained)  # our drain stood before, and slurmctld has lost it
    if seen.hand is Hand.COVERED or (seen.hand is Hand.OTHER and not adopt):
        return Move(Step.TAKEN, f"somebody else holds it now: {seen.who}") if again else Move(Step.SKIPPED, untouched(seen.who))
    if seen.off:
        return Move(Step.DRAINING, f"waits: {seen.off}") if again else Move(Step.SKIPPED, untouched(seen.off))
    return None


def announced(plan: Plan) -> str:
    """The summary of our drain: whoever reads it in `sinfo -R` before a resume has to know of the reboot."""
    return f"{plan.reason} (node will reboot)" if plan.reboot else plan.reason


def untouched(why: str) -> str:
    return f"not touched: {why}"


def read_back(work: Work, seen: Seen) -> Move | None:
    """After the drain was written."""
    if seen.hand is Hand.OURS:
        return Move(Step.WAITING, "drained")
    if seen.hand is Hand.FREE:
        return None  # not there yet, or lost: the next look decides
    return Move(Step.TAKEN, f"somebody else drained it at the same time: {seen.who}")


# -- while our drain stands --------------------------------------------------------------------------


def standing(work: Work, seen: Seen) -> Move | None:
    """Is our drain still there? None for yes."""
    if seen.hand is Hand.OTHER:
        return Move(Step.TAKEN, f"somebody else holds it now, left to them: {seen.who}")
    if seen.hand is Hand.COVERED:
        return Move(Step.FAILED, f"slurmctld keeps it drained: {seen.who}")
    if seen.hand is Hand.FREE and seen.lost:
        return Move(Step.DRAINING, "slurmctld was restarted and has lost our drain: made again")
    if seen.hand is Hand.FREE:
        return Move(Step.TAKEN, f"somebody has resumed it{amid(work)}: left to them")
    return None


def amid(work: Work) -> str:
    """What a person who has resumed a node has to know of its reboot, which cannot be called back."""
    if work.step is Step.REBOOTING and work.registered_before:
        return " after its reboot was ordered, which nobody can call back: jobs that start there before it are lost"
    return ""


def waiting(work: Work, seen: Seen, now: float, plan: Plan, *, aborting: bool) -> Move | None:
    """Our drain stands: has every job ended? Jobs are never cancelled; a node that stays busy is given back."""
    if moved := standing(work, seen):
        return moved
    begun = bool(work.boot_before)  # its drain was lost in the middle of the work, and made again
    if aborting and begun:
        why = "aborted in the middle of its work"
        return (
            Move(Step.MARKING, f"{why}, and jobs have come") if seen.jobs else Move(Step.VERIFYING, f"{why}: is it as declared?")
        )
    if aborting:
        return untaken(work, "aborted before anything was changed")
    if seen.jobs == 0 and now - work.since >= plan.settle_seconds:
        return Move(Step.APPLYING, "idle")
    if seen.jobs and plan.max_wait and now - work.began >= plan.max_wait:
        if begun:
            return Move(Step.MARKING, f"still busy after {plan.max_wait:.0f} s, in the middle of its work")
        return untaken(work, f"still busy after {plan.max_wait:.0f} s: given back, its jobs go on")
    return None


def untaken(work: Work, why: str) -> Move:
    """A node whose work has not begun is given back; one that an earlier run has left drained stays drained."""
    if not work.took:
        return Move(Step.LIFTING, why)
    return Move(Step.MARKING, f"{why}; an earlier run had left it drained: {work.took.partition(' ')[2]}")


def ready(work: Work, seen: Seen) -> Move | None:
    """Right before the node is changed or rebooted: ours, and nobody runs there. None for yes."""
    if moved := standing(work, seen):
        return moved
    if seen.jobs:
        return Move(Step.WAITING, f"{seen.jobs} jobs have come")
    return None


def applied(work: Work, said: Applied, plan: Plan) -> Move:
    """After the provisioning run. What waits for a reboot that nobody asked for is reported, and is no failure."""
    if said.trouble:
        return Move(Step.MARKING, f"apply: {said.trouble}")
    if plan.reboot and not work.boot_after:
        return Move(Step.REBOOTING, "reboot")
    return Move(Step.VERIFYING, "applied")


def verified(work: Work, said: Applied, plan: Plan) -> Move:
    """After a dry run on a node that is well: is it as declared, but for what waits for a reboot that nobody asked for?

    What a node should be follows from what it is, and a reboot may change that (a driver, a GPU): once after it, it is applied
    again.
    """
    if said.changed and work.boot_after and not work.again:
        return Move(Step.APPLYING, f"another node since the reboot, applied again: {said.changed[0]}")
    if found := (*said.changed, *said.waiting):
        return Move(Step.MARKING, f"not as declared: {found[0]}")
    if said.pending and plan.reboot:
        return Move(Step.MARKING, f"not in effect after the reboot: {said.pending[0]}")
    return Move(Step.RESUMING, "well")


def marked(plan: Plan, why: str) -> str:
    """The summary of the reason that a failed node keeps."""
    return f"{plan.reason}; FAILED: {why}"


# -- the end --------------------------------------------------------------------------------------


def lifted(work: Work, seen: Seen, now: float, plan: Plan) -> Move | None:
    """Before (and after) our drain is lifted, in ``resuming``, ``lifting`` or ``undoing``: None where it stands and is to be
    lifted, or is lifted and the node not in service yet: slurmctld starts no job on one that does not answer."""
    if seen.hand is Hand.FREE and work.step is Step.RESUMING:
        if not seen.silent:
            return Move(Step.DONE)
        limit = max(ANSWER_SECONDS, plan.verify_seconds)
        return Move(Step.FAILED, f"{RESUMED} after {limit:.0f} s") if now - work.since >= limit else None
    if seen.hand is Hand.FREE and work.step is Step.UNDOING:
        return Move(Step.QUEUED)
    if seen.hand is Hand.FREE:
        late = bool(work.sent) and now - work.sent < LATE_SECONDS
        late = late or (seen.silent and now - work.since < ANSWER_SECONDS)
        return None if late else Move(Step.GIVEN_BACK)
    if seen.hand is Hand.OTHER:
        return Move(Step.TAKEN, f"somebody else holds it now, left to them: {seen.who}")
    if seen.hand is Hand.COVERED:
        return Move(Step.FAILED, f"slurmctld keeps it drained: {seen.who}")
    return None


def abort(work: Work) -> Move | None:
    """The first move of a run that is being aborted; None where the step goes on as it is.

    A node that is being applied or verified goes back into service if it is well and as declared, else it stays drained.
    """
    if work.step is Step.QUEUED:
        return Move(Step.NOT_BEGUN, "aborted before it was begun")
    if work.step is Step.DRAINING and not work.boot_before:
        return untaken(work, "aborted before anything was changed")
    if work.step is Step.UNDOING:
        return Move(Step.LIFTING, "aborted before anything was changed")
    if work.step is Step.APPLYING:
        return Move(Step.VERIFYING, "aborted while it was applied: is it as declared?")
    return None
