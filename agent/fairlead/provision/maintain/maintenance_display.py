"""Shows a run on standard error: on a terminal as a table, otherwise as one line for each step."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from fairlead.model.plain_text import one_line
from fairlead.provision.maintain.maintenance_steps import IN_WORK, MaintenanceStep, NodeWork
from fairlead.provision.terminal_frame import Screen, drawable


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def moved(self, work: NodeWork) -> None:
        """Show that a node has taken a step."""

    def say(self, text: str) -> None:
        """Show a text that concerns the run."""

    def show(self, works: Sequence[NodeWork], notice: str, now: float) -> None:
        """Show all nodes as they are now. ``notice``: whole sentences that say why no further node begins, or "". ``now``: the
        time by the run's own clock."""


class LineDisplay(SilentDisplay):
    """Writes one plain line for each step."""

    def __init__(self) -> None:
        self._notice = ""

    def moved(self, work: NodeWork) -> None:
        self.say(line(work))

    def say(self, text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def show(self, works: Sequence[NodeWork], notice: str, now: float) -> None:
        if notice and notice != self._notice:
            self.say(notice.replace("\n", " "))
        self._notice = notice


class TableDisplay(SilentDisplay):
    """Draws a table of the nodes in work, with the step of each node and for how long it has been in that step. Lines above the
    table name the nodes that have ended."""

    def __init__(self) -> None:
        self._screen = Screen(stderr=True, transient=True)
        self._said: object = None

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._screen.__exit__(kind, error, trace)

    def moved(self, work: NodeWork) -> None:
        if work.ended:
            self.say(line(work), "red" if work.step is MaintenanceStep.FAILED else "")

    def say(self, text: str, style: str = "") -> None:
        self._screen.say(f"{time.strftime('%H:%M:%S')} {text}", style)

    def show(self, works: Sequence[NodeWork], notice: str, now: float) -> None:
        active = [(w.node, w.step.value, lasted(now - w.since), w.detail) for w in works if w.step in IN_WORK]
        below = (summary(works), *notice.splitlines())
        if (said := (tuple(active), below)) != self._said or self._screen.resized():
            self._said = said
            self._screen.draw(frame(active, below, self._screen.height))


def frame(active: Sequence[Sequence[str]], below: Sequence[str], height: int) -> Any:
    """Return the table to draw. It has at most ``height`` lines, and no line wraps. ``active``: the rows of the nodes in work.
    ``below``: the lines under the table."""
    from rich.console import Group
    from rich.table import Table as Drawn
    from rich.text import Text

    def whole(text: str) -> Text:
        return Text(one_line(text), no_wrap=True, overflow="ellipsis")

    drawn = Drawn(box=None, pad_edge=False)
    for head in ("NODE", "STEP", "FOR", "WHAT"):
        # if the terminal is too narrow, the column WHAT is cut
        drawn.add_column(head, no_wrap=head != "WHAT", justify="right" if head == "FOR" else "left")
    rows = active if len(active) + 1 + len(below) <= height else active[: height - 2 - len(below)]
    for row in rows:
        drawn.add_row(*map(whole, row))
    if len(rows) < len(active):
        drawn.add_row(whole("..."), whole(f"{len(active) - len(rows)} more"))
    return Group(*([drawn] if active else []), *map(whole, below))


def lasted(seconds: float) -> str:
    """Return a time as text: ``90 s``, ``12 min``, ``5 h``."""
    unit, size = next(((u, n) for u, n in (("h", 3600), ("min", 60)) if seconds >= 2 * n), ("s", 1))
    return f"{max(0.0, seconds) // size:.0f} {unit}"


def line(work: NodeWork) -> str:
    """Return one line about a node, such as ``gpu3: waiting: drained``."""
    return f"{work.node}: {work.step.value.replace('_', ' ')}" + (f": {work.detail}" if work.detail else "")


def summary(works: Sequence[NodeWork]) -> str:
    """Return the totals: ``16 nodes: 4 done, 1 failed, 4 in work, 7 queued``."""
    counts = {s.value.replace("_", " "): sum(w.step is s for w in works) for s in MaintenanceStep if s not in IN_WORK}
    counts["in work"] = sum(w.step in IN_WORK for w in works)
    return f"{len(works)} nodes: " + ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def display(*, quiet: bool) -> SilentDisplay:
    """Return the right display for this standard error."""
    if quiet:
        return SilentDisplay()
    return TableDisplay() if drawable(sys.stderr) else LineDisplay()
