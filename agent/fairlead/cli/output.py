"""Prints what commands return: JSON, plain columns, and colours only on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

_COLOURS = {"ok": "32", "warn": "33", "drain": "31", "unknown": "35"}


def print_json(data: Any) -> None:
    """Print one JSON document on standard output. Keys keep the caller's order."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")


def state_word(word: str) -> str:
    """Return a state in colour where standard output is a terminal and NO_COLOR is not set (https://no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or word not in _COLOURS:
        return word
    return f"\033[1;{_COLOURS[word]}m{word}\033[0m"


def columns(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows as aligned columns. The last column is not padded. Each cell becomes one line: a text of a node or of a user
    must not look like further rows."""
    table = [tuple(" ".join(str(cell).splitlines()) for cell in row) for row in ([head, *rows] if head else rows)]
    if not table:
        return ""
    widths = [max(len(r[i]) if i < len(r) else 0 for r in table) for i in range(max(map(len, table)))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=False)).rstrip() for r in table)


def age_text(seconds: float) -> str:
    """Return an age in words: ``42 s``, ``3 min``, ``5 h``, ``2 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
