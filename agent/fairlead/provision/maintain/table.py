"""What is shown while a run is driven: a table on a terminal, a line per step elsewhere. Both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from fairlead.provision.maintain.steps import IN_WORK, Step, Work

ROWS = 24


class Silent:
    """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def moved(self, work: Work) -> None:
        """A node has taken a step."""

    def say(self, text: str) -> None:
        """Something that concerns the run."""

    def show(self, works: Sequence[Work], held: str) -> None:
        """All nodes as they are now. ``held``: why nothing new begins."""


class Lines(Silent):
    """One plain line per step."""

    def __init__(self) -> None:
        self._held = ""

    def moved(self, work: Work) -> None:
        self.say(line(work))

    def say(self, text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def show(self, works: Sequence[Work], held: str) -> None:
        if held and held != self._held:
            self.say(f"no other node is begun now: {held}")
        self._held = held


class Table(Silent):
    """The nodes in work, with what each does and for how long; what has ended stays above as lines."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def moved(self, work: Work) -> None:
        if work.ended:
            self.say(line(work))

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, works: Sequence[Work], held: str) -> None:
        from rich.table import Table as Drawn

        drawn: Any = Drawn(box=None, pad_edge=False)
        for head in ("NODE", "STEP", "FOR", "WHAT"):
            drawn.add_column(head, no_wrap=head != "WHAT")
        active = [w for w in works if w.step in IN_WORK]
        for work in active[:ROWS]:
            drawn.add_row(work.node, work.step.value, f"{time.time() - work.since:.0f} s", work.detail)
        if len(active) > ROWS:
            drawn.add_row("...", f"{len(active) - ROWS} more", "", "")
        drawn.caption = summary(works) + (f"; no other is begun: {held}" if held else "")
        self._live.update(drawn, refresh=True)


def line(work: Work) -> str:
    """``gpu3: waiting: drained``."""
    return f"{work.node}: {work.step.value.replace('_', ' ')}" + (f": {work.detail}" if work.detail else "")


def summary(works: Sequence[Work]) -> str:
    """``16 nodes: 4 done, 1 failed, 4 in work, 7 queued``."""
    counts = {s.value.replace("_", " "): sum(w.step is s for w in works) for s in Step if s not in IN_WORK}
    counts["in work"] = sum(w.step in IN_WORK for w in works)
    return f"{len(works)} nodes: " + ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def display(*, quiet: bool) -> Silent:
    """The right one for this standard error."""
    if quiet:
        return Silent()
    return Table() if sys.stderr.isatty() else Lines()
