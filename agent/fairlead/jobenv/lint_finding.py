"""What a rule of ``fairlead lint`` says, and what it is told: the words that lint.py and the rules share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from fairlead.jobenv.batch_script import Assignment, Script, ScriptLine


class LintLevel(StrEnum):
    """error: breaks or corrupts. warn: slower, dangerous or without effect. info: right on some machines only."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LintFinding(Struct, frozen=True, kw_only=True):
    """``line``: number in the file, from 1."""

    line: int
    rule: str
    level: LintLevel
    message: str
    suggestion: str
    source: str


class LintSite(Struct, frozen=True, kw_only=True):
    """What is known of the machine. ``nccl``: its version. ``fabric``: "ib" where it has InfiniBand, "" for not known."""

    nccl: tuple[int, ...] = (2, 30)
    fabric: str = ""


Found = Iterator[tuple[ScriptLine, LintLevel, str, str, str]]
LintRule = Callable[[Script, LintSite], Found]


def assigned(script: Script, *names: str) -> Iterator[Assignment]:
    """Where the file sets one of the names."""
    return (a for a in script.assignments if a.name in names)


def number(value: str | None) -> int | None:
    """As NCCL reads it, strtoll(value, NULL, 0): what stands behind the digits is dropped, and without digits it is 0.

    None where the value is not known or empty, which NCCL takes for unset (src/misc/param.cc).
    """
    if not value:
        return None
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d{1,20})", value)
    if not match:
        return 0
    digits = match[2]
    if digits[:2] in {"0x", "0X"}:
        magnitude = int(digits[2:18], 16)
    elif digits[0] == "0":
        magnitude = int("0" + re.match("[0-7]*", digits)[0], 8)  # type: ignore[index]  # the pattern matches any text
    else:
        magnitude = int(digits)
    return -magnitude if match[1] == "-" else magnitude


def whole(value: str) -> bool:
    """Whether all of it is a number as C writes it."""
    return bool(re.fullmatch(r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20})\s*", value))


def shown(a: Assignment) -> str:
    """``=value`` where it is known."""
    return "" if a.value is None else f"={a.value}"
