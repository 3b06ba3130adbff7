"""The calls that the NVML worker makes for each GPU, prepared once: what is called and where the answer goes in nvml.json.

Structures are allocated once and used again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fairlead.host.nvml_fields import Place
from fairlead.host.nvml_links import NOT_SUPPORTED, Json


class Call:
    """One prepared call: its name, the function with its arguments, and what to do with the answer."""

    __slots__ = ("args", "fn", "key", "merge", "name", "not_before", "part", "store")

    def __init__(self, lib: Any, name: str, place: Place, args: tuple[Any, ...], store: Callable[[], Any]) -> None:
        part, key = place
        self.name = name.encode()
        self.fn = getattr(lib, name, None)
        self.part = part
        self.key = key
        self.args = args
        self.store = store
        self.not_before = 0.0
        self.merge = part == "remap"  # two calls make this part


def fast_calls(lib: Any, structs: Any) -> list[Call]:
    """Made at every sweep."""
    s = structs
    memory = s.c_nvmlMemory_v2_t(version=0x02000028)
    sram = s.c_nvmlEccSramErrorStatus_v1_t()
    utilization = s.c_nvmlUtilization_t()
    histogram = s.c_nvmlRowRemapperHistogramValues()
    remap = [ctypes.c_uint() for _ in range(4)]
    return [
        _struct(lib, "nvmlDeviceGetMemoryInfo_v2", "memory", memory, total_bytes="total", reserved_bytes="reserved",
                     used_bytes="used"),
        _uint(lib, "nvmlDeviceGetPersistenceMode", "persistence_mode", None),
        _pair(lib, "nvmlDeviceGetMigMode", "mig_mode"),
        _pair(lib, "nvmlDeviceGetEccMode", "ecc_mode"),
        _struct(lib, "nvmlDeviceGetSramEccErrorStatus", "sram", sram, volatile_corrected="volatileCor",
                     volatile_uncorrected_parity="volatileUncParity", volatile_uncorrected_secded="volatileUncSecDed",
                     aggregate_corrected="aggregateCor", aggregate_uncorrected_parity="aggregateUncParity",
                     aggregate_uncorrected_secded="aggregateUncSecDed", threshold_exceeded="bThresholdExceeded"),
        Call(lib, "nvmlDeviceGetRemappedRows", ("remap", None), tuple(map(ctypes.byref, remap)),
             lambda: dict(zip(("corrected", "uncorrected", "pending", "failed"), (v.value for v in remap), strict=True))),
        Call(lib, "nvmlDeviceGetRowRemapperHistogram", ("remap", "histogram"), (ctypes.byref(histogram),),
             lambda: [histogram.max, histogram.high, histogram.partial, histogram.low, histogram.none]),
        _uint(lib, "nvmlDeviceGetCurrPcieLinkGeneration", "pcie", "gen_current"),
        _uint(lib, "nvmlDeviceGetCurrPcieLinkWidth", "pcie", "width_current"),
        _uint(lib, "nvmlDeviceGetTemperature", "temperature", "gpu_celsius", before=(ctypes.c_uint(0),)),
        _uint(lib, "nvmlDeviceGetPowerUsage", "power", "draw_milliwatts"),
        _uint(lib, "nvmlDeviceGetPowerManagementLimit", "power", "limit_milliwatts"),
        _uint(lib, "nvmlDeviceGetClockInfo", "clocks", "sm_hertz", before=(ctypes.c_uint(1),), scale=1_000_000),
        _uint(lib, "nvmlDeviceGetClockInfo", "clocks", "memory_hertz", before=(ctypes.c_uint(2),), scale=1_000_000),
        _reasons(lib),
        _struct(lib, "nvmlDeviceGetUtilizationRates", "utilization", utilization, gpu_percent="gpu", memory_percent="memory"),
        _uint(lib, "nvmlDeviceGetPerformanceState", "performance_state", None),
    ]  # fmt: skip


def slow_calls(lib: Any, structs: Any) -> list[Call]:
    """Made once a minute."""
    bar1 = structs.c_nvmlBAR1Memory_t()
    nodes = (ctypes.c_ulonglong * 4)()
    cpus = (ctypes.c_ulonglong * 64)()
    low, high = ctypes.c_uint(), ctypes.c_uint()
    one = ctypes.c_uint
    return [
        _struct(lib, "nvmlDeviceGetBAR1MemoryInfo", "bar1", bar1, total_bytes="bar1Total", used_bytes="bar1Used"),
        _uint(lib, "nvmlDeviceGetComputeMode", "compute_mode", None),
        _uint(lib, "nvmlDeviceGetAccountingMode", "accounting_mode", None),
        _uint(lib, "nvmlDeviceGetMaxPcieLinkGeneration", "pcie", "gen_max"),
        _uint(lib, "nvmlDeviceGetMaxPcieLinkWidth", "pcie", "width_max"),
        _uint(lib, "nvmlDeviceGetTemperatureThreshold", "temperature", "slowdown_celsius", before=(one(1),)),
        _uint(lib, "nvmlDeviceGetTemperatureThreshold", "temperature", "shutdown_celsius", before=(one(0),)),
        _uint(lib, "nvmlDeviceGetPowerManagementDefaultLimit", "power", "default_limit_milliwatts"),
        Call(lib, "nvmlDeviceGetPowerManagementLimitConstraints", ("power", "minimum_limit_milliwatts"),
             (ctypes.byref(low), ctypes.byref(high)), lambda: low.value),
        Call(lib, "nvmlDeviceGetPowerManagementLimitConstraints", ("power", "maximum_limit_milliwatts"),
             (ctypes.byref(low), ctypes.byref(high)), lambda: high.value),
        _uint(lib, "nvmlDeviceGetMaxClockInfo", "clocks", "sm_max_hertz", before=(one(1),), scale=1_000_000),
        _uint(lib, "nvmlDeviceGetMaxClockInfo", "clocks", "memory_max_hertz", before=(one(2),), scale=1_000_000),
        *_application_clocks(lib, "Default", "default_"),
        Call(lib, "nvmlDeviceGetCpuAffinity", ("cpu_affinity", None), (one(64), cpus), lambda: cpu_list(cpus)),
        Call(lib, "nvmlDeviceGetMemoryAffinity", ("numa", None), (one(4), nodes, one(0)), lambda: lowest_bit(nodes)),
    ]  # fmt: skip


def close_calls(lib: Any) -> list[Call]:
    """Made for each thorough look: what a check confirms over several of them must be read anew for each."""
    return _application_clocks(lib, "", "")


def rare_calls(lib: Any) -> list[Call]:
    """Made once an hour: what reads flash. nvmlDeviceValidateInforom gives nothing but its return code."""
    return [Call(lib, "nvmlDeviceValidateInforom", ("inforom_valid", None), (), lambda: 1)]


def _application_clocks(lib: Any, which: str, prefix: str) -> list[Call]:
    name, part = f"nvmlDeviceGet{which}ApplicationsClock", "application_clocks"
    return [
        _uint(lib, name, part, f"{prefix}{key}_hertz", before=(ctypes.c_uint(kind),), scale=1_000_000)
        for key, kind in (("sm", 0), ("memory", 2))
    ]


def _uint(lib: Any, name: str, part: str, key: str | None, *, before: tuple[Any, ...] = (), scale: int = 1) -> Call:
    value = ctypes.c_uint()
    return Call(lib, name, (part, key), (*before, ctypes.byref(value)), lambda: value.value * scale)


def _pair(lib: Any, name: str, part: str) -> Call:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    where = (ctypes.byref(current), ctypes.byref(pending))
    return Call(lib, name, (part, None), where, lambda: {"current": current.value, "pending": pending.value})


def _struct(lib: Any, name: str, part: str, value: Any, **keys: str) -> Call:
    view = memoryview(value).cast("B")
    said = b""
    answer: Json = {}

    def store() -> Json:
        nonlocal said, answer
        if (now := view.tobytes()) != said:
            said, answer = now, {k: getattr(value, f) for k, f in keys.items()}
        return answer

    return Call(lib, name, (part, None), (ctypes.byref(value),), store)


def _reasons(lib: Any) -> Call:
    """Renamed in r535; r470 has only the old name."""
    mask = ctypes.c_ulonglong()
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    if not hasattr(lib, name):
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
    return Call(lib, name, ("throttle_reasons", None), (ctypes.byref(mask),), lambda: mask.value)


def lowest_bit(words: Any) -> int | Json:
    """The lowest number in a set of 64 bit words."""
    for i, word in enumerate(words):
        if word:
            return int(64 * i + (word & -word).bit_length() - 1)
    return {"error": NOT_SUPPORTED}


def cpu_list(words: Any) -> str:
    """A CPU set of 64 bit words as "0-55"."""
    mask = 0
    for i, word in enumerate(words):
        mask |= word << (64 * i)
    parts: list[str] = []
    cpu = 0
    while mask >> cpu:
        if not mask >> cpu & 1:
            cpu += 1
            continue
        last = cpu
        while mask >> (last + 1) & 1:
            last += 1
        parts.append(str(cpu) if last == cpu else f"{cpu}-{last}")
        cpu = last + 1
    return ",".join(parts)
