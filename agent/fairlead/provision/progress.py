"""Progress of a run: a bar on a terminal, a line per node elsewhere. Both on standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fairlead.provision.report import NodeResult
from fairlead.provision.screen import beneath, drawable


class Silent:
    """No display."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def done(self, result: NodeResult) -> None:
        """A node is done."""


class Lines(Silent):
    """One plain line per node. ``words``: how a state is said, where that is not its own name."""

    def __init__(self, total: int, words: Mapping[str, str]) -> None:
        self._total = total
        self._words = words
        self._count = 0

    def done(self, result: NodeResult) -> None:
        self._count += 1
        said = [result.message] if result.message else [f"{result.changed} changes"] if result.changes else []
        said += [f"{len(result.waiting)} waiting"] if result.waiting else []
        told = f"{self._words.get(result.state, result.state)}{': ' if said else ''}{', '.join(said)}"
        sys.stderr.write(f"[{self._count}/{self._total}] {result.node}: {told}\n")


class Bar(Silent):
    """A bar that says how many nodes are done, and with what; failures stay on the screen as lines."""

    def __init__(self, total: int, words: Mapping[str, str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [
            TextColumn("looked at" if words else "provision"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        ]
        self._progress = Progress(*columns, console=Console(file=beneath(sys.stderr)), transient=True)
        self._task = self._progress.add_task("nodes", total=total, said="")
        self._words = words
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def done(self, result: NodeResult) -> None:
        self._counts[result.state] = self._counts.get(result.state, 0) + 1
        if result.state in {"failed", "unreachable"}:
            self._progress.console.print(f"{result.node}: {result.state}: {result.message}", markup=False, highlight=False)
        said = ", ".join(f"{count} {self._words.get(state, state)}" for state, count in sorted(self._counts.items()))
        self._progress.update(self._task, advance=1, said=said)


def display(total: int, *, quiet: bool, check: bool = False) -> Silent:
    """The right display for this standard error. check: nothing is changed in this run."""
    if quiet:
        return Silent()
    words = {"changed": "would change"} if check else {}
    return Bar(total, words) if drawable(sys.stderr) else Lines(total, words)
