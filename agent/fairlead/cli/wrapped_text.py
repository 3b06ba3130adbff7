"""Lays out text for a terminal of 80 columns: paragraphs, lists, and fields with a name before each.

A word that is longer than a line stays whole, so that a path or an address can be copied. With ``breaking``, the word is broken.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 80
_ITEM = re.compile(r"\s*(?:- |\* |\d+\. |\w[\w ]{0,30}: {2,})")


def wrap(text: str, first: str = "", further: str = "", *, breaking: bool = False) -> list[str]:
    """Return the text as lines. The first line begins with ``first``, the others with ``further``. There is at least one line."""
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=breaking,
    )
    return lines or [first.rstrip()]


def fields(rows: Iterable[tuple[str, str]], indent: str = "  ", *, breaking: bool = False) -> list[str]:
    """Return one or more lines for each name and value, with all values in one column."""
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0) + 2
    further = indent + " " * width
    return [line for name, value in found for line in wrap(value, f"{indent}{name:{width}}", further, breaking=breaking)]


def page(text: str) -> list[str]:
    """Return a text of paragraphs and lists with new line breaks. Indented lines stay as they are."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines += ["", *_block(block.split("\n"))] if lines else _block(block.split("\n"))
    return lines


def _block(lines: list[str]) -> list[str]:
    found: list[str] = []
    pending = ""
    for line in lines:
        item = _ITEM.match(line)
        if pending and not item and not line.startswith("    "):
            pending = f"{pending} {line.strip()}"
            continue
        found += _paragraph(pending)
        pending = line
    return [*found, *_paragraph(pending)]


def _paragraph(text: str) -> list[str]:
    if not text or text.startswith("    "):
        return [text] if text else []
    indent = re.match(r"\s*(?:- |\* |\d+\. )?", text)
    return wrap(text, "", " " * (indent.end() if indent else 0))
