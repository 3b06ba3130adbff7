"""Watches the agent's main loop in a separate thread, and publishes the verdict ``unknown`` while the loop is blocked.

The loop itself reads /proc and /sys. Such a read may never return, because a driver holds a lock or the disk of a process is
dead. The loop is then in uninterruptible sleep, which neither a signal nor systemd's watchdog ends. This thread logs the name
of the file. It also replaces an ``ok`` that the loop does not renew, so that no job starts because of an old ``ok``. It does
not replace a published ``drain``. The thread never feeds systemd's watchdog in place of the loop, so systemd restarts the agent
where a restart helps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fairlead.daemon.publishing.publisher import Publisher
from fairlead.host import log

LATE_PART = 3  # the loop is late when it has made no turn for a third of the time that a verdict is valid
_TESTS = 4  # the thread tests this many times before the loop counts as late


class LoopWatchdog:
    """Expects a call of ``turn()`` at every turn of the loop. ``reading``: returns the file that the loop reads now, or "" if it
    reads none."""

    def __init__(self, publisher: Publisher, reading: Callable[[], str]) -> None:
        self._publisher = publisher
        self._reading = reading
        self._turned = time.monotonic()
        self._end = threading.Event()

    def turn(self) -> None:
        """Record that the loop has begun a turn."""
        self._turned = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self.turn()
        threading.Thread(target=self._watch, name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()

    def _late_seconds(self) -> float:
        """Return the seconds since the last turn if the loop is late, else 0.0. Suspended time does not count."""
        seconds = time.monotonic() - self._turned
        return seconds if seconds >= self._publisher.ttl_seconds / LATE_PART else 0.0

    def _watch(self) -> None:
        said = ""
        while not self._end.wait(self._publisher.ttl_seconds / LATE_PART / _TESTS):
            if not self._late_seconds():
                said = ""
                continue
            name = self._reading()
            text = f"the agent waits for {name or 'something'}, which does not answer"
            if text != said:
                said = text
                log.line(log.ERROR, "agent main loop is blocked", file=name or "unknown")
            self._publisher.publish_unknown(text, lambda: self._late_seconds() > 0)
