"""Clocks that stay low under load without a reason, and application clocks that somebody left low."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import gpu_clocks
from fairlead.model.finding import Action, Level
from tests.checks.hosts import judged as judged_node
from tests.checks.loaded import BUSY, CAPPED, IDLE, LOW, judged, watched
from tests.checks.nodes import ADDRESSES, LOAD, NA, STATE, UNSUPPORTED, gpu, node


@pytest.mark.parametrize(
    ("states", "fires"),
    [
        ([LOW] * 60, True),
        ([BUSY] * 10 + [LOW] * 60, True),
        ([IDLE] * 60, False),  # low clocks save power
        ([CAPPED] * 60, False),
        ([{**LOW, "throttle_reasons": 0x2}] * 60, False),  # somebody set that clock
        ([BUSY] * 60, False),
        ([BUSY] * 50 + [LOW] * 5, False),
        ([LOW] * 5, False),
        ([{**LOW, "utilization_percent": 20}] * 60, False),
    ],
)
def test_clocks_that_stay_low(states: list[dict[str, Any]], fires: bool) -> None:
    found = watched(gpu_clocks, states)
    assert [(f.level, f.action) for f in found] == [(Level.DRAIN, Action.RESET_GPU)] * fires


def test_a_site_that_locks_its_clocks() -> None:
    locked = [{**BUSY, "clock_sm_hertz": 990_000_000}] * 60
    assert [f.level for f in watched(gpu_clocks, locked)] == [Level.DRAIN]
    assert watched(gpu_clocks, locked, full_hertz=990_000_000) == []


def test_clocks_that_cannot_be_read() -> None:
    assert [f.level for f in judged(gpu_clocks, gpu(3, clock_sm_hertz=NA))] == [Level.UNKNOWN]
    unknown_max = gpu(3, load=replace(LOAD, clock_sm_max_hertz=NA))
    assert [f.level for f in judged(gpu_clocks, unknown_max)] == [Level.UNKNOWN]
    assert judged(gpu_clocks, unknown_max, full_hertz=990_000_000) == []


HERE = ADDRESSES[5]


def test_application_clocks_that_were_left_low() -> None:
    low = gpu(5, state=replace(STATE, application_sm_hertz=345_000_000))
    (found,) = judged_node("gpu_clocks", node(low))
    assert (found.level, found.device, found.action) == (Level.DRAIN, HERE, Action.PROVISION)
    assert judged_node("gpu_clocks", node(low), judge_application=False) == []
    # a board whose own is below its highest, and a driver that has none
    usual = replace(STATE, application_sm_hertz=765_000_000, application_default_sm_hertz=765_000_000)
    assert judged_node("gpu_clocks", node(gpu(5, state=usual))) == []
    assert judged_node("gpu_clocks", node(gpu(5, state=replace(STATE, application_sm_hertz=UNSUPPORTED)))) == []


def test_load_that_cannot_be_read() -> None:
    (finding,) = judged(gpu_clocks, gpu(3, utilization_percent=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(gpu_clocks, gpu(3, utilization_percent=NA, mig_current=True)) == []  # NVML gives none in MIG mode
    (finding,) = judged(gpu_clocks, gpu(3, throttle_reasons=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(gpu_clocks, gpu(3, lost=True, throttle_reasons=NA)) == []
