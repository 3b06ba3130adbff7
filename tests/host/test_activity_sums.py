"""The sums over readings, for answers that no simulated driver gives: other processes' sums, and malformed ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host.activity_sums import ActivitySums
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_activity import GpuActivity
from tests.lab.machines import read_nvml
from tests.lab.trees import MACHINES

SECOND = 1_000_000_000
NVML = read_nvml(MACHINES / "hgx-h100")


def gpus() -> tuple[Gpu, ...]:
    found = gather(Root(str(MACHINES / "hgx-h100")), NVML).gpus
    assert isinstance(found, tuple)
    return found[:1]


GPUS = gpus()


def add(sums: ActivitySums, now: float, part: Any, **others: Any) -> GpuActivity:
    (found,) = sums.add(GPUS, {"gpus": [{**NVML["gpus"][0], **others, "activity": part}]}, now)
    assert isinstance(found.activity, GpuActivity)
    return found.activity


def part(began: float, until: float, measured: float, busy: float) -> dict[str, int]:
    seconds = {"began": began, "until": until, "measured": measured, "busy": busy, "spot": 0}
    return {f"{name}_nanoseconds": round(value * SECOND) for name, value in seconds.items()}


def said(found: GpuActivity) -> tuple[object, ...]:
    return found.measured_seconds, found.gap_seconds, found.busy_seconds


def test_what_a_new_worker_sends_is_added_and_the_time_between_is_a_gap() -> None:
    sums = ActivitySums()
    add(sums, 100, part(100, 100, 0, 0))
    assert said(add(sums, 114, part(100, 114, 14, 7))) == (14, 0, 7)
    assert said(add(sums, 128, part(100, 128, 18, 8))) == (18, 10, 8), "ten seconds of samples were lost"
    assert said(add(sums, 150, part(140, 150, 10, 10))) == (28, 22, 18)


def test_the_time_without_an_answer_is_a_gap_as_it_passes_and_is_not_counted_again() -> None:
    sums = ActivitySums()
    add(sums, 100, part(100, 110, 10, 10))
    assert said(add(sums, 115, {"error": 15})) == (10, 5, 10)
    assert said(add(sums, 120, {"error": 15})) == (10, 10, 10)
    assert said(add(sums, 130, part(100, 130, 19, 11))) == (19, 11, 11)


def test_a_counter_that_went_back_adds_nothing_and_a_missing_one_loses_nothing() -> None:
    sums = ActivitySums()
    joules = []
    for now, counter in ((100, 5000), (101, 7000), (102, {"error": 999}), (103, 9000), (104, 1000), (105, 1500)):
        found = add(sums, now, part(100, now, now - 100, 0), power={"energy_millijoules": counter})
        joules.append(found.energy_joules)
    assert joules == pytest.approx([0, 2, 2, 4, 4, 4.5])
    assert found.energy_gap_seconds == 1 and found.energy_counter_joules == 1.5


def test_bytes_that_cannot_be_read_any_more_are_missing_and_do_not_stand_still() -> None:
    sums = ActivitySums()
    found = [
        add(
            sums, now, part(100, now, now - 100, 0) if answers else {"error": 15}, pcie={"transmit_bytes": counter}
        ).pcie_transmit_bytes
        for now, counter, answers in (
            (100, 50, True),
            (101, 70, True),
            (102, {"error": 3}, True),
            (103, 90, True),
            (104, {"error": 15}, False),
        )
    ]
    assert found[:2] == [0, 20] and isinstance(found[2], Missing)
    assert found[3:] == [40, 40], "without any answer of the GPU, the whole time is a gap"


def test_a_value_that_was_never_there_is_missing() -> None:
    found = add(ActivitySums(), 100, {"error": 3}, power={"error": 3}, pcie={"error": 3})
    values = (found.busy_seconds, found.sm_active_seconds, found.energy_joules, found.energy_counter_joules)
    assert all(isinstance(v, Missing) and "NOT_SUPPORTED" in v.detail for v in (*values, found.pcie_transmit_bytes))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [f"{n}_nanoseconds" for n in ("began", "until", "measured", "busy", "spot", "gpm_began", "gpm", "sm_active")]


@given(st.lists(JSON | st.dictionaries(st.sampled_from([*NAMES, "nvlink_transmit_bytes"]), JSON), max_size=6))
def test_no_part_makes_a_sum_fall_or_raises(parts: list[Any]) -> None:
    sums = ActivitySums()
    known: dict[str, float] = {}
    for now, each in enumerate(parts, 100):
        found = add(sums, now, each)
        for name in GpuActivity.__struct_fields__:
            if not isinstance(new := getattr(found, name), Missing):
                assert new >= known.get(name, 0)
                known[name] = new
