"""Makes what commands print safe for a terminal: printable characters, line ends and tabs, and nothing else.

Texts of nodes, users and Slurm are made printable where they are read. This module is the second barrier. Whatever a command
prints, and wherever its text came from, it moves no cursor, sets no title and reverses no line.

This module also deals with output that cannot be written. A full disk or a closed standard output does not end a command in the
middle of its work: the command goes on, and says at its end what was lost. A broken pipe does end it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from fairlead.model.plain_text import shown

_COLOUR = re.compile("(\x1b\\[(?:1;3[0-7]|0)m)")  # as cli/output.py writes it


class _Printable:
    """Passes on only what is printable. ``beneath``: the stream it writes to (provision/terminal_frame.py), None where the
    command was started without this stream. ``trouble``: why output was lost, or None."""

    def __init__(self, beneath: TextIO | None) -> None:
        self.closed_from_the_start = beneath is None
        self.beneath = open(os.devnull, "w", encoding="utf-8") if beneath is None else beneath  # noqa: SIM115
        self.trouble: OSError | None = None

    def write(self, text: str) -> int:
        if "\x1b" in text:
            text = "".join(part if _COLOUR.fullmatch(part) else _plain(part) for part in _COLOUR.split(text))
        else:
            text = _plain(text)
        if self.closed_from_the_start and text:
            self.trouble = OSError(errno.EBADF, "it is closed")
        try:
            self.beneath.write(text)
        except UnicodeEncodeError:  # a locale that is not UTF-8
            encoding = self.beneath.encoding
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as e:
            self._lost(e)
        return len(text)

    def flush(self) -> None:
        try:
            self.beneath.flush()
        except OSError as e:
            self._lost(e)

    def _lost(self, error: OSError) -> None:
        """Remember why output was lost. Send what is still in the buffer to /dev/null, so that Python does not try again at
        its end."""
        self.trouble = self.trouble or error
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.beneath.fileno())
            os.close(null)
            self.beneath.flush()
        if isinstance(error, BrokenPipeError):
            raise error

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def _plain(text: str) -> str:
    return shown(text, "?", kept="\n\t")


@contextmanager
def printable() -> Iterator[None]:
    """Make standard output and standard error such streams while the body runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Printable(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def output_trouble() -> OSError | None:
    """Flush standard output. Return why some of it was lost, or None. Raise BrokenPipeError where the reader has gone."""
    sys.stdout.flush()
    return getattr(sys.stdout, "trouble", None)


def open_standard_streams() -> None:
    """Open /dev/null for standard input, output or error where this process was started without it.

    Otherwise the next file that a command opens gets the number of that stream, and a child process would write into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # open() takes the lowest free number
