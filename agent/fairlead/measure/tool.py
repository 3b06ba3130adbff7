"""What one measurement is: a command, how long it may take, and how its output is read.

Nothing here or in ``tools/`` starts a process: the command runs in a job (``script``), and ``read`` takes its text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from fairlead.model.plain_text import shown


class MeasuredOutcome(StrEnum):
    """What became of a measurement, or of a node. ABSENT: the tool is not installed there."""

    PASS = "pass"  # noqa: S105  # no password
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    ABSENT = "not installed"


#: A failure is certain whatever else is not known; what is not known is never a pass.
_ORDER = (MeasuredOutcome.PASS, MeasuredOutcome.ABSENT, MeasuredOutcome.WARN, MeasuredOutcome.UNKNOWN, MeasuredOutcome.FAIL)


def worst(outcomes: tuple[MeasuredOutcome, ...]) -> MeasuredOutcome:
    """The worst of them; UNKNOWN of none."""
    return max(outcomes, key=_ORDER.index, default=MeasuredOutcome.UNKNOWN)


class Figure(Struct, frozen=True, kw_only=True):
    """One measured value. ``device``: GPU, pair or adapter, "" for the node. ``bytes``: message size, 0 where it has none."""

    name: str
    value: float
    unit: str
    device: str = ""
    bytes: int = 0


#: A figure of any tool lies between these, in its unit; 0 is one too. What is beyond them is no measurement, and reckoning
#: with it may leave the range of floating point: a hundredth of the least one there is, is 0.
FIGURE_MIN, FIGURE_MAX = 1e-6, 1e15


def can_be(value: float) -> bool:
    """Can a tool have measured this? A negative one can be no speed, which is for the judge to say."""
    return math.isfinite(value) and (value == 0 or FIGURE_MIN <= abs(value) < FIGURE_MAX)


class ToolReading(Struct, frozen=True, kw_only=True):
    """What an output says by itself, before anything is compared: PASS, WARN, FAIL or UNKNOWN, and why.

    ranks: GPUs that took part, where the output says so. versions: of what ran, by name.
    """

    outcome: MeasuredOutcome
    why: str = ""
    figures: tuple[Figure, ...] = ()
    ranks: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Tool(Struct, frozen=True, kw_only=True):
    """``read``: standard output and standard error to what they say; raises nothing. ``so_far``: of an output that was cut.

    needed: where it is not installed, the node is not known. fits: seconds after which it is ended.
    """

    summary: str
    command: str
    seconds: int
    read: Callable[[str, str], ToolReading]
    so_far: Callable[[str], str]
    needed: bool = True


def last_line(*texts: str) -> str:
    """The last line that says something, of the first text that has one; bounded and printable."""
    for text in texts:
        for line in reversed(text[-4000:].splitlines()):
            if line.strip():
                return shown(line.strip(), "?")[:200]
    return ""


def unread(what: str, out: str, err: str) -> ToolReading:
    """An output that is not of the tool, or not whole."""
    said = last_line(err, out)
    return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"{what}{f': {said}' if said else ''}")
