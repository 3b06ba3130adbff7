"""Slurm's own mark for a job that our prolog refused: waited for, since it comes late, and followed until it is lifted.

slurmd tells slurmctld of a failed prolog by a message of its own, which drain_nodes() makes "Prolog error"
(src/slurmctld/node_mgr.c): some milliseconds after the prolog's record is on the disk, later where slurmctld is busy.
On a node that is drained already nothing is marked.
"""

from __future__ import annotations

LOOKS_SECONDS = (0.0, 1.0, 5.0, 20.0)  # after the refusal; by the last one it has come, or will not


class Refusal:
    """Times are CLOCK_MONOTONIC seconds, but for ``since``: Unix time. ``marked``: the mark was seen and still stands."""

    def __init__(self) -> None:
        self.pending = False
        self.marked = False
        self.since = 0.0
        self.began = 0.0
        self.due = float("inf")
        self._looks: list[float] = []

    def begin(self, now: float, unix_seconds: float) -> None:
        """The prolog has refused a job (another one, perhaps)."""
        self.since = self.since if self.pending else unix_seconds
        self.began = now
        self.pending = True
        self._looks = [now + after for after in LOOKS_SECONDS]
        self.due = now

    def looked(self, now: float, *, marked: bool, settled: bool, again_seconds: float) -> None:
        """slurmctld was asked. ``settled``: the mark was lifted, or our own drain stands. A mark that may not be lifted
        yet is looked at again after ``again_seconds``."""
        self._looks = [at for at in self._looks if at > now]
        self.marked = marked
        if settled or not (marked or self._looks):
            self.pending = self.marked = False
            self._looks = []
        waits = [now + again_seconds] if self.marked else []
        self.due = min((*self._looks, *waits), default=float("inf"))

    def hurry(self, now: float) -> None:
        """What kept the mark from being lifted may be gone."""
        if self.marked:
            self.due = min(self.due, now)
