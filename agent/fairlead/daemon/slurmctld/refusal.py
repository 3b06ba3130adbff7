"""Follows the mark of a refusal: the drain "Prolog error" that slurmctld sets when fairlead's prolog refuses a job. The mark
comes late, and stays until somebody lifts it.

slurmd reports a failed prolog to slurmctld in a separate message, and drain_nodes() sets the reason "Prolog error" for it
(src/slurmctld/node_mgr.c). This happens some milliseconds after the prolog has written the job record, or later if slurmctld
is busy. On a node that is drained already, slurmctld sets no mark.
"""

from __future__ import annotations

# The agent asks slurmctld for the mark at these times after the refusal. After the last question, no mark is expected any more.
QUESTIONS_SECONDS = (0.0, 1.0, 5.0, 20.0)


class Refusal:
    """Keeps the times at which to ask about the mark, in CLOCK_MONOTONIC seconds. ``since``: the Unix time of the first refusal.
    ``marked``: the mark was seen and is still set."""

    def __init__(self) -> None:
        self.pending = False
        self.marked = False
        self.since = 0.0
        self.began = 0.0
        self.due = float("inf")
        self._questions: list[float] = []

    def begin(self, now: float, unix_seconds: float) -> None:
        """Begin to ask, because the prolog has refused a job. This may be called again for another job."""
        self.since = self.since if self.pending else unix_seconds
        self.began = now
        self.pending = True
        self._questions = [now + after for after in QUESTIONS_SECONDS]
        self.due = now

    def asked(self, now: float, *, marked: bool, settled: bool, again_seconds: float) -> None:
        """Record that slurmctld was asked. ``marked``: the mark is set. ``settled``: the mark was lifted, or fairlead's own drain
        is set. While the mark stays, the next question comes after ``again_seconds``."""
        self._questions = [at for at in self._questions if at > now]
        self.marked = marked
        if settled or not (marked or self._questions):
            self.pending = self.marked = False
            self._questions = []
        waits = [now + again_seconds] if self.marked else []
        self.due = min((*self._questions, *waits), default=float("inf"))

    def hurry(self, now: float) -> None:
        """Ask now, because the mark may be lifted now."""
        if self.marked:
            self.due = min(self.due, now)
