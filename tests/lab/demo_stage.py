"""Steps that are announced, timed and checked, and the table of how long each reaction took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tests.lab.pause import pause

T = TypeVar("T")


class StepFailed(Exception):
    """A step did not hold: what was expected, what was seen."""


@dataclass
class Stage:
    number: int = 0
    title: str = ""
    steps: list[tuple[str, float, int]] = field(default_factory=list)
    reactions: list[tuple[str, float, str]] = field(default_factory=list)
    _checks: int = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, time it, note it for the summary when it held."""
        self.title, self._checks = title, 0
        print(f"\n{self.number}. {title}", flush=True)
        start = time.monotonic()
        yield
        took = time.monotonic() - start
        self.steps.append((f"{self.number}. {title}", took, self._checks))
        print(f"   held: {self._checks} checks, {took:.1f} s", flush=True)
        self.number += 1

    def say(self, text: str) -> None:
        """Lines of output, indented."""
        for line in text.splitlines():
            print(f"   | {line}", flush=True)

    def check(self, what: str, ok: bool, expected: object, seen: object) -> None:
        """Go on only if ``ok``. Raises StepFailed with both sides."""
        if not ok:
            raise StepFailed(
                f"step {self.number} ({self.title}) does not hold: {what}\n  expected: {expected}\n  seen:     {seen}"
            )
        self._checks += 1
        print(f"   ok  {what}", flush=True)

    def wait(
        self, what: str, read: Callable[[], T], good: Callable[[T], bool], seconds: float, every: float = 0.02
    ) -> tuple[T, float]:
        """Look until it is good; returns what was seen and after how many seconds. Raises StepFailed at the bound."""
        start = time.monotonic()
        while True:
            began = time.monotonic()
            seen = read()
            took = time.monotonic() - start
            if good(seen):
                self._checks += 1
                print(f"   ok  {what} ({took:.2f} s)", flush=True)
                return seen, took
            if took > seconds:
                raise StepFailed(
                    f"step {self.number} ({self.title}) does not hold within {seconds:g} s: {what}\n  seen last: {seen}"
                )
            time.sleep(every) if every < 0.01 else pause(began, every)  # what is timed is looked at without a rest

    def reaction(self, what: str, seconds: float, budget: str = "") -> None:
        """Note how long fairlead took to react, for the summary."""
        self.reactions.append((what, seconds, budget))

    def summary(self, total: float) -> None:
        """What was shown and how long each reaction took."""
        width = max(len(t) for t, _, _ in self.steps + self.reactions)
        print("\nWhat was shown")
        for title, took, checks in self.steps:
            print(f"  {title:{width}}  {took:6.1f} s  {checks} checks held")
        print("\nHow long fairlead took")
        for title, took, budget in self.reactions:
            figure = f"{took * 1000:.0f} ms" if took < 2 else f"{took:.1f} s"
            print(f"  {title:{width}}  {figure:>8}  {budget}")
        print(f"\nAll of it in {total:.0f} s.")
        sys.stdout.flush()
