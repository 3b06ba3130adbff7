"""Defines the types of the arguments and results of the rules of ``fairlead lint``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from fairlead.jobenv.batch_script import Assignment, Script, ScriptLine


class LintLevel(StrEnum):
    """Says how bad a finding is. error: the setting breaks the job or corrupts data. warn: the setting makes the job slower, is
    dangerous, or has no effect. info: the setting is right on some machines only."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LintFinding(Struct, frozen=True, kw_only=True):
    """Holds one finding of a rule. line: the number of the line in the file, from 1."""

    line: int
    rule: str
    level: LintLevel
    message: str
    suggestion: str
    source: str


class LintSite(Struct, frozen=True, kw_only=True):
    """Holds what is known about the machine. nccl: the version of NCCL. fabric: "ib" if the machine has InfiniBand, "" if this is
    not known."""

    nccl: tuple[int, ...] = (2, 30)
    fabric: str = ""


Found = Iterator[tuple[ScriptLine, LintLevel, str, str, str]]
LintRule = Callable[[Script, LintSite], Found]


def assigned(script: Script, *names: str) -> Iterator[Assignment]:
    """Return the assignments of the file that set one of the names."""
    return (a for a in script.assignments if a.name in names)


def number(value: str | None) -> int | None:
    """Return a value as NCCL reads it with strtoll(value, NULL, 0). Text behind the digits is ignored, and other text is 0.

    The result is None if the value is not known, or is empty, which NCCL treats as unset (src/misc/param.cc).
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
    """Say whether the whole value is a number as C writes it."""
    return bool(re.fullmatch(r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20})\s*", value))


def shown(a: Assignment) -> str:
    """Return ``=`` and the value of the assignment, or "" if the value is not known."""
    return "" if a.value is None else f"={a.value}"
