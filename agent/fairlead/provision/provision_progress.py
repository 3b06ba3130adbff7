"""Shows the progress of a run on standard error: on a terminal as a bar, otherwise as one line for each node. Nodes that do not
answer for long are named in either case."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fairlead.provision.inventory import fold
from fairlead.provision.provision_report import NodeResult
from fairlead.provision.terminal_frame import beneath, drawable

SILENT_SECONDS = 60.0  # after this time without an answer a node is named, and again whenever the time has doubled
NAMED_MAX = 60  # the longest nodelist in a bar, in characters


class UnansweredNodes:
    """Holds the nodes that were asked and have not answered."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def begin(self, node: str) -> None:
        self._since.setdefault(node, time.monotonic())

    def end(self, node: str) -> None:
        self._since.pop(node, None)

    def silent(self) -> dict[str, float]:
        """Return the nodes whose answer is late, each with the seconds since it was asked."""
        now = time.monotonic()
        return {node: now - since for node, since in self._since.items() if now - since >= SILENT_SECONDS}


class SilentProgress:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def done(self, result: NodeResult) -> None:
        """Show that a node is done."""

    def silent(self, nodes: Mapping[str, float]) -> None:
        """Show the nodes that have not answered, each with the seconds since it was asked. This is called again and again."""


class LineProgress(SilentProgress):
    """Writes one plain line for each node. ``words``: for a state, the word to show in place of its name."""

    def __init__(self, total: int, words: Mapping[str, str]) -> None:
        self._total = total
        self._words = words
        self._count = 0
        self._next_report: dict[str, float] = {}  # seconds after which a node is named again

    def done(self, result: NodeResult) -> None:
        self._count += 1
        said = [result.message] if result.message else [f"{result.changed} changes"] if result.changes else []
        said += [f"{len(result.waiting)} waiting"] if result.waiting else []
        told = f"{self._words.get(result.state, result.state)}{': ' if said else ''}{', '.join(said)}"
        sys.stderr.write(f"[{self._count}/{self._total}] {result.node}: {told}\n")

    def silent(self, nodes: Mapping[str, float]) -> None:
        due = [node for node, seconds in nodes.items() if seconds >= self._next_report.get(node, 0.0)]
        for node in due:
            self._next_report[node] = 2 * nodes[node]
        if due:
            longest = max(nodes[node] for node in due)
            sys.stderr.write(f"[{self._count}/{self._total}] {fold(due)}: no answer for {_minutes(longest)}\n")


class BarProgress(SilentProgress):
    """Draws a bar with how many nodes are done, by state. Failures stay on the screen as lines."""

    def __init__(self, total: int, words: Mapping[str, str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [
            TextColumn("read" if words else "provision"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        ]
        self._progress = Progress(*columns, console=Console(file=beneath(sys.stderr)), transient=True)
        self._task = self._progress.add_task("nodes", total=total, said="")
        self._words = words
        self._counts: dict[str, int] = {}
        self._silent = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def done(self, result: NodeResult) -> None:
        self._counts[result.state] = self._counts.get(result.state, 0) + 1
        if result.state in {"failed", "unreachable"}:
            self._progress.console.print(f"{result.node}: {result.state}: {result.message}", markup=False, highlight=False)
        self._progress.update(self._task, advance=1, said=self._said())

    def silent(self, nodes: Mapping[str, float]) -> None:
        names = fold(list(nodes)) if nodes else ""
        named = names if len(names) <= NAMED_MAX else f"{len(nodes)} nodes"
        self._silent = f"no answer of {named} for {_minutes(max(nodes.values()))}" if nodes else ""
        self._progress.update(self._task, said=self._said())

    def _said(self) -> str:
        counts = [f"{count} {self._words.get(state, state)}" for state, count in sorted(self._counts.items())]
        return ", ".join([*counts, *filter(None, [self._silent])])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def display(total: int, *, quiet: bool, check: bool = False) -> SilentProgress:
    """Return the right display for this standard error. check: nothing is changed in this run."""
    if quiet:
        return SilentProgress()
    words = {"changed": "would change"} if check else {}
    return BarProgress(total, words) if drawable(sys.stderr) else LineProgress(total, words)
