"""GPUs that have not joined their NVLink fabric, or whose fabric is not well."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import gpu_fabric
from fairlead.model.facts import Gpu
from fairlead.model.finding import Level
from fairlead.model.gpu_load import NOT_READ, GpuFabric
from tests.checks.loaded import judged
from tests.checks.nodes import LOAD, NA, UNSUPPORTED, gpu


def joined(**changes: Any) -> Gpu:
    fabric = GpuFabric(**{"state": 3, "status": 0, "clique": 0, "cluster": "0" * 32, "health": 0, **changes})
    return gpu(3, load=replace(LOAD, fabric=fabric))


def health(**parts: int) -> int:
    """A mask in which everything else is well."""
    shifts = {"bandwidth": 0, "recovery": 2, "unhealthy": 4, "timeout": 6, "configuration": 8, "partition": 12, "manager": 14}
    well = {"bandwidth": 2, "recovery": 2, "unhealthy": 2, "timeout": 2, "configuration": 1, "partition": 1, "manager": 1}
    return sum({**well, **parts}[name] << shift for name, shift in shifts.items())


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (joined(), []),
        (joined(health=health()), []),
        (joined(health=NOT_READ), []),  # a driver without health
        (joined(state=1), [Level.DRAIN]),
        (joined(state=2), [Level.DRAIN]),
        (joined(state=0), [Level.DRAIN]),
        (joined(status=999), [Level.DRAIN]),
        (joined(health=health(bandwidth=1)), [Level.DRAIN]),
        (joined(health=health(recovery=1)), [Level.WARN]),
        (joined(health=health(unhealthy=1)), [Level.DRAIN]),
        (joined(health=health(timeout=1)), [Level.WARN]),
        (joined(health=health(configuration=5)), [Level.DRAIN]),
        (joined(health=health(configuration=14)), [Level.DRAIN]),
        (joined(health=health(partition=2)), [Level.DRAIN]),
        (joined(health=health(manager=2)), [Level.WARN]),
        (joined(clique=7), [Level.DRAIN]),
        (joined(cluster="f" * 32), [Level.DRAIN]),
        (gpu(3, load=replace(LOAD, fabric=NA)), [Level.UNKNOWN]),
        (gpu(3, load=replace(LOAD, fabric=UNSUPPORTED)), []),
    ],
)
def test_fabric(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_fabric, changed, required=True)
    assert [(f.device, f.level) for f in found] == [(changed.pci, level) for level in levels]


def test_gpus_without_a_fabric() -> None:
    """An HGX A100 or an L40S: no fabric is expected, and none is missed. One that is still joining is not well anywhere."""
    none = [gpu(i, load=replace(LOAD, fabric=NA)) for i in range(8)]
    assert judged(gpu_fabric, *none) == []
    unknown = [gpu(i, load=replace(LOAD, fabric=GpuFabric(state=0, status=0, clique=0, cluster="0" * 32))) for i in range(8)]
    assert judged(gpu_fabric, *unknown) == []
    assert [f.level for f in judged(gpu_fabric, joined(state=2))] == [Level.DRAIN]
