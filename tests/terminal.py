"""What a terminal's screen shows after a program's output: enough of one for what rich writes, and it refuses all else.

Known: cursor up, home, erase in line and screen, colours, the cursor's visibility; lines wrap at the width.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_TOKEN = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Screen:
    """lines: of text, without colours; visible: is the cursor shown? colours: the codes of colours that came, without bold."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells: list[list[str]] = [[]]
        self.row = self.column = 0
        self.visible = True
        self.colours: set[str] = set()

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"a terminal's words that this one does not know: {text[at : at + 20]!r}")
            at = found.end()
            private, number, letter, back, down, words = found.groups()
            if words:
                self._write(words)
            elif back:
                self.column = 0
            elif down:
                self._down()
                self.column = 0
            else:
                self._control(private or "", number, letter)

    def _write(self, words: str) -> None:
        for char in words:
            if self.column == self.columns:
                self._down()
                self.column = 0
            line = self.cells[self.row]
            line.extend(" " * (self.column + 1 - len(line)))
            line[self.column] = char
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.cells):
            self.cells.append([])

    @property
    def top(self) -> int:
        """The first line that the screen still shows; those above have scrolled away."""
        return max(0, len(self.cells) - self.rows)

    def _control(self, private: str, number: str, letter: str) -> None:
        if private and number == "25":
            self.visible = letter == "h"
        elif letter == "A":
            self.row = max(self.top, self.row - int(number or 1))
        elif letter == "H":
            self.row, self.column = self.top, 0
        elif letter == "K" and number == "2":
            self.cells[self.row] = []
        elif letter == "J" and number == "2":
            self.cells[self.top :] = [[] for _ in self.cells[self.top :]]
        elif letter == "m":
            self.colours |= {c for c in number.split(";") if c.isdigit() and int(c) >= 30}
        else:
            raise ValueError(f"a terminal's word that this one does not know: {private}{number}{letter}")

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.cells[self.top :]]


class Pty:
    """A program on a terminal of its own, of that size. said: all that it wrote."""

    def __init__(self, command: Sequence[str], *, rows: int = 24, columns: int = 80, env: Mapping[str, str], cwd: Path) -> None:
        self.master, slave = os.openpty()
        self.said = ""
        self.screen = Screen(rows, columns)
        self._size(rows, columns)
        words = {k: v for k, v in env.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=slave, stdout=slave, stderr=slave, env=words, cwd=cwd
        )
        os.close(slave)
        os.set_blocking(self.master, False)

    def _size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        """As a terminal that wraps nothing anew: what stands there is cut, or has room to its right."""
        self.read()
        self._size(rows, columns)
        self.screen.rows, self.screen.columns = rows, columns

    def read(self) -> list[str]:
        """The screen as it is now."""
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except BlockingIOError:
                break
            except OSError:  # EIO: nobody has the other end any more
                break
            if not data:
                break
            text = data.decode(errors="replace")
            while text.endswith("\x1b") or re.search(r"\x1b\[[?0-9;]*\Z", text):  # in the middle of a word
                time.sleep(0.01)
                text += os.read(self.master, 1).decode(errors="replace")
            self.said += text
            self.screen.feed(text)
        return self.screen.lines

    def until(self, *wanted: str, seconds: float = 90) -> list[str]:
        """The screen once it shows all that."""
        deadline = time.monotonic() + seconds
        while not all(w in "\n".join(self.read()) for w in wanted):
            assert time.monotonic() < deadline and self.process.poll() is None, (wanted, "\n".join(self.screen.lines))
            time.sleep(0.02)
        return self.screen.lines

    def until_said(self, wanted: str, at: int = 0, seconds: float = 90) -> None:
        """Once that was written, from that place on: it may be the last before the end."""
        deadline = time.monotonic() + seconds
        while wanted not in self.said[at:]:
            over = self.process.poll() is not None
            self.read()
            assert wanted in self.said[at:] or (not over and time.monotonic() < deadline), (wanted, self.screen.lines)
            time.sleep(0.02)

    def cursor(self) -> bool:
        """Is it shown?"""
        return self.screen.visible

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self, seconds: float = 90) -> int:
        """Its exit status; what it still writes is read meanwhile."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "\n".join(self.screen.lines)
            self.read()
            time.sleep(0.02)
        self.read()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
