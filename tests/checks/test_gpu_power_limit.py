"""Power limits below or above what the board or the site says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks import gpu_power_limit
from fairlead.model.facts import Missing
from fairlead.model.finding import Level
from tests.checks.loaded import judged
from tests.checks.nodes import LOAD, NA, UNSUPPORTED, gpu


@pytest.mark.parametrize(
    ("watts", "declared", "levels"),
    [
        (700.0, None, []),
        (500.0, None, [Level.DRAIN]),
        (500.0, 500.0, []),  # the site wants it so
        (699.8, None, []),
        (700.0, 500.0, [Level.WARN]),
        (NA, None, [Level.UNKNOWN]),
        (UNSUPPORTED, None, []),
    ],
)
def test_power_limit(watts: float | Missing, declared: float | None, levels: list[Level]) -> None:
    found = judged(gpu_power_limit, gpu(3, power_limit_watts=watts), limit_watts=declared)
    assert [f.level for f in found if f.device == gpu(3).pci] == levels


def test_a_default_limit_that_cannot_be_read() -> None:
    changed = gpu(3, load=replace(LOAD, power_default_watts=NA))
    assert [f.level for f in judged(gpu_power_limit, changed)] == [Level.UNKNOWN]
