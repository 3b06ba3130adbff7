"""Reads the three labelled training jobs of ../shared/data/stragglers, and makes of their workers what is compared."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fairlead.fleet.slow_node_rule import NodeSigns, Signal, SlowPattern
from fairlead.fleet.small_group_statistics import median

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/stragglers"
SIGNALS = (
    Signal(name="forward", words="forward compute", unit="ms", slow="high", floor=0.05, relative=True),
    Signal(name="backward", words="backward compute", unit="ms", slow="high", floor=0.05, relative=True),
)
PATTERNS = (SlowPattern(cause="slow worker", needs=(("forward",), ("backward",))),)
Worker = tuple[str, str]  # data-parallel rank, pipeline rank
Steps = dict[Worker, list[dict[str, float]]]


def steps_of(name: str) -> Steps:
    """Each worker's steps in order; skips the test where the data is absent."""
    path = DATA / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent: the labelled jobs are not part of the project")
    found: Steps = {}
    with path.open() as f:
        for row in csv.DictReader(f):
            worker = row["data_parallel_rank"], row["pipeline_rank"]
            found.setdefault(worker, []).append({"forward": float(row["forward_ms"]), "backward": float(row["backward_ms"])})
    return found


def signs(
    steps: Steps, first: int, count: int, *, roles: bool = True, slower: Mapping[Worker, float] | None = None
) -> list[NodeSigns]:
    """The workers by the medians of ``count`` steps. ``roles``: only workers of one pipeline rank are of one kind."""
    factor = slower or {}
    return [
        NodeSigns(
            node=f"{worker[0]}.{worker[1]}",
            kind=worker[1] if roles else "",
            host={s.name: median(_window(each, first, count, s.name)) * factor.get(worker, 1.0) for s in SIGNALS},
        )
        for worker, each in steps.items()
    ]


def _window(steps: Sequence[Mapping[str, float]], first: int, count: int, name: str) -> list[float]:
    return [step[name] for step in steps[first : first + count]]
