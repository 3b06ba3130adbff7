"""Whether the agent's loop still goes round, watched by a thread of its own.

The loop itself reads /proc and /sys. A file there that never answers (a driver that holds a lock, a dead disk under a program)
holds it in uninterruptible sleep, which no signal ends and no watchdog. Then this thread says so in the loop's place: jobs are
not let on by an ``ok`` that nobody stands behind, and the file is named. A drain stays a drain. It does not speak to systemd's
watchdog for the loop: what a restart can cure, a restart shall.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fairlead.daemon.board import Board
from fairlead.host import log

SHARE = 3  # late is a loop that has not come round for this part of the time that a verdict counts
_LOOKS = 4  # in that time


class Lookout:
    """``turn()`` at every turn of the loop. ``reading``: the file that the loop reads at the moment, "" for none."""

    def __init__(self, board: Board, reading: Callable[[], str]) -> None:
        self._board = board
        self._reading = reading
        self._turned = time.monotonic()
        self._end = threading.Event()

    def turn(self) -> None:
        """The loop has come round."""
        self._turned = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self.turn()
        threading.Thread(target=self._watch, name="lookout", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._end.set()

    def _late_seconds(self) -> float:
        """For how long the loop has not come round, once that is too long; else 0.0. Suspended time does not count."""
        seconds = time.monotonic() - self._turned
        return seconds if seconds >= self._board.ttl_seconds / SHARE else 0.0

    def _watch(self) -> None:
        said = ""
        while not self._end.wait(self._board.ttl_seconds / SHARE / _LOOKS):
            if not self._late_seconds():
                said = ""
                continue
            name = self._reading()
            text = f"the agent waits for {name or 'something'}, which does not answer"
            if text != said:
                said = text
                log.line(log.ERROR, "the loop does not go round", waits_for=name or "unknown")
            self._board.doubt(text, lambda: self._late_seconds() > 0)
