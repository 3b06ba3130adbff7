"""Formats what ``--help`` prints, so that no line is longer than 80 columns.

A command's description is its module's docstring. Sentences in it are filled to the width. Lines that begin with a space, and
lines of two columns (two spaces or more between them), are examples and tables: each of them stays a line of its own.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap

COLUMNS_MAX = 80
SECOND_COLUMN_MAX = 34  # a second column that begins further right gets lines of its own
_TWO_COLUMNS = re.compile(r"( *\S.*?)(  +)(\S.*)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats help as argparse does, except for the width and the description."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, COLUMNS_MAX) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line if line else "" for line in wrapped(text, width - len(indent)))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def help_of(self, action: argparse.Action) -> str:
        """Return the help of one option, with its default in place of ``%(default)s``. Return "" if the option has no help."""
        return self._expand_help(action) if action.help else ""


def is_example(line: str) -> bool:
    """Return whether a line of a description stays a line of its own, because it is an example or a table row."""
    return line.startswith(" ") or _TWO_COLUMNS.fullmatch(line) is not None


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a description. No line is longer than ``width``, unless a single word is."""
    lines: list[str] = []
    sentences: list[str] = []

    def fill() -> None:
        if sentences:
            lines.extend(textwrap.wrap(" ".join(sentences), width, break_long_words=False, break_on_hyphens=False))
            sentences.clear()

    for line in text.strip().splitlines():
        if line.strip() and not is_example(line):
            sentences.append(line)
            continue
        fill()
        lines += _example(line, width)
    fill()
    return lines


def _example(line: str, width: int) -> list[str]:
    """Return a line of an example or a table, as several lines where it is too long."""
    if len(line) <= width:
        return [line.rstrip()]
    keep = {"width": width, "break_long_words": False, "break_on_hyphens": False}
    columns = _TWO_COLUMNS.fullmatch(line)
    if columns is None:
        indent = line[: len(line) - len(line.lstrip())]
        return textwrap.wrap(line.strip(), initial_indent=indent, subsequent_indent=indent + "    ", **keep)  # type: ignore[arg-type]
    first, gap, rest = columns.groups()
    at = len(first) + len(gap)
    if at <= SECOND_COLUMN_MAX:
        return textwrap.wrap(rest, initial_indent=first + gap, subsequent_indent=" " * at, **keep)  # type: ignore[arg-type]
    return [first, *textwrap.wrap(rest, initial_indent=" " * 8, subsequent_indent=" " * 8, **keep)]  # type: ignore[arg-type]
