"""Makes the output of commands safe for a terminal. Only printable characters, line ends, tabs and fairlead's colours pass.

Texts of nodes, users and Slurm are made printable where they are read. This module is the second barrier. No output of a command
moves the cursor, sets the terminal's title or reverses the direction of a line, wherever its text came from.

This module also deals with output that cannot be written. If the disk is full or standard output is closed, the command still
finishes its work, and reports at its end that output was lost. A broken pipe ends the command.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from fairlead.model.plain_text import shown

_COLOUR = re.compile("(\x1b\\[(?:1;3[0-7]|0)m)")  # the colour codes that cli/output.py writes


#: Called before each output of the command, or None (patience.py).
before_output: Callable[[], None] | None = None


class _Printable:
    """A text stream that passes on only printable characters.

    ``beneath``: the stream to write to (provision/terminal_frame.py uses it too), or None if the command was started without
    this stream. ``trouble``: the error by which output was lost, or None.
    """

    def __init__(self, beneath: TextIO | None) -> None:
        self.closed_from_the_start = beneath is None
        self.beneath = open(os.devnull, "w", encoding="utf-8") if beneath is None else beneath  # noqa: SIM115
        self.trouble: OSError | None = None

    def write(self, text: str) -> int:
        if before_output is not None:
            before_output()
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
        """Remember why output was lost. Send the rest of the buffer to /dev/null, so that Python does not write it at exit."""
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
    """Let standard output and standard error pass only printable characters while the body runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Printable(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def output_trouble() -> OSError | None:
    """Flush standard output. Return the error by which output was lost, or None. Raise BrokenPipeError if the reader has gone."""
    sys.stdout.flush()
    return getattr(sys.stdout, "trouble", None)


def open_standard_streams() -> None:
    """Open /dev/null for each of standard input, output and error that this process was started without.

    Otherwise the next file that a command opens gets the number of that stream, and a child process would write into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # open() takes the lowest free number
