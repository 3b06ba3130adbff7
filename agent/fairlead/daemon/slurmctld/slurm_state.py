"""Describes this node in Slurm as far as the courier knows it, and what the loop wants done there."""

from __future__ import annotations

from msgspec import Struct

from fairlead.drains.ledger import LedgerEntry, Phase
from fairlead.drains.outcome import Outcome, Result
from fairlead.model.verdict import State
from fairlead.policy import Decision, Now, Order
from fairlead.policy.drain_limits import DrainLimit


class CourierOrder(Struct, frozen=True, kw_only=True):
    """Orders something of the courier. kind: keep, drain or resume; check, summary and job are the parts of the reason.

    certain: see ``policy.drain_limits``. pending_room: keep the node as it is, and drain it as soon as the rules across nodes
    leave room. fit: jobs may run here, so Slurm's mark for a job that our prolog refused is to be lifted.
    """

    kind: str = "keep"
    check: str = ""
    summary: str = ""
    job: int | None = None
    certain: bool = False
    pending_room: bool = False
    fit: bool = False


def want_of(decision: Decision, now: Now) -> CourierOrder:
    """Return the order that carries a decision out. ``now``: what the decision was made on."""
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
    # Under a hold, and where fairlead is disabled, findings are suppressed: that they do not count says nothing of the node.
    silenced = now.applying or now.hold or now.disabled
    return CourierOrder(kind=decision.order.value, fit=healthy and decision.order is Order.KEEP and not silenced)


class SlurmState(Struct, frozen=True, kw_only=True):
    """Describes this node in Slurm.

    drained, reason, check, since: a drain of ours is set in slurmctld, its text, what it is for and when it was begun (Unix time
    in seconds). manual: a person drained the node through fairlead. confirmed: how often a reading has shown our drain.
    blocked_because: why an order is not carried out; foreign: because somebody else holds the node. over_budget: the rule across
    nodes that left no room, in one line, for a while after it was asked; limit: the same as data. error: slurmctld's last refusal
    or silence; asked: whether slurmctld has been asked since the agent started. acknowledged: how many drains of ours a person
    has resumed; lost: how many have gone without a person's resume; why_lost: why the last of them went; known: the names of the
    evidence that the last of either covers. returned: how often the node has gone back into service, by the agent's resume or a
    person's. taken: the words that somebody put in place of our reason, as far as known, "" where nobody did.
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
        """Return whether an order to drain has come to an end for now: our drain is set, or somebody else holds the node."""
        return self.drained or bool(self.blocked_because)

    @property
    def suspicion(self) -> str:
        """Return ``over_budget`` where common cause or a suspect job leaves no room, else ""."""
        return self.over_budget if self.limit is not None and self.limit.kind.suspicion else ""

    def differs_for_people(self, other: SlurmState) -> bool:
        """Return whether the other state is worth a line in the log."""
        mine = (self.drained, self.blocked_because, self.over_budget)
        return mine != (other.drained, other.blocked_because, other.over_budget)


def blocked_because(result: Result) -> str:
    """Return why slurmctld's state did not let an attempt have its way, "" where it did."""
    return result.detail if result.outcome in (Outcome.BLOCKED, Outcome.FOREIGN, Outcome.ORPHAN) else ""


def state_after(before: SlurmState, result: Result, entry: LedgerEntry | None, *, ordered: bool, asked: bool) -> SlurmState:
    """Return what is known after an attempt. ``entry``: the ledger's. ``ordered``: it was to drain or to resume. ``asked``:
    slurmctld was asked."""
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
