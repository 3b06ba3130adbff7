"""The outcomes of the drain protocol, and how its steps are taken."""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from fairlead.policy.decision_rules import DRIVER_CHECKS, SETTING_PREFIX
from fairlead.policy.drain_limits import DrainLimit
from fairlead.policy.ownership import in_maintenance, keep_off, strip_suffixes
from fairlead.slurm.client import NodeState

CONTEST_SECONDS = (1.5, 2.0)  # how long others are given to undo theirs: an overshoot lasts at most 5 s
UNDONE_SECONDS = (2.0, 8.0)  # who undid theirs asks again when that is settled, not all at once, and later where all is slow


class Outcome(StrEnum):
    """Says how a protocol ended.

    drained, resumed: done and read back. free: nothing of ours stands. acknowledged: a person resumed our drain. lost: it
    is gone, and no person need have resumed it: a reboot by slurmctld did, or slurmctld has begun anew without it;
    ``Result.known`` counts all the same. foreign:
    somebody else holds the node. orphan: a drain of fairlead's form that no ledger knows. over_budget: not drained, or undone
    at once, by a rule that looks across nodes (``Result.limit``). contested: drained, and others past the same limit have to
    go first; reconcile again in ``CONTEST_SECONDS``. held: not now; ``detail`` says why."""

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
    """``detail``: one line, a reason or what holds the drain. ``states``: as last read. ``window_seconds``: from
    before the reading to the end of the write: in some of it another's change would be overwritten, outside it none.
    ``marked``: Slurm's own "Prolog error" for our prolog's refusal stands. ``limit``: what held it, of the rules across
    nodes; ``undone``: after it had been written. ``known``: the names of the evidence that is acknowledged."""

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
    """Take every step. Raises SlurmError as the client does; the ledger, or the journal, then says how far it came."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def in_the_way(check: str, mine: NodeState) -> str:
    """Say why this check may not drain now: in a maintenance reservation the driver comes and goes, and settings change."""
    yields = check in DRIVER_CHECKS or check.startswith(SETTING_PREFIX)
    return "a maintenance reservation is running" if yields and in_maintenance(mine.states) else ""


def erased(mine: NodeState, ours: str) -> str:
    """Return the reason that somebody wrote over ours between our reading and our write, where slurmctld still shows it."""
    text = strip_suffixes(mine.reason)
    return mine.reason if text and text != strip_suffixes(ours) and not keep_off(mine.states) else ""


def who(mine: NodeState) -> str:
    """Say who holds the node, for a log line: never more than one line of the reason."""
    words = " ".join(mine.reason.split())[:200]
    states = "+".join(sorted(mine.states))
    return f"{states} by {mine.reason_user or 'nobody'}: {words}" if words else states


def result(outcome: Outcome, mine: NodeState, detail: str = "") -> Result:
    """Make a result with the states of the last reading."""
    return Result(outcome=outcome, detail=detail, states=mine.states)
