"""Clocks held back under load by heat or hardware, and what is normal under load."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.checks import gpu_throttle
from fairlead.model.finding import Level
from tests.checks.loaded import BRAKED, BUSY, CAPPED, HW_HOT, IDLE, judged, watched
from tests.checks.nodes import NA, gpu

SW_HOT = {**BUSY, "throttle_reasons": 0x20}
FAST_TRIGGER = {**BUSY, "throttle_reasons": 0x8}


@pytest.mark.parametrize(
    ("states", "words", "level"),
    [
        ([HW_HOT] * 60, "slowed by heat (hardware)", Level.DRAIN),
        ([BUSY] * 50 + [HW_HOT] * 10, "slowed by heat (hardware)", Level.DRAIN),
        ([BUSY] * 30 + [FAST_TRIGGER] * 30, "slowed by its hardware", Level.DRAIN),
        ([SW_HOT] * 60, "slowed by heat (software)", Level.WARN),
    ],
)
def test_throttling_under_load(states: list[dict[str, Any]], words: str, level: Level) -> None:
    (finding,) = watched(gpu_throttle, states)
    assert (finding.level, finding.device) == (level, gpu(3).pci)
    assert words in finding.summary
    assert "s under load" in finding.evidence[0]


@pytest.mark.parametrize(
    "states",
    [
        [BUSY] * 60,
        [IDLE] * 60,
        [CAPPED] * 60,  # the power cap is normal under full load
        [{**IDLE, "throttle_reasons": 0x48}] * 60,  # nobody is slowed
        [BUSY] * 99 + [FAST_TRIGGER],  # one sight of it, as during a change of clocks
        [BUSY] * 80 + [SW_HOT] * 10,
        [HW_HOT] * 5,  # too little load to say anything
        [BRAKED] * 60,  # that is gpu_power_brake's
    ],
)
def test_what_is_no_throttling(states: list[dict[str, Any]]) -> None:
    assert watched(gpu_throttle, states) == []


def test_a_site_may_judge_the_power_cap() -> None:
    (finding,) = watched(gpu_throttle, [CAPPED] * 60, sw_power_cap_share_max=0.5)
    assert finding.level is Level.WARN


def test_what_the_sweeps_missed_counts_where_the_driver_counts() -> None:
    assert watched(gpu_throttle, [BUSY] * 60, events={"hw_thermal_slowdown_seconds": 0.4}) == []
    (finding,) = watched(gpu_throttle, [BUSY] * 60, events={"hw_thermal_slowdown_seconds": 200.0})
    assert finding.fault == "is slowed by heat (hardware)"


def test_throttling_that_is_over_leaves_the_window() -> None:
    assert watched(gpu_throttle, [HW_HOT] * 30 + [BUSY] * 200, window_seconds=1800) == []


def test_load_that_cannot_be_read() -> None:
    (finding,) = judged(gpu_throttle, gpu(3, utilization_percent=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(gpu_throttle, gpu(3, utilization_percent=NA, mig_current=True)) == []  # NVML gives none in MIG mode
    (finding,) = judged(gpu_throttle, gpu(3, throttle_reasons=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(gpu_throttle, gpu(3, lost=True, throttle_reasons=NA)) == []
