"""One measured figure beside its budget."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """``value`` and ``budget`` in ``unit``; ``beside``: what was measured in the same run to compare with, in words."""

    what: str
    value: float
    budget: float | None
    unit: str
    beside: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool | None:
        return None if self.budget is None else self.value <= self.budget


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], q: float) -> float:
    """The value below which ``q`` percent of the sample lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))]


def table(rows: Sequence[Row]) -> str:
    """The rows as a text table: what, measured, budget, whether it holds, what it is compared to."""
    cells = [("what", "measured", "budget", "", "measured beside it")]
    for r in rows:
        mark = {True: "ok", False: "OVER", None: ""}[r.holds]
        budget = "" if r.budget is None else f"{r.budget:g} {r.unit}"
        cells.append((r.what, f"{r.value:.3g} {r.unit}", budget, mark, " ".join(x for x in (r.beside, r.detail) if x)))
    widths = [max(len(c[i]) for c in cells) for i in range(4)]
    return "\n".join("  ".join([*(c[i].ljust(widths[i]) for i in range(4)), c[4]]).rstrip() for c in cells)
