"""Reads the kernel records that an enabled check declared, and drops all other records."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.config import Document
from fairlead.daemon.loop.readers import Readers
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.judge import heeded_by, prefixes
from fairlead.model.check_definition import KernelRecord


class KernelLog:
    """Reads the log through ``readers``, and saves in ``history`` how far it has read and what was lost.

    ``lost``: True if the last ``read()`` found that records were overwritten before they could be read. ``woken``: how many
    records have woken checks since the agent started.
    """

    def __init__(self, document: Document, readers: Readers, history: History) -> None:
        self._readers = readers
        self._history = history
        self._records_lost = 0
        self.lost = False
        self.woken = 0
        self.change(document)

    def change(self, document: Document) -> None:
        """Use another document, whose checks may declare other records."""
        self._wakes = prefixes(document)
        self._prefixes = tuple(prefix for known in self._wakes.values() for prefix in known)

    def has_news(self, ready: Sequence[int] | None) -> bool:
        """Return whether the log may have new records. ``ready``: the descriptors that select(2) returned. If select(2) returned
        none, the log is read anyway."""
        return self._readers.follower is not None and (not ready or self._readers.kernel_log_ready(ready))

    def read(self, uptime_seconds: float) -> list[KernelRecord]:
        """Return the new records that some check declared."""
        follower = self._readers.follower
        if follower is None:
            return []
        records = self._readers.read_kernel_log()
        lost = self._readers.records_lost
        self._history.set_log(follower.state, lost, uptime_seconds, follower.cursor)
        self.lost = lost > self._records_lost
        if self.lost:
            count = lost - self._records_lost
            log.line(log.WARNING, "kernel records lost", count=count, now="reading continues at the oldest record left")
            self._records_lost = lost
        known = [r for r in records if r.text.startswith(self._prefixes)] if records and self._prefixes else []
        return [r for r in known if any(heeded_by(r.text, self._wakes))]

    def remember(self, records: Sequence[KernelRecord]) -> frozenset[str]:
        """Add records to the history. Return the names of the checks that the records wake. If no record is new, return none."""
        follower = self._readers.follower
        if not self._history.add_records(records, follower.cursor if follower is not None else None):
            return frozenset()
        self.woken += len(records)
        return frozenset(name for r in records for name in heeded_by(r.text, self._wakes))
