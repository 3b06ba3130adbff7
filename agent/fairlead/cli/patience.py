"""Says on standard error that a command still works, once it has taken two seconds.

On a terminal this is one line that is drawn again each second, and that goes before anything else is printed. Elsewhere it is a
plain line after ten seconds, and then one for each minute. A timer signal does this and no thread, because a thread is not
allowed beside programs that are started with a time limit. The command's module says in SLOW what takes long. Commands that count
nodes or files show their own progress and have no SLOW.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from fairlead.cli import terminal

PATIENCE_SECONDS = 2.0
PLAIN_SECONDS = 10.0
MINUTE = 60.0


@contextmanager
def patience(command: str, words: str) -> Iterator[None]:
    """Say in ``words`` what the command does, while the body runs. Without words, say nothing."""
    if not words or threading.current_thread() is not threading.main_thread():
        yield
        return
    said = _ShownWork(f"fairlead {command}: {words}", sys.stderr)
    before = signal.signal(signal.SIGALRM, said.tick)
    signal.siginterrupt(signal.SIGALRM, False)
    terminal.before_output = said.hush
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        terminal.before_output = None
        said.hush()


class _ShownWork:
    """Holds what was said. stream: standard error. It is written without its buffer, because a signal may come in a write."""

    def __init__(self, words: str, stream: TextIO) -> None:
        self._words = words
        self._began = time.monotonic()
        self._drawn = False
        self._draws = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        self._due = PATIENCE_SECONDS if self._draws else PLAIN_SECONDS
        try:
            self._file = stream.fileno()
        except (OSError, ValueError):
            self._file = -1  # a test has put another object in its place

    def tick(self, _number: int = 0, _frame: object = None) -> None:
        seconds = time.monotonic() - self._began
        if seconds < self._due - 0.05:
            return
        text = f"{self._words}, {seconds:.0f} s"
        self._write(f"\r\x1b[K{text}" if self._draws else f"{text}\n")
        self._drawn = self._draws
        self._due = seconds + (1.0 if self._draws else MINUTE)

    def hush(self) -> None:
        """Remove the line from the terminal. It comes back if the command is silent for two more seconds."""
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[K")
        if self._draws:
            self._due = time.monotonic() - self._began + PATIENCE_SECONDS

    def _write(self, text: str) -> None:
        with suppress(OSError):
            if self._file >= 0:
                os.write(self._file, text.encode())
