"""Draws a frame (a block of lines) at the bottom of a terminal, and redraws it in place. Lines above the frame stay."""

from __future__ import annotations

import os
import sys
from collections import deque
from types import TracebackType
from typing import Any, Self, TextIO

from fairlead.model.plain_text import one_line

KEPT_LINES = 200


def drawable(stream: TextIO) -> bool:
    """Say whether the stream is a terminal that can move its cursor. With ``TERM=dumb`` it cannot."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def beneath(stream: TextIO) -> TextIO:
    """Return the stream that a command's standard output or error writes to after it has filtered the text (cli/terminal.py).
    Use it only for output that moves the cursor, and never for text that comes from a node, a user or Slurm."""
    found: TextIO = getattr(stream, "beneath", stream)
    return found


class Screen:
    """Draws a frame and lines above it. transient: the frame is removed when the ``with`` block ends. rich leaves out colours
    where NO_COLOR is set."""

    def __init__(self, *, stderr: bool = False, transient: bool = False) -> None:
        from rich.console import Console

        self._console = Console(file=beneath(sys.stderr if stderr else sys.stdout))
        self._transient = transient
        self._lines: deque[tuple[str, str]] = deque(maxlen=KEPT_LINES)
        self._size = self._console.size
        self._live = self._made()

    def _made(self) -> Any:
        from rich.live import Live

        return Live(console=self._console, transient=self._transient, auto_refresh=False)

    @property
    def width(self) -> int:
        return self._console.size.width

    @property
    def height(self) -> int:
        """Return how many lines a frame may have."""
        return max(4, self._console.size.height - 2)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Write a line above the frame. The line stays."""
        text = one_line(text)
        self._lines.append((text, style))
        self._print(text, style)

    def _print(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def draw(self, frame: Any) -> None:
        """Draw ``frame``, a rich renderable whose lines do not wrap, over the frame drawn before. If the terminal's size has
        changed, the position of the old frame is unknown, because the terminal may have wrapped its lines. In that case the
        screen is cleared, and the lines and the frame are written again."""
        from rich.console import Group
        from rich.text import Text

        if self.resized():
            self._size = self._console.size
            self._live.stop()
            self._console.clear()
            for text, style in list(self._lines)[-self.height :]:
                self._print(text, style)
            self._live = self._made()
            self._live.start()
        # The cursor is left in an empty line. At the end of a full line, the ^C that a terminal prints would wrap and move the
        # frame.
        self._live.update(Group(frame, Text("")), refresh=True)

    def resized(self) -> bool:
        """Say whether the terminal has another size than when it was last drawn on."""
        return self._console.size != self._size
