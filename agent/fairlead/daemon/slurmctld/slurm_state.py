"""Describes this node's state in Slurm as far as the courier knows it, and the order of the main loop to the courier.

"Our drain" is a drain that fairlead has set on this node.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.drains.ledger import LedgerEntry, Phase
from fairlead.drains.outcome import Outcome, Result
from fairlead.model.verdict import State
from fairlead.policy import Decision, Now, Order
from fairlead.policy.drain_limits import DrainLimit


class CourierOrder(Struct, frozen=True, kw_only=True):
    """Describes an order to the courier. kind: keep, drain or resume. check, summary and job are the parts of the reason.

    certain: the device is certainly gone, see ``policy.drain_limits.CERTAIN``. pending_room: keep the node as it is, and drain
    it as soon as the drain limits leave room. fit: jobs may run here, so the courier lifts the drain "Prolog error" that
    slurmctld has set for a job that our prolog refused.
    """

    kind: str = "keep"
    check: str = ""
    summary: str = ""
    job: int | None = None
    certain: bool = False
    pending_room: bool = False
    fit: bool = False


def want_of(decision: Decision, now: Now) -> CourierOrder:
    """Return the order that carries out a decision. ``now``: the input of that decision."""
    if decision.order is Order.DRAIN or decision.limited:
        return CourierOrder(
            kind=decision.order.value,
            check=decision.reason_check,
            summary=decision.reason_summary,
            job=decision.job,
            certain=decision.certain,
            pending_room=decision.order is not Order.DRAIN,
        )
    healthy = decision.state_word in (State.OK, State.WARN) and not decision.counted and not (now.over_budget or now.suspicion)
    # During an apply or a hold, and while fairlead is disabled, findings are suppressed. So a node without findings that count
    # may still be unfit for jobs.
    silenced = now.applying or now.hold or now.disabled
    return CourierOrder(kind=decision.order.value, fit=healthy and decision.order is Order.KEEP and not silenced)


class SlurmState(Struct, frozen=True, kw_only=True):
    """Describes this node in Slurm.

    drained, reason, check, since: whether our drain is set in slurmctld, its text, its check, and when it began (Unix time in
    seconds). manual: a person drained the node through fairlead. confirmed: how often a reading has shown our drain.
    blocked_because: why an order is not carried out. foreign: somebody else has drained the node. over_budget: one line about
    the drain limit that forbade the last drain, which is kept for a while after that attempt. limit: the same limit as data.
    error: slurmctld's last error or timeout. asked: slurmctld has been asked since the agent started.

    acknowledged: how many of our drains were resumed by a person. lost: how many of our drains disappeared without a person's
    resume. why_lost: why the last lost drain disappeared. known: the names of the evidence that was acknowledged with the last
    drain that was resumed or lost. returned: how often the node has returned to service, by a resume of the agent or of a
    person. taken: the reason that somebody has set in place of our reason, or "" if there is none or it is not known.
    """

    drained: bool = False
    reason: str = ""
    blocked_because: str = ""
    foreign: bool = False
    over_budget: str = ""
    limit: DrainLimit | None = None
    error: str = ""
    asked: bool = False
    acknowledged: int = 0
    known: tuple[str, ...] = ()
    returned: int = 0
    lost: int = 0
    why_lost: str = ""
    taken: str = ""
    manual: bool = False
    confirmed: int = 0
    check: str = ""
    since: float = 0.0

    @property
    def settled(self) -> bool:
        """Return whether an order to drain has ended for now: our drain is set, or the order is blocked."""
        return self.drained or bool(self.blocked_because)

    @property
    def suspicion(self) -> str:
        """Return ``over_budget`` if the limit is the common cause or the suspect job, else ""."""
        return self.over_budget if self.limit is not None and self.limit.kind.suspicion else ""

    def differs_for_people(self, other: SlurmState) -> bool:
        """Return whether the other state differs in a field that is logged for people."""
        mine = (self.drained, self.blocked_because, self.over_budget)
        return mine != (other.drained, other.blocked_because, other.over_budget)


def blocked_because(result: Result) -> str:
    """Return why the node's state in slurmctld did not allow the attempt, or "" if it allowed the attempt."""
    return result.detail if result.outcome in (Outcome.BLOCKED, Outcome.FOREIGN, Outcome.ORPHAN) else ""


def state_after(before: SlurmState, result: Result, entry: LedgerEntry | None, *, ordered: bool, asked: bool) -> SlurmState:
    """Return the state after an attempt. ``entry``: the ledger's entry. ``ordered``: the attempt was to drain or to resume.
    ``asked``: the attempt asked slurmctld."""
    outcome = result.outcome
    ours = entry if entry is not None and entry.ours else None
    taken = entry is not None and entry.phase is Phase.TAKEN
    acknowledged, lost, over = outcome is Outcome.ACKNOWLEDGED, outcome is Outcome.LOST, outcome is Outcome.OVER_BUDGET
    return SlurmState(
        drained=ours is not None,
        reason=ours.token.text if ours else "",
        manual=bool(ours and ours.manual),
        check=ours.token.check if ours else "",
        since=ours.since if ours else 0.0,
        confirmed=before.confirmed + (asked and outcome is Outcome.DRAINED),
        blocked_because=blocked_because(result) if ordered else "",
        foreign=outcome in (Outcome.FOREIGN, Outcome.ORPHAN) and ordered,
        over_budget=result.detail if over else "",
        limit=result.limit if over else None,
        asked=before.asked or asked,
        acknowledged=before.acknowledged + acknowledged,
        lost=before.lost + lost,
        why_lost=result.detail if lost else before.why_lost,
        known=result.known if acknowledged or lost else before.known,
        returned=before.returned + (acknowledged or (before.drained and outcome is Outcome.RESUMED)),
        taken=(result.detail if outcome is Outcome.FOREIGN else before.taken) if taken else "",
    )
