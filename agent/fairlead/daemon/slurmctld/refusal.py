"""Follows Slurm's own mark for a job that our prolog refused: it comes late, and it stays until somebody lifts it.

slurmd tells slurmctld of a failed prolog by a message of its own, which drain_nodes() makes "Prolog error"
(src/slurmctld/node_mgr.c): some milliseconds after the prolog's record is on the disk, later where slurmctld is busy. On a node
that is drained already nothing is marked.
"""

from __future__ import annotations

QUESTIONS_SECONDS = (0.0, 1.0, 5.0, 20.0)  # after the refusal; by the last one it has come, or will not


class Refusal:
    """Keeps when to ask about the mark, in CLOCK_MONOTONIC seconds; ``since`` is Unix time. ``marked``: the mark was seen and is
    still set."""

    def __init__(self) -> None:
        self.pending = False
        self.marked = False
        self.since = 0.0
        self.began = 0.0
        self.due = float("inf")
        self._questions: list[float] = []

    def begin(self, now: float, unix_seconds: float) -> None:
        """Begin to ask: the prolog has refused a job (another one, perhaps)."""
        self.since = self.since if self.pending else unix_seconds
        self.began = now
        self.pending = True
        self._questions = [now + after for after in QUESTIONS_SECONDS]
        self.due = now

    def asked(self, now: float, *, marked: bool, settled: bool, again_seconds: float) -> None:
        """Note that slurmctld was asked. ``settled``: the mark was lifted, or our own drain is set. A mark that may not be lifted
        yet is asked about again after ``again_seconds``."""
        self._questions = [at for at in self._questions if at > now]
        self.marked = marked
        if settled or not (marked or self._questions):
            self.pending = self.marked = False
            self._questions = []
        waits = [now + again_seconds] if self.marked else []
        self.due = min((*self._questions, *waits), default=float("inf"))

    def hurry(self, now: float) -> None:
        """Ask now: what kept the mark from being lifted may be gone."""
        if self.marked:
            self.due = min(self.due, now)
