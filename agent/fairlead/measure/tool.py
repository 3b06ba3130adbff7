"""Defines what one measurement is: a command, how long it may take, and how its output is read.

Nothing here or in ``tools/`` starts a process. The command runs in a job (``job_script``), and ``read`` gets its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from fairlead.model.plain_text import shown


class MeasuredOutcome(StrEnum):
    """Names the outcome of a measurement or of a node. ABSENT: the tool, or the hardware that it measures, is not there."""

    PASS = "pass"  # noqa: S105  # no password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    ABSENT = "not installed"


#: From the best to the worst. FAIL is the worst, because a failure is certain even if something else is unknown. What is unknown
#: never passes.
_ORDER = (MeasuredOutcome.PASS, MeasuredOutcome.ABSENT, MeasuredOutcome.WARN, MeasuredOutcome.UNKNOWN, MeasuredOutcome.FAIL)


def worst(outcomes: tuple[MeasuredOutcome, ...]) -> MeasuredOutcome:
    """Return the worst of the outcomes, or UNKNOWN if there is none."""
    return max(outcomes, key=_ORDER.index, default=MeasuredOutcome.UNKNOWN)


class Figure(Struct, frozen=True, kw_only=True):
    """Holds one measured value. ``device``: the GPU, pair of GPUs or adapter, or "" for the whole node. ``bytes``: the message
    size, or 0 if the figure has none."""

    name: str
    value: float
    unit: str
    device: str = ""
    bytes: int = 0


#: Every figure is 0 or lies between these limits, in its unit. A value beyond the limits is no measurement. A calculation with
#: such a value may leave the range of floating point: a hundredth of the smallest number is 0.
FIGURE_MIN, FIGURE_MAX = 1e-6, 1e15


def can_be(value: float) -> bool:
    """Say whether a tool can have measured this value. A negative value is accepted here, and ``judge`` refuses it later."""
    return math.isfinite(value) and (value == 0 or FIGURE_MIN <= abs(value) < FIGURE_MAX)


class ToolReading(Struct, frozen=True, kw_only=True):
    """Holds the result of a tool by its output alone, before its figures are compared. why: the reason for the outcome.

    ranks: the number of GPUs that took part, or None if the output does not say. versions: the versions of the programs that
    ran, by program name.
    """

    outcome: MeasuredOutcome
    why: str = ""
    figures: tuple[Figure, ...] = ()
    ranks: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Tool(Struct, frozen=True, kw_only=True):
    """Describes one measurement. ``read``: returns the reading of standard output and standard error, and never raises.
    ``so_far``: returns in words how far an unfinished run got, from its standard output.

    needed: if this tool is not installed, the node's outcome is UNKNOWN. seconds: the deadline at which the tool is killed.
    """

    summary: str
    command: str
    seconds: int
    read: Callable[[str, str], ToolReading]
    so_far: Callable[[str], str]
    needed: bool = True


def last_line(*texts: str) -> str:
    """Return the last line that is not empty, from the first text that has such a line. It is cut and made printable."""
    for text in texts:
        for line in reversed(text[-4000:].splitlines()):
            if line.strip():
                return shown(line.strip(), "?")[:200]
    return ""


def unread(what: str, out: str, err: str) -> ToolReading:
    """Return the reading of an output that is incomplete, or that another program wrote. Its outcome is UNKNOWN."""
    said = last_line(err, out)
    return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"{what}{f': {said}' if said else ''}")
