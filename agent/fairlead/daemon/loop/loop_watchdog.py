"""A thread that notices when the agent's main loop is blocked, and publishes ``unknown`` for it.

The loop itself reads /proc and /sys. A file there that never answers (a driver that holds a lock, a dead disk under a program)
keeps the loop in uninterruptible sleep, which neither a signal nor systemd's watchdog ends. Then this thread names the file and
replaces an ``ok`` that nobody renews, so that no job starts on it. A published drain stays. The thread does not answer systemd's
watchdog in the loop's place: where a restart helps, systemd restarts the agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fairlead.daemon.publishing.publisher import Publisher
from fairlead.host import log

LATE_PART = 3  # the loop is late when it has not come round for this part of the time that a verdict is valid
_TESTS = 4  # in that time


class LoopWatchdog:
    """Expects ``turn()`` at every turn of the loop. ``reading``: returns the file that the loop reads at the moment, "" for
    none."""

    def __init__(self, publisher: Publisher, reading: Callable[[], str]) -> None:
        self._publisher = publisher
        self._reading = reading
        self._turned = time.monotonic()
        self._end = threading.Event()

    def turn(self) -> None:
        """Note that the loop has come round."""
        self._turned = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self.turn()
        threading.Thread(target=self._watch, name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()

    def _late_seconds(self) -> float:
        """Return for how long the loop has not come round once that is too long, else 0.0. Suspended time does not count."""
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
