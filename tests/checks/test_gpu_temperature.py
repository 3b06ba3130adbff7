"""How far a GPU is from its slowdown; its memory against the limit that is declared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import gpu_temperature
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu
from fairlead.model.finding import Level
from tests.checks.loaded import judged
from tests.checks.nodes import LOAD, NA, UNSUPPORTED, gpu


def heat(**changes: Any) -> Gpu:
    celsius = changes.pop("celsius", 34)
    return gpu(3, temperature_celsius=celsius, load=replace(LOAD, **changes))


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (heat(margin_celsius=20), []),
        (heat(margin_celsius=5), [Level.WARN]),
        (heat(margin_celsius=0), [Level.DRAIN]),
        (heat(margin_celsius=-3), [Level.DRAIN]),
        (heat(margin_celsius=NA, celsius=60), []),  # an older driver: by its threshold
        (heat(margin_celsius=NA, celsius=86), [Level.WARN]),
        (heat(margin_celsius=NA, celsius=90), [Level.DRAIN]),
        (heat(margin_celsius=20, slowdown_celsius=NA), []),
        (heat(margin_celsius=NA, slowdown_celsius=NA), [Level.UNKNOWN]),
        (heat(margin_celsius=UNSUPPORTED, slowdown_celsius=UNSUPPORTED), []),
        (heat(margin_celsius=NA, celsius=NA), [Level.UNKNOWN]),
        (heat(memory_celsius=96), []),  # this driver says no limit
        (heat(memory_celsius=94, memory_max_celsius=95), []),
        (heat(memory_celsius=95, memory_max_celsius=95), [Level.DRAIN]),
        (heat(memory_celsius=NA), []),
    ],
)
def test_temperature(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_temperature, changed)
    assert [f.level for f in found] == levels
    assert all(f.device == changed.pci for f in found)


def test_a_declared_limit_of_memory() -> None:
    assert [f.level for f in judged(gpu_temperature, heat(memory_celsius=96), memory_max_celsius=95)] == [Level.DRAIN]
    assert judged(gpu_temperature, heat(memory_celsius=96, memory_max_celsius=95), memory_max_celsius=105) == []


def test_a_memory_temperature_that_went_away() -> None:
    past = Past(available=True, readable=frozenset({f"{gpu(3).pci}/load.memory_celsius"}))
    assert [f.level for f in judged(gpu_temperature, heat(memory_celsius=NA), past=past)] == [Level.UNKNOWN]
