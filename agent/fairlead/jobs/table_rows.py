"""Reads the tables that Slurm's commands print with ``-P``: a first line with the names of the columns, and cells between ``|``.

Times are seconds of Unix time: run the commands with ``SLURM_TIME_FORMAT=%s``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from fairlead.model.nodelist import expand, is_name

ROWS_MAX = 4_000_000
LINE_MAX = 64 * 1024
#: What Slurm prints for a time that is not known yet.
NO_TIME = frozenset(("Unknown", "None", "", "0", "N/A", "NONE"))


class BadRow(ValueError):
    """Says in one line why a row cannot be read."""


def table_rows(
    lines: Iterable[str], columns: tuple[str, ...], mistakes: list[str], table: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and row of each line after the first. ``columns`` must be there, in any order, and there may be others.

    The reason of each line that is no row is added to ``mistakes``, after the name of the table.
    """
    header: list[str] | None = None
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\n")
        if number > ROWS_MAX:
            mistakes.append(f"{table}: more than {ROWS_MAX} lines: the rest is not read")
            return
        if not line:
            continue
        cells = line[:LINE_MAX].split("|")
        if header is None:
            header = cells
            if missing := [name for name in columns if name not in header]:
                mistakes.append(f"{table}: the first line has no column {', '.join(missing)}")
                return
        elif len(cells) != len(header) or len(line) > LINE_MAX:
            mistakes.append(f"{table}: line {number}: it has {len(cells)} cells, and the first line has {len(header)}")
        else:
            yield number, dict(zip(header, cells, strict=True))
    if header is None:
        mistakes.append(f"{table}: is empty, not even a first line with the names of the columns")


def seconds_of(text: str, column: str) -> int:
    """Return a time. Raises BadRow."""
    if not re.fullmatch(r"[0-9]{1,11}", text):
        raise BadRow(f"{column} is not a number of seconds (SLURM_TIME_FORMAT=%s makes Slurm print one)")
    return int(text)


@lru_cache(maxsize=16384)  # most jobs of a cluster have few different nodelists
def nodes_of(text: str) -> tuple[str, ...]:
    """Return the nodes of a nodelist. Raises BadRow."""
    try:
        names = tuple(expand(text))
    except ValueError:
        names = ("",)
    if not all(map(is_name, names)):
        raise BadRow("NodeList is not a nodelist")
    return names
