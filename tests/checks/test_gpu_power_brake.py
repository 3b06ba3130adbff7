"""The power brake's share of the time, by the sweeps and by the driver's count."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.checks import gpu_power_brake
from fairlead.model.finding import Level, Service
from tests.checks.loaded import BRAKED, BUSY, HW_HOT, IDLE, judged, watched
from tests.checks.nodes import NA, UNSUPPORTED, gpu


@pytest.mark.parametrize(
    ("states", "fires"),
    [
        ([BRAKED] * 60, True),
        ([{**IDLE, "throttle_reasons": 0x89}] * 60, True),
        ([BUSY] * 55 + [BRAKED] * 5, True),
        ([BUSY] * 60, False),
        ([BUSY] * 70 + [BRAKED], False),
        ([HW_HOT] * 60, False),
    ],
)
def test_the_power_brake(states: list[dict[str, Any]], fires: bool) -> None:
    found = watched(gpu_power_brake, states)
    assert [(f.level, f.service) for f in found] == [(Level.DRAIN, Service.DRAIN_AFTER_JOB)] * fires


def test_the_drivers_count_of_the_power_brake() -> None:
    found = watched(gpu_power_brake, [BUSY] * 60, events={"hw_power_brake_slowdown_seconds": 100.0})
    assert [f.level for f in found] == [Level.DRAIN]


def test_a_power_brake_that_cannot_be_read() -> None:
    assert [f.level for f in judged(gpu_power_brake, gpu(3, throttle_reasons=NA))] == [Level.UNKNOWN]
    assert judged(gpu_power_brake, gpu(3, throttle_reasons=UNSUPPORTED)) == []
