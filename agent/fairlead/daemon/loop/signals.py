"""Catches signals: SIGTERM and SIGINT end the agent, SIGHUP reloads the document, SIGUSR1 requests a sweep at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Set

ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


class Signals:
    """Collects signals until ``take()``. A pipe wakes the loop's select(2) when a signal arrives (signal(3p))."""

    def __init__(self) -> None:
        self._caught: set[int] = set()
        self._reader = self._writer = -1

    def install(self) -> None:
        """Catch the signals from now on."""
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*ENDING, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda got, frame: self._caught.add(got))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""
        return self._reader

    def empty_pipe(self) -> None:
        """Empty the pipe that woke the loop."""
        os.read(self._reader, 256)

    def ending(self) -> bool:
        """Return whether a signal has told the agent to end."""
        return bool(self._caught & ENDING)

    def take(self) -> Set[int]:
        """Return the signals that have arrived. Signals that end the agent are kept."""
        caught, self._caught = self._caught, self._caught & ENDING
        return caught

    def close(self) -> None:
        """Close the pipe."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)
