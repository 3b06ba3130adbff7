"""Adapters reach GPU memory by DMA-BUF or by nvidia_peermem, or it cannot be read whether they do."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.checks import gpu_direct_rdma
from fairlead.model.finding import Level
from tests.checks.drivers import judged, with_software
from tests.checks.nodes import NA


@pytest.mark.parametrize(
    ("have", "params", "level"),
    [
        ({"peermem": True}, {}, None),
        ({"peermem": False}, {}, None),  # open modules, Linux 6.1: DMA-BUF
        ({"peermem": False}, {"peermem": True}, Level.DRAIN),
        ({"peermem": False, "open_module": False}, {}, Level.DRAIN),
        ({"peermem": False, "kernel": (5, 11)}, {}, Level.DRAIN),
        ({"peermem": False, "kernel": (5, 12)}, {}, None),
        ({"peermem": False, "open_module": NA}, {}, Level.UNKNOWN),
        ({"peermem": NA, "open_module": False}, {}, Level.UNKNOWN),
        ({"peermem": True, "open_module": NA, "kernel": NA}, {}, None),
    ],
)
def test_adapters_reach_gpu_memory(have: dict[str, Any], params: dict[str, Any], level: Level | None) -> None:
    found = judged(gpu_direct_rdma, with_software(**have), required=True, **params)
    assert [f.level for f in found] == ([] if level is None else [level])
    assert judged(gpu_direct_rdma, with_software(**have), **params) == []
