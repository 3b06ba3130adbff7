"""Defines what one measurement is: a command, how long it may take, and how its output is read.

Nothing here or in ``tools/`` starts a process. The command runs in a job (``job_script``), and ``read`` takes its text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from fairlead.model.plain_text import shown


class MeasuredOutcome(StrEnum):
    """Says how a measurement, or a node, came out. ABSENT: the tool is not installed there."""

    PASS = "pass"  # noqa: S105  # no password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    ABSENT = "not installed"


#: A failure is certain even when something else is not known. What is not known is never a pass.
_ORDER = (MeasuredOutcome.PASS, MeasuredOutcome.ABSENT, MeasuredOutcome.WARN, MeasuredOutcome.UNKNOWN, MeasuredOutcome.FAIL)


def worst(outcomes: tuple[MeasuredOutcome, ...]) -> MeasuredOutcome:
    """Return the worst of the outcomes; UNKNOWN of none."""
    return max(outcomes, key=_ORDER.index, default=MeasuredOutcome.UNKNOWN)


class Figure(Struct, frozen=True, kw_only=True):
    """Holds one measured value. ``device``: GPU, pair or adapter, "" for the node. ``bytes``: message size, 0 where it has
    none."""

    name: str
    value: float
    unit: str
    device: str = ""
    bytes: int = 0


#: A figure of any tool is 0 or lies between these, in its unit. A value beyond them is no measurement. Computing with it may
#: leave the range of floating point: a hundredth of the smallest number is 0.
FIGURE_MIN, FIGURE_MAX = 1e-6, 1e15


def can_be(value: float) -> bool:
    """Say whether a tool can have measured this value. A negative value passes here; ``judge`` refuses it as a speed."""
    return math.isfinite(value) and (value == 0 or FIGURE_MIN <= abs(value) < FIGURE_MAX)


class ToolReading(Struct, frozen=True, kw_only=True):
    """Holds what an output says by itself, before anything is compared: PASS, WARN, FAIL or UNKNOWN, and why.

    ranks: the number of GPUs that took part, where the output says so. versions: of the programs that ran, by name.
    """

    outcome: MeasuredOutcome
    why: str = ""
    figures: tuple[Figure, ...] = ()
    ranks: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Tool(Struct, frozen=True, kw_only=True):
    """Describes one measurement. ``read``: takes standard output and standard error, returns what they say, and raises
    nothing. ``so_far``: says how far an output got that was cut.

    needed: without this tool the node's outcome is unknown. seconds: the deadline after which the tool is ended.
    """

    summary: str
    command: str
    seconds: int
    read: Callable[[str, str], ToolReading]
    so_far: Callable[[str], str]
    needed: bool = True


def last_line(*texts: str) -> str:
    """Return the last line that is not empty, of the first text that has one; bounded and printable."""
    for text in texts:
        for line in reversed(text[-4000:].splitlines()):
            if line.strip():
                return shown(line.strip(), "?")[:200]
    return ""


def unread(what: str, out: str, err: str) -> ToolReading:
    """Return the reading of an output that is not of the tool, or not complete."""
    said = last_line(err, out)
    return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"{what}{f': {said}' if said else ''}")
