"""What commands write gets to a terminal as printable characters, line ends and tabs, and as nothing else.

Texts of nodes, users and Slurm are made printable where they are read. This is the second line: whatever a command prints,
today's or tomorrow's, and wherever its text came from, it moves no cursor, sets no title and turns no line around.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from fairlead.model.plain_text import shown

_COLOUR = re.compile("(\x1b\\[(?:1;3[0-7]|0)m)")  # as cli/output.py writes it


class _Printable:
    """A stream that takes only what is printable. ``beneath``: where it goes (provision/terminal_frame.py)."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        if "\x1b" in text:
            text = "".join(part if _COLOUR.fullmatch(part) else _plain(part) for part in _COLOUR.split(text))
        else:
            text = _plain(text)
        return self.beneath.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def _plain(text: str) -> str:
    return shown(text, "?", kept="\n\t")


@contextmanager
def printable() -> Iterator[None]:
    """Meanwhile standard output and standard error are such streams."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Printable(stream)) if stream is not None else stream for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
