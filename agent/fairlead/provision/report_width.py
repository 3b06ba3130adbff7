"""Limits the width of a report for a person, even if a nodelist or a node's message is long. The JSON report has both in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from fairlead.provision.inventory import fold

WIDTH = 120
NAMES_WIDTH = 80
_FURTHER = "      | "  # marks the rest of a wrapped line, so that a node's words never look like a line of fairlead


def names(nodes: Sequence[str]) -> str:
    """Return a nodelist. If it is too wide, only its beginning is returned, followed by three dots."""
    whole = fold(list(nodes))
    if len(whole) <= NAMES_WIDTH:
        return whole
    cut = whole[: NAMES_WIDTH - 5].rpartition(",")[0] or whole[: NAMES_WIDTH - 5]
    return f"{cut},...{']' if cut.count('[') > cut.count(']') else ''}"


def counted(nodes: Sequence[str]) -> str:
    """Return a nodelist with the number of its nodes: "gpu[1-3] (3 nodes)"."""
    shown = names(nodes)
    cut = "; --json names all" if ",..." in shown else ""
    return f"{shown} ({len(nodes)} node{'s' if len(nodes) > 1 else ''}{cut})"


def within(lines: Iterable[str]) -> list[str]:
    """Wrap the lines that are too wide, and return all lines. A wrapped line is marked from its second part on."""
    found: list[str] = []
    for line in lines:
        found += [line] if len(line) <= WIDTH else _wrapped(line)
    return found


def _wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    words = textwrap.wrap(line.strip(), WIDTH - len(_FURTHER), break_on_hyphens=False)
    return [indent + words[0], *(_FURTHER + more for more in words[1:])]
