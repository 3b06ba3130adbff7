"""Reads and writes Slurm's nodelists, ``gpu[01-16,18],login``: from text to names, and from names to the shortest text.

A numeric range must be at the end of a name (slurm.conf(5), NodeName), so only the digits at the end are folded. Leading zeros
are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# The most nodes in one nodelist. Slurm's own limit is 65536 nodes (MAX_SLURM_NODES, src/common/hostlist.h).
NODES_MAX = 1 << 17
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_PARTS = re.compile(r"([0-9]+)")
_TAIL = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_name(word: str) -> bool:
    """Return whether ``word`` can be a NodeName: it has only letters, digits, ``_``, ``.`` and ``-``, and is no keyword of
    Slurm."""
    return len(word) <= 64 and bool(_NAME.fullmatch(word)) and word.lower() not in {"default", "all"}


def natural(name: str) -> tuple[tuple[int, str, int], ...]:
    """Return a sort key that puts n2 before n10."""
    return tuple((1, "", int(part)) if i % 2 else (0, part, 0) for i, part in enumerate(_PARTS.split(name)))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names without duplicates, n2 before n10. Names with the same number (n1, n01) have a fixed order too."""
    return sorted(set(names), key=lambda name: (natural(name), name))


def fold(names: Iterable[str]) -> str:
    """Return the nodelist of these names. The same set of names always gives the same text."""
    groups: dict[str, list[str]] = {}
    for name in in_order(names):
        match = _TAIL.fullmatch(name)
        head, digits = (match[1], match[2]) if match else (name, "")
        groups.setdefault(head, []).append(digits)
    return ",".join(_fold_group(head, numbers) for head, numbers in groups.items())


def _fold_group(head: str, numbers: list[str]) -> str:
    parts = [head] if "" in numbers else []
    runs: list[list[str]] = []
    for digits in sorted((n for n in numbers if n), key=lambda n: (int(n), len(n))):
        if runs and _follows(runs[-1][0], runs[-1][-1], digits):
            runs[-1].append(digits)
        else:
            runs.append([digits])
    words = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(words) == 1 and len(runs[0]) == 1:
        parts.append(head + words[0])
    elif words:
        parts.append(f"{head}[{','.join(words)}]")
    return ",".join(parts)


def _follows(first: str, last: str, digits: str) -> bool:
    """Return whether Slurm expands the range ``first-digits`` so that ``digits`` follows ``last``."""
    return int(digits) == int(last) + 1 and digits == f"{int(digits):0{len(first)}d}"


def expand(nodelist: str) -> list[str]:
    """Return the names of a nodelist in the order of the nodelist. Several brackets in one name give all combinations.

    Raise ValueError for anything that is no nodelist, or for more than ``NODES_MAX`` names.
    """
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", nodelist):
        made = [""]
        at = 0
        for match in _BRACKETS.finditer(part):
            numbers = [n for each in match[1].split(",") for n in _numbers(each, nodelist)]
            if len(made) * len(numbers) > NODES_MAX:
                raise ValueError(f"nodelist {nodelist[:80]!r}: too many nodes")
            made = [f"{name}{part[at : match.start()]}{number}" for name in made for number in numbers]
            at = match.end()
        rest = part[at:]
        if not part or set(rest) & set("[]") or len(names) + len(made) > NODES_MAX:
            raise ValueError(f"nodelist {nodelist[:80]!r} makes no sense")
        names += [name + rest for name in made]
    return names


def _numbers(text: str, nodelist: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None or len(text) > 20:
        raise ValueError(f"nodelist {nodelist[:80]!r} makes no sense")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first) or int(last) - int(first) >= NODES_MAX:
        raise ValueError(f"nodelist {nodelist[:80]!r} makes no sense")
    return [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
