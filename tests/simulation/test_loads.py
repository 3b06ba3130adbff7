"""What a simulated GPU did can be read in each way that NVML offers, and outside clients, samples, GPM and counters agree."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import pynvml as n
import pytest

from tests.simulation.conftest import Machine
from tests.simulation.test_clients import run

WAIT = 0.6


def metric(handle: object, ids: list[int], seconds: float = WAIT, gi: int | None = None) -> list[tuple[int, float]]:
    """Return code and value of GPM metrics over some time, by nvidia-ml-py's own functions."""
    pair = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
    for sample in pair:
        if gi is None:
            n.nvmlGpmSampleGet(handle, sample)
        else:
            n.nvmlGpmMigSampleGet(handle, gi, sample)
        time.sleep(seconds if sample is pair[0] else 0)
    asked = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(ids))
    asked.sample1, asked.sample2 = pair
    for at, number in enumerate(ids):
        asked.metrics[at].metricId = number
    n.nvmlGpmMetricsGet(asked)
    for sample in pair:
        n.nvmlGpmSampleFree(sample)
    return [(asked.metrics[at].nvmlReturn, asked.metrics[at].value) for at in range(len(ids))]


def samples(handle: object, since: int = 0) -> list[tuple[int, int]]:
    return [(s.timeStamp, s.sampleValue.uiVal) for s in n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, since)[1]]


def field(handle: object, number: int, scope: int = 0) -> int:
    (value,) = n.nvmlDeviceGetFieldValues(handle, [(number, scope)])
    if value.nvmlReturn:
        raise n.NVMLError(value.nvmlReturn)
    return value.value.ullVal


def timed(read: Callable[[], float]) -> tuple[float, float, float]:
    """A value, and two times between which it was read: a busy machine may stop this process anywhere."""
    before = time.time()
    return read(), before, time.time()


def test_samples_gpm_and_counters_tell_of_the_same_load(machine: Machine, gpus: list) -> None:
    machine.faults.work(0, "busy")
    machine.faults.work(1, "fake")
    time.sleep(WAIT)
    for handle, sm, tensor, dram in ((gpus[0], 80, 40, 50), (gpus[1], 1, 0, 0), (gpus[2], 0, 0, 0)):
        assert [round(v) for _, v in metric(handle, [2, 5, 10])] == [sm, tensor, dram]
    assert samples(gpus[0])[-1][1] == samples(gpus[1])[-1][1] == 100
    assert samples(gpus[2])[-1][1] == samples(gpus[0])[0][1] == 0, "the buffer begins before the load"
    links = (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF)
    rates = {(83, 0): 600_000, (197, 0): 1e9, (198, 0): 1e9, links: 1e11 / 1024}
    first = {which: timed(lambda which=which: field(gpus[0], *which)) for which in rates}  # type: ignore[misc]
    first[83, 0] = timed(lambda: n.nvmlDeviceGetTotalEnergyConsumption(gpus[0]))
    time.sleep(WAIT)
    for which, rate in rates.items():
        (before, began, begun), (after, ends, ended) = first[which], timed(lambda which=which: field(gpus[0], *which))  # type: ignore[misc]
        assert 0.99 * rate * (ends - begun) <= after - before <= 1.01 * rate * (ended - began), which
    assert n.nvmlDeviceGetPowerUsage(gpus[0]) == 600_000
    with pytest.raises(n.NVMLError_NotSupported):
        field(gpus[0], n.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0)


def test_a_load_on_and_off_is_seen_in_its_samples_and_its_mean(machine: Machine, gpus: list) -> None:
    machine.faults.work(3, "busy", 200, 400)
    since = time.time_ns() // 1000
    time.sleep(1.7)
    # of any time that is longer than 0.8 s at most 0.1 s more, or less, than a half
    assert metric(gpus[3], [2], 0.8)[0][1] == pytest.approx(40, abs=10.1), "half of 80 %"
    values = [value for at, value in samples(gpus[3]) if at > since + 200_000]
    assert min(values) < 20 and max(values) == 100 and sum(values) / len(values) == pytest.approx(50, abs=15)


def test_samples_are_read_once_from_the_last_one_seen(gpus: list) -> None:
    first = samples(gpus[0])
    assert len(first) == 120 and first == sorted(first)
    newer = samples(gpus[0], first[-4][0])
    assert newer[:3] == first[-3:]
    with pytest.raises(n.NVMLError_NotFound):
        samples(gpus[0], newer[-1][0] + 10**9)


def test_a_reload_sets_counters_back_and_empties_the_buffer(machine: Machine, gpus: list) -> None:
    machine.faults.set(0, "power.energy_millijoules", 5_000_000)
    machine.faults.work(0, "busy")
    time.sleep(0.2)
    assert field(gpus[0], 83) > 5_000_000
    began = time.time()
    machine.faults.reload(0)
    time.sleep(0.4)
    energy, taken = field(gpus[0], 83), len(samples(gpus[0]))
    passed = time.time() - began
    assert 0 < energy <= 600_000 * passed + 1 and taken <= passed * 6 + 1


@pytest.mark.parametrize(("tree", "supported"), [("hgx-h100", 1), ("hgx-a100", 0), ("l40s-pcie", 0)])
def test_gpm_is_there_from_hopper_on(tree: str, supported: int, machine_of, load) -> None:
    load(machine_of(tree))
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice == supported
    if not supported:
        with pytest.raises(n.NVMLError_NotSupported):
            metric(handle, [2])


def test_an_instance_has_its_own_gpm_values_and_none_without_a_compute_instance(machine: Machine, gpus: list) -> None:
    n.nvmlDeviceSetMigMode(gpus[0], 1)
    for profile, slices in ((9, 2), (19, 0)):
        instance = n.nvmlDeviceCreateGpuInstance(gpus[0], profile)
        if profile == 9:
            n.nvmlGpuInstanceCreateComputeInstance(instance, slices)
    machine.faults.work(0, "busy", 0, 0, 1)
    time.sleep(0.05)
    (code, value), (_, tensor) = metric(gpus[0], [2, 5], 0.2, gi=1)
    assert (code, round(value), round(tensor)) == (0, 80, 40)
    assert math.isnan(metric(gpus[0], [2], 0.2, gi=11)[0][1])
    with pytest.raises(n.NVMLError_NotSupported):
        samples(gpus[0])
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetUtilizationRates(gpus[0])


def test_gpustat_and_nvitop_see_the_load(machine: Machine) -> None:
    machine.faults.work(2, "busy")
    time.sleep(WAIT)
    shown = json.loads(run(machine, "gpustat", "--json"))["gpus"]
    assert [g["utilization.gpu"] for g in shown] == [0, 0, 100, 0, 0, 0, 0, 0]
    assert shown[2]["power.draw"] == 600
    assert run(machine, "nvitop", "-1", "--no-unicode").count("100%") >= 1
