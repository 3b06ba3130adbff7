"""nvml.json to GPUs: what is unsupported, what is unreadable, and that no content breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.host import gpu
from fairlead.host.pci import normal_address
from fairlead.model.facts import Gpu, Missing, Why, unreadable
from tests.host.test_gather import nvml

H100 = nvml("hgx-h100")


def first(change: Any = None, unsupported: tuple[str, ...] = ()) -> Gpu:
    raw = copy.deepcopy(H100)
    if change is not None:
        change(raw["gpus"][0])
    found = gpu.gpus(raw, unsupported)
    assert isinstance(found, tuple)
    return found[0]


def test_healthy() -> None:
    found = first()
    assert (found.power_draw_watts, found.power_limit_watts) == (70.0, 700.0)
    assert found.ecc.sram_threshold_exceeded is False  # type: ignore[union-attr]
    assert found.remap.histogram == (2560, 0, 0, 0, 0)  # type: ignore[union-attr]
    assert len(found.nvlinks) == 18  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unsupported", "why"),
    [((), Why.UNREADABLE), (("ecc.sram_threshold_exceeded",), Why.UNSUPPORTED), (("ecc",), Why.UNSUPPORTED)],
)
def test_only_the_profile_says_unsupported(unsupported: tuple[str, ...], why: Why) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["sram"] = {"error": 3}

    found = first(change, unsupported)
    assert found.ecc.sram_threshold_exceeded == Missing(why, "NVML NOT_SUPPORTED (3)")  # type: ignore[union-attr]
    assert found.ecc.volatile_corrected == 0  # type: ignore[union-attr]


def test_what_the_profile_excuses_is_still_read_when_it_is_there() -> None:
    assert isinstance(first(None, ("nvlinks",)).nvlinks, tuple)


def test_lost_is_never_excused() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["remap"] = {"error": 15}

    found = first(change, ("remap",))
    assert found.lost
    assert found.remap == Missing(Why.UNREADABLE, "NVML GPU_IS_LOST (15)")


def test_no_nvlinks_on_a_card_without() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["nvlink"] = []

    assert first(change).nvlinks == Missing(Why.UNREADABLE, "NVML NOT_SUPPORTED (3)")
    assert first(change, ("nvlinks",)).nvlinks == Missing(Why.UNSUPPORTED, "NVML NOT_SUPPORTED (3)")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("temperature", {"gpu_celsius": "34"}, "temperature_celsius"),
        ("temperature", 34, "temperature_celsius"),
        ("power", {"draw_milliwatts": None}, "power_draw_watts"),
        ("uuid", "", "uuid"),
        ("processes", [{"used_bytes": 1}], "processes"),
        ("processes", "none", "processes"),
        ("nvlink", {"0": 1}, "nvlinks"),
        ("remap", {"corrected": 0}, "remap"),
        ("pcie", {"error": "x"}, "pcie"),
    ],
)
def test_malformed_is_missing(path: str, value: Any, field: str) -> None:
    found = getattr(first(lambda raw: raw.update({path: value})), field)
    assert isinstance(found, Missing)
    assert found.why is Why.UNREADABLE


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (None, "NVML was not asked"),
        (unreadable("late"), "late"),
        ({"error": 9, "call": "nvmlInit_v2"}, "NVML DRIVER_NOT_LOADED (9) from nvmlInit_v2"),
        ({"gpus": {"error": 999}}, "NVML UNKNOWN (999) from nvmlDeviceGetCount_v2"),
        ({"gpus": "8"}, "nvml: gpus is not a list of tables"),
        ({}, "nvml: gpus is not a list of tables"),
    ],
)
def test_no_gpus_at_all(raw: Any, detail: str) -> None:
    assert gpu.gpus(raw) == unreadable(detail)


def test_converter_makes_nothing_anew_but_sees_every_change() -> None:
    converter = gpu.Converter()
    before = converter.gpus(copy.deepcopy(H100))
    raw = copy.deepcopy(H100)
    raw["gpus"][2]["nvlink"][5]["active"] = 0
    raw["gpus"][3]["sram"]["threshold_exceeded"] = 1
    after = converter.gpus(raw)
    assert isinstance(before, tuple)
    assert isinstance(after, tuple)
    assert after[0].nvlinks is before[0].nvlinks
    assert after[2].nvlinks[5].active is False  # type: ignore[index]
    assert after[3].ecc.sram_threshold_exceeded is True  # type: ignore[union-attr]
    assert after == gpu.gpus(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "current", "pid", "active"]), inner),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(H100["gpus"][0])), json_values)
def test_any_json_in_any_place(key: str, value: Any) -> None:
    found = gpu.gpus({"gpus": [{**H100["gpus"][0], key: value}]})
    assert isinstance(found, tuple)
    assert len(found) == 1


@given(json_values)
def test_any_json_as_a_whole(value: Any) -> None:
    gpu.gpus({"gpus": value})
    gpu.driver({"driver_version": value}, "1")


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("0000:1b:00.0", "0000:1b:00.0"), ("1b:00.0", "0000:1b:00.0"),
     ("00010000:E1:00.0", "10000:e1:00.0"), ("0000:1b:00", "0000:1b:00.0")],
)  # fmt: skip
def test_address(text: str, address: str) -> None:
    assert normal_address(text) == address


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        assert normal_address(normal_address(text)) == normal_address(text)
    except ValueError:
        pass
