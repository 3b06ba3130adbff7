"""Defines the outcomes of the drain protocol, and runs its steps. "Our drain" is a drain that fairlead has set on this node."""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from fairlead.policy.decision_rules import DRIVER_CHECKS, SETTING_PREFIX
from fairlead.policy.drain_limits import DrainLimit
from fairlead.policy.ownership import in_maintenance, keep_off, strip_suffixes
from fairlead.slurm.client import NodeState

CONTEST_SECONDS = (1.5, 2.0)  # other nodes have this time to undo their drains, so a limit is exceeded for at most 5 s
# A node that has undone its drain tries again after a random time in this range, or later if slurmctld is slow.
UNDONE_SECONDS = (2.0, 8.0)


class Outcome(StrEnum):
    """Names how a protocol ended.

    drained, resumed: the write was done and read back. free: the node has no drain of ours. acknowledged: a person resumed our
    drain. lost: our drain is gone, and perhaps no person resumed the node. slurmctld has rebooted the node, or has started
    again without the drain. The evidence in ``Result.known`` still counts as acknowledged. foreign: somebody else drained the
    node. orphan: the node has a drain with a reason of fairlead's form that is not in the ledger.

    over_budget: a drain limit (``Result.limit``) forbade the drain, or fairlead undid the drain at once because of the limit.
    contested: the node is drained and a drain limit is exceeded, but other nodes have to undo their drains first. Reconcile
    again after ``CONTEST_SECONDS``. held: the change cannot be made now, and ``Result.detail`` says why.
    """

    DRAINED = "drained"
    RESUMED = "resumed"
    FREE = "free"
    ACKNOWLEDGED = "acknowledged"
    LOST = "lost"
    FOREIGN = "foreign"
    ORPHAN = "orphan"
    OVER_BUDGET = "over_budget"
    CONTESTED = "contested"
    BLOCKED = "held"


class Result(Struct, frozen=True, kw_only=True):
    """Describes how a protocol ended.

    detail: one line, which is a reason or says what forbids the change. states: the node's states in the last reading.
    window_seconds: the time from before the reading to the end of the write. Only in this time can a change by a person be
    overwritten. limit: the limit that forbade the drain. undone: True if the drain was already written and then undone. marked:
    True if slurmctld has drained the node with "Prolog error" because fairlead's prolog refused a job. known: the names of the
    evidence that is acknowledged.
    """

    outcome: Outcome
    detail: str = ""
    states: frozenset[str] = frozenset()
    window_seconds: float = 0.0
    limit: DrainLimit | None = None
    undone: bool = False
    marked: bool = False
    known: tuple[str, ...] = ()


Steps = Generator[str, None, Result]
T = TypeVar("T")


def finish(steps: Generator[str, None, T]) -> T:
    """Run every step and return the result. Raises the SlurmError of the client. The ledger or the journal then shows how far
    the steps came."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def in_the_way(check: str, mine: NodeState) -> str:
    """Return why this check may not drain the node now, or "" if it may. During a maintenance reservation somebody may load the
    driver or change settings, so drift and findings of the driver do not drain."""
    yields = check in DRIVER_CHECKS or check.startswith(SETTING_PREFIX)
    return "a maintenance reservation is running" if yields and in_maintenance(mine.states) else ""


def erased(mine: NodeState, ours: str) -> str:
    """Return the reason with which somebody replaced our reason between our reading and our write. Return "" if slurmctld does
    not show such a reason."""
    text = strip_suffixes(mine.reason)
    return mine.reason if text and text != strip_suffixes(ours) and not keep_off(mine.states) else ""


def who(mine: NodeState) -> str:
    """Return who drained the node, for a log line, with at most one line of the reason."""
    words = " ".join(mine.reason.split())[:200]
    states = "+".join(sorted(mine.states))
    return f"{states} by {mine.reason_user or 'nobody'}: {words}" if words else states


def result(outcome: Outcome, mine: NodeState, detail: str = "") -> Result:
    """Return a result with the states of the last reading."""
    return Result(outcome=outcome, detail=detail, states=mine.states)
