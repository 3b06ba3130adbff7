"""Which sweeps ask NVML for everything: those that are thorough or make new metrics, and no others."""

from __future__ import annotations

from itertools import cycle, islice, pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead import config
from fairlead.daemon.loop.readers import Readers
from fairlead.host import gather
from fairlead.host.nvml import NvmlResult
from fairlead.host.root import Root
from tests.lab.trees import MACHINES

TREE = MACHINES / "l40s-pcie"
#: One second, give or take 5 %, as the loop's schedule makes it.
INTERVALS = (0.97, 1.03, 1.04, 0.96, 0.99, 1.02, 1.05, 0.95, 1.01)


class Recorded:
    """In place of the worker: it answers at once with the recorded values. ``closely``: how each sweep was requested."""

    deadline_seconds, released = 5.0, False

    def __init__(self) -> None:
        self.closely: list[bool] = []
        self._raw = msgspec.json.decode((TREE / "nvml.json").read_bytes())

    def start_sweep(self, *, closely: bool) -> None:
        self.closely.append(closely)

    def poll(self) -> NvmlResult:
        return NvmlResult(raw=self._raw, closely=self.closely[-1])

    def hurry(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(gather, "time", SimpleNamespace(monotonic=lambda: made.now, time_ns=lambda: int(made.now * 1e9)))
    return made


def test_nvml_is_asked_for_everything_only_in_thorough_sweeps(clock: Any) -> None:
    """Each such reading of eight GPUs costs as much as three other sweeps."""
    readers, worker = Readers(config.profile_document("n1", "l40s-pcie"), Root(str(TREE))), Recorded()
    readers.worker = worker  # type: ignore[assignment]
    thorough = []
    for seconds in islice(cycle(INTERVALS), 60):
        metrics = readers.start_sweep(shown=False)
        clock.now += 0.003
        node = readers.poll()
        assert node is not None
        assert metrics == worker.closely[-1], "new metrics are made of every reading of everything"
        thorough.append(node.thorough)
        clock.now += seconds - 0.003
    assert thorough == worker.closely
    at = [number for number, each in enumerate(thorough) if each]
    assert at[0] == 0 and all(later - earlier in (14, 15) for earlier, later in pairwise(at))
