"""Decides how soon and how often this agent asks slurmctld about a drain, because thousands of agents may ask at the same time.

New evidence and activity of slurmd make the agent ask soon, at a bounded rate. Some events make many agents ask at once, such
as a ping by slurmctld or the end of an outage of slurmctld. The agents spread these questions, so that all agents together ask
about ``ASKS_PER_SECOND`` times a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fairlead.drains.acknowledgement import KnownEvidence
from fairlead.drains.ledger import LedgerEntry, Phase, RebootState
from fairlead.drains.outcome import Outcome, Result

WATCHED = 4.0  # factor for the time between questions if the agent watches slurmd, because slurmd becomes active at a resume
ASKS_PER_SECOND = 20.0
SPREAD_MAX_SECONDS = 60.0
# An attempt at a drain lists all nodes, which costs slurmctld more the more nodes there are. A tenth of all agents together make
# at most so many attempts a second: those whose drain a limit delays, and those that got no answer.
LIMITED_PER_SECOND, FAILED_PER_SECOND = 1.0, 2.0
STIR_SECONDS, STIR_MAX_SECONDS = 5.0, 60.0  # shortest and longest time between questions about a node with a busy slurmd
WAKE_SECONDS = 5.0  # even a flood of new evidence causes no more than one question in this time
UNSETTLED_SECONDS = 2.0  # the first wait while a node boots or registers with a new slurmctld; each further wait is twice as long


class Pace:
    """Keeps the times of questions to slurmctld, in CLOCK_MONOTONIC seconds.

    ``crowd``: returns how many agents may ask the same question. ``watched``: whether the agent sees slurmd. ``asked_with``:
    the names of the evidence that would drain the node and that was known at the last question.
    """

    def __init__(self, entry: LedgerEntry | None, crowd: Callable[[], int]) -> None:
        self.watched = False
        self.asked_with = frozenset(entry.known if entry else ())
        self._crowd = crowd
        self._wake_not_before = self._stir_not_before = self._stirred_at = float("-inf")
        self._stir_gap = STIR_SECONDS
        self._unsettled = 0

    def spread(self) -> float:
        """Return a random wait. It is at most the time in which all these agents can ask one after the other."""
        return random.uniform(0.0, min(SPREAD_MAX_SECONDS, self._crowd() / ASKS_PER_SECOND))

    def wait_max(self, least: float, per_second: float) -> float:
        """Return the longest wait between two attempts. It is ``least``, or longer if there are very many agents."""
        return max(least, self._crowd() / per_second)

    def ask_seconds(self, seconds: float) -> float:
        """Return the seconds until the next question to slurmctld. ``seconds``: the site's ``reconcile_seconds``."""
        return seconds * (WATCHED if self.watched else 1.0) * random.uniform(0.8, 1.2)

    def is_new(self, known: KnownEvidence | None, now: float) -> bool:
        """Return whether new evidence that would drain the node has come since the last question to slurmctld, and whether the
        next question may be asked now."""
        return known is not None and now >= self._wake_not_before and not known.drains <= self.asked_with

    def woken(self, now: float) -> None:
        """Record that new evidence has made the agent ask."""
        self._wake_not_before = now + WAKE_SECONDS

    def stir(self, now: float) -> float:
        """Record that slurmd was active. Return when to ask slurmctld because of that, or inf if the last such question is too
        recent."""
        busy = now - self._stirred_at < STIR_MAX_SECONDS
        self._stir_gap = min(2.0 * self._stir_gap, STIR_MAX_SECONDS) if busy else STIR_SECONDS
        self._stirred_at = now
        if now < self._stir_not_before:
            return float("inf")
        at = now + self.spread()
        self._stir_not_before = at + self._stir_gap
        return at

    def unsettled(self, result: Result, entry: LedgerEntry | None, now: float) -> float:
        """Return when to ask again while slurmctld does not yet show whether fairlead's drain remains, because the node boots or
        has not registered. Return inf in any other case."""
        stood = entry is not None and entry.phase in (Phase.DRAINED, Phase.TAKEN)
        gone = result.outcome is Outcome.BLOCKED and "DRAIN" not in result.states
        if entry is None or not stood or not (gone or entry.reboot is RebootState.ASKED):
            self._unsettled = 0
            return float("inf")
        wait = UNSETTLED_SECONDS * 2.0 ** min(self._unsettled, 10)
        self._unsettled += 1
        return now + wait * random.uniform(0.7, 1.3)
