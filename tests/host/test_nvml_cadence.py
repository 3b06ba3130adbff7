"""What the NVML worker reads at every sweep, and what when it is asked to look closely (decision 31)."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from fairlead.host import gpu
from fairlead.host.nvml import Worker
from fairlead.model.facts import Gpu, Missing
from tests.lab.faults import Faults


def sweep(worker: Worker, *, closely: bool = False) -> tuple[Gpu, ...]:
    """A sweep, answered."""
    worker.start_sweep(closely=closely)
    while (result := worker.poll()) is None:
        select.select([worker.fileno()], [], [], 0.02)
    found = gpu.gpus(result.raw)
    assert isinstance(found, tuple), found
    return found


@pytest.fixture
def worker(faults: Faults) -> Iterator[Worker]:
    made = Worker(deadline_seconds=20)
    yield made
    made.close()


def test_between_close_looks_what_is_judged_and_who_does_not_answer(worker: Worker, faults: Faults) -> None:
    before = sweep(worker, closely=True)
    faults.set(1, "temperature.gpu_celsius", 77)
    faults.error(2, "nvmlDeviceGetTemperature", 999)
    faults.set(3, "remap.pending", 1)
    faults.set(4, "ecc.volatile_uncorrected", 1)
    faults.set(5, "utilization.gpu_percent", 99)
    faults.lost(6)
    time.sleep(0.01)
    found = sweep(worker)
    assert found[1].temperature_celsius == before[1].temperature_celsius  # of the last close look
    assert isinstance(found[2].temperature_celsius, Missing)
    assert found[3].remap.pending is True  # type: ignore[union-attr]
    assert found[4].ecc.volatile_uncorrected == 1  # type: ignore[union-attr]
    assert found[5].utilization_percent == 99
    assert found[6].lost
    faults.error(2, "nvmlDeviceGetTemperature", 0)
    faults.set(2, "temperature.gpu_celsius", 55)
    time.sleep(0.01)
    assert sweep(worker)[2].temperature_celsius == 55  # it answers again: with what it says now
    assert sweep(worker, closely=True)[1].temperature_celsius == 77
