"""Names the outcomes of the drain protocol, and takes its steps."""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from fairlead.policy.decision_rules import DRIVER_CHECKS, SETTING_PREFIX
from fairlead.policy.drain_limits import DrainLimit
from fairlead.policy.ownership import in_maintenance, keep_off, strip_suffixes
from fairlead.slurm.client import NodeState

CONTEST_SECONDS = (1.5, 2.0)  # other nodes get this long to undo their drains, so an overshoot lasts at most 5 s
# nodes that undid their drain ask again after this time: not all at once, and later when slurmctld is slow
UNDONE_SECONDS = (2.0, 8.0)


class Outcome(StrEnum):
    """Says how a protocol ended.

    drained, resumed: the write was done and read back. free: the node has no drain of ours. acknowledged: a person resumed our
    drain. lost: our drain is gone, and perhaps no person resumed it: slurmctld has rebooted the node, or has started again
    without the drain; ``Result.known`` counts as acknowledged all the same. foreign: somebody else drained the node. orphan:
    the node has a drain of fairlead's form that no ledger knows.

    over_budget: a limit that looks across nodes (``Result.limit``) forbade the drain, or made us undo it at once. contested:
    the node is drained, and other nodes past the same limit have to go first; reconcile again in ``CONTEST_SECONDS``. held:
    this cannot be done now; ``detail`` says why.
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
    """Says how a protocol ended, and with what. ``detail``: one line, a reason or what forbids the change. ``states``: the
    node's states in the last reading. ``window_seconds``: the time from before the reading to the end of the write; only in
    this time can another person's change be overwritten. ``limit``: the limit that forbade the drain. ``undone``: it did so
    after the drain was written. ``marked``: the node has Slurm's own "Prolog error" for our prolog's refusal. ``known``: the
    names of the evidence that is acknowledged."""

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
    """Take every step and return the result. Raises SlurmError as the client does; the ledger, or the journal, then says how
    far the steps came."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def in_the_way(check: str, mine: NodeState) -> str:
    """Say why this check may not drain now, or "" when it may. In a maintenance reservation somebody may load the driver or
    change settings, so drift and findings of the driver do not drain."""
    yields = check in DRIVER_CHECKS or check.startswith(SETTING_PREFIX)
    return "a maintenance reservation is running" if yields and in_maintenance(mine.states) else ""


def erased(mine: NodeState, ours: str) -> str:
    """Return the reason that somebody wrote over ours between our reading and our write, if slurmctld still shows it, else ""."""
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
