"""Read what later releases need of NVML: GPM, the sample buffer and the energy counter. A process of its own.

python -m tests.gpu.counters PCI SECONDS  ->  one JSON object: "gpm", "samples", "energy". An answer that is an error is
{"error": CODE}, and {"error": 3} means that this GPU or driver does not support the call.

GPM gives percentages and rates between two samples (nvml.h, "GPM"). nvmlDeviceGetSamples gives the driver's own buffer of samples
with times in microseconds. The energy counter is read as often as possible, to see how often the driver updates it, and compared
with the power readings over the same time.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pynvml as n

from tests.gpu.calls import median

#: nvmlGpmMetricId_t: what job reports will use.
GPM = {
    1: "graphics_percent", 2: "sm_percent", 3: "sm_occupancy_percent", 5: "tensor_percent", 7: "hmma_tensor_percent",
    10: "dram_percent", 12: "fp32_percent", 13: "fp16_percent", 20: "pcie_transmit_mebibytes_per_second",
    21: "pcie_receive_mebibytes_per_second", 60: "nvlink_receive_mebibytes_per_second",
    61: "nvlink_transmit_mebibytes_per_second",
}  # fmt: skip
#: nvmlSamplingType_t
SAMPLES = {0: "power", 1: "gpu_percent", 2: "memory_percent", 5: "sm_clock", 6: "memory_clock", 7: "module_power"}
VALUE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # nvmlValueType_t
PAUSE_SECONDS = 0.005


def answer(read: Callable[[], Any]) -> Any:
    """Return what a call answers: a value, or the error as nvml.json writes it."""
    try:
        return read()
    except n.NVMLError as e:
        return {"error": int(e.value)}


def gpm(handle: Any, seconds: float) -> dict[str, Any]:
    """Return each GPM metric over ``seconds``, and the milliseconds of the two kinds of calls."""
    if not n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        return {"error": n.NVML_ERROR_NOT_SUPPORTED}
    samples = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
    try:
        n.nvmlGpmSampleGet(handle, samples[0])
        time.sleep(seconds)
        before = time.perf_counter()
        n.nvmlGpmSampleGet(handle, samples[1])
        between = time.perf_counter()
        asked = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(GPM))
        asked.sample1, asked.sample2 = samples
        for position, metric in enumerate(GPM):
            asked.metrics[position].metricId = metric
        n.nvmlGpmMetricsGet(asked)
        after = time.perf_counter()
        found = {name: _metric(asked.metrics[position]) for position, name in enumerate(GPM.values())}
        return {"metrics": found, "sample_milliseconds": 1000 * (between - before), "get_milliseconds": 1000 * (after - between)}
    finally:
        for sample in samples:
            n.nvmlGpmSampleFree(sample)


def _metric(metric: Any) -> Any:
    if metric.nvmlReturn:
        return {"error": metric.nvmlReturn}
    return round(metric.value, 3) if math.isfinite(metric.value) else str(metric.value)


def samples(handle: Any, kind: int) -> dict[str, Any]:
    """Return what the driver's buffer has of one kind: how many samples, how far apart, over what time, and their values."""
    before = time.perf_counter()
    value_type, found = n.nvmlDeviceGetSamples(handle, kind, 0)
    took = 1000 * (time.perf_counter() - before)
    times = sorted(sample.timeStamp for sample in found if sample.timeStamp)
    values = [getattr(sample.sampleValue, VALUE[value_type]) for sample in found if sample.timeStamp]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return {
        "entries": len(found),
        "filled": len(times),
        "span_seconds": (times[-1] - times[0]) / 1e6 if times else 0.0,
        "median_gap_milliseconds": median(gaps) / 1e3 if gaps else 0.0,
        "age_seconds": time.time() - times[-1] / 1e6 if times else 0.0,
        "least": min(values, default=0),
        "most": max(values, default=0),
        "milliseconds": took,
    }


def energy(handle: Any, seconds: float) -> dict[str, Any]:
    """Return how often the energy counter changes, and its joules beside those of the power readings."""
    start = time.monotonic()
    first = last = n.nvmlDeviceGetTotalEnergyConsumption(handle)
    changes: list[float] = []
    watts: list[float] = []
    while time.monotonic() < start + seconds:
        time.sleep(PAUSE_SECONDS)
        watts.append(n.nvmlDeviceGetPowerUsage(handle) / 1000)
        if (now := n.nvmlDeviceGetTotalEnergyConsumption(handle)) != last:
            last = now
            changes.append(time.monotonic())
    gaps = [later - earlier for earlier, later in pairwise(changes)]
    spent = time.monotonic() - start
    return {
        "changes": len(changes),
        "median_gap_milliseconds": 1000 * median(gaps) if gaps else 0.0,
        "counter_joules": (last - first) / 1000,
        "power_joules": spent * sum(watts) / len(watts) if watts else 0.0,
        "least_watts": min(watts, default=0.0),
        "most_watts": max(watts, default=0.0),
        "readings": len(watts),
    }


def main(pci: str, seconds: float) -> None:
    """Print the object."""
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByPciBusId(pci.encode())
    found = {
        "gpm": answer(partial(gpm, handle, seconds)),
        "energy": answer(partial(energy, handle, seconds)),
        "samples": {name: answer(partial(samples, handle, kind)) for kind, name in SAMPLES.items()},
    }
    n.nvmlShutdown()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
