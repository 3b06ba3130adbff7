"""Prepares the NVML calls that the worker repeats for each GPU: which function it calls, and which part of nvml.json gets the
answer.

The answers of calls that are made together are in one block of memory, called the room. Most answers do not change from
one second to the next. One comparison of the whole room with its last copy shows whether any answer has changed. Every sweep
makes the calls whose values are judged in every sweep, and the calls that show whether a GPU answers at all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead.host.nvml_fields import ValuePath
from fairlead.host.nvml_links import FATAL, FUNCTION_NOT_FOUND, NOT_SUPPORTED, Beat, Json, entry

PROBE_AGAIN_SECONDS = 600.0
_FORGET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_ROOM_BYTES = 2048
_NEW = -1  # NVML has no such code


class Call:
    """Holds one prepared call: its name, the function with its arguments, and what to do with the answer."""

    __slots__ = ("args", "code", "fn", "key", "merge", "name", "not_before", "part", "span", "store")

    def __init__(  # noqa: PLR0917
        self, fn: Any, name: str, where: ValuePath, args: tuple[Any, ...], store: Callable[[], Any], span: slice
    ) -> None:
        self.fn = fn
        self.name = name.encode()
        self.part, self.key = where
        self.args = args
        self.store = store
        self.span = span  # the position of the answer in the room
        self.not_before = 0.0
        self.code = _NEW  # the code of the last answer
        self.merge = self.part == "remap"  # two calls contribute to this part


class Calls:
    """Holds the calls of one GPU that are made together, and the room (memory) for their answers."""

    def __init__(self, lib: Any, pci: bytes, beat: Beat) -> None:
        self.all: list[Call] = []
        self._lib = lib
        self._pci = pci
        self._beat = beat
        self._room = bytearray(_ROOM_BYTES)
        self._used = self._taken = 0
        self._said = b""  # a copy of the room as it was when values were last reported

    def forget(self) -> None:
        """Make all calls again and report all answers again."""
        self._said = b""
        for call in self.all:
            call.not_before, call.code = 0.0, _NEW

    def run(self, handle: Any, now: float, values: Json, news: Json, *, report_values: bool = True) -> int:
        """Make the calls, and put those parts of ``values`` that have changed into ``news``. Return 0, or a return code
        in ``FATAL``, after which further calls for this GPU are useless.

        A call that returns NOT_SUPPORTED or FUNCTION_NOT_FOUND twice is not made again for ``PROBE_AGAIN_SECONDS``. If
        ``report_values`` is False, changed return codes are reported now, and changed values in a later run.
        """
        parts: set[str] = set()
        beat, pci = self._beat, self._pci
        for call in self.all:
            if call.not_before > now:
                continue
            beat(call.name, pci)
            code = call.fn(handle, *call.args)
            if code or call.code:
                if code in FATAL:
                    return int(code)
                if code in _FORGET and code == call.code:
                    call.not_before = now + PROBE_AGAIN_SECONDS
                if code != call.code:
                    call.code = code
                    parts.add(call.part)
        if report_values and self._room != self._said:
            before, self._said = self._said, bytes(self._room)
            parts.update(call.part for call in self.all if self._said[call.span] != before[call.span])
        for call in self.all if parts else ():
            if call.part in parts:
                _put(call, values, news)
        return 0

    def has(self, name: str) -> bool:
        """Say whether the library has a call of this name."""
        return hasattr(self._lib, name)

    def new(self, value: Any) -> Any:
        """Reserve memory in the room for an answer of the next call. Return the memory as a copy of this ctypes value."""
        made = type(value).from_buffer(self._room, self._used)
        size = ctypes.sizeof(value)
        ctypes.memmove(ctypes.byref(made), ctypes.byref(value), size)
        self._used += -(-size // 8) * 8
        return made

    def add(self, name: str, part: str, key: str | None, store: Callable[[], Any], *args: Any) -> None:
        """Add a call with the GPU's handle and ``args``. It writes its answer to the memory that ``new`` reserved since the
        last ``add``."""
        span = slice(self._taken, self._used)
        self._taken = self._used
        self.all.append(Call(entry(self._lib, name), name, (part, key), args, store, span))

    def uint(self, name: str, part: str, key: str | None = None, *before: Any, scale: int = 1) -> None:
        """Add a call that answers with an unsigned int."""
        value = self.new(ctypes.c_uint())
        self.add(name, part, key, lambda: value.value * scale, *before, ctypes.byref(value))

    def pair(self, name: str, part: str) -> None:
        """Add a call that answers with the current and the pending state."""
        now, pending = self.new(ctypes.c_uint()), self.new(ctypes.c_uint())
        said = (ctypes.byref(now), ctypes.byref(pending))
        self.add(name, part, None, lambda: {"current": now.value, "pending": pending.value}, *said)

    def struct(self, name: str, part: str, value: Any, **keys: str) -> None:
        """Add a call that fills in a structure like ``value``. ``keys``: the reported fields of the structure, by their keys in
        nvml.json."""
        said = self.new(value)
        self.add(name, part, None, lambda: {k: getattr(said, f) for k, f in keys.items()}, ctypes.byref(said))


def _put(call: Call, values: Json, news: Json) -> None:
    answer: Any = {"error": call.code} if call.code else call.store()
    old = news.get(call.part, values.get(call.part))
    if call.key is None:
        news[call.part] = {**old, **answer} if call.merge and old and "error" not in old | answer else answer
    elif old is None:
        news[call.part] = {call.key: answer}
    elif "error" not in old:  # a part that is an error as a whole stays an error
        news[call.part] = {**old, call.key: answer}


def fast_calls(calls: Calls, structs: Any) -> Calls:
    """Add the calls for values that checks judge in every sweep or that are added up over sweeps (``LoadSums``)."""
    uint = ctypes.c_uint
    calls.pair("nvmlDeviceGetMigMode", "mig_mode")
    calls.pair("nvmlDeviceGetEccMode", "ecc_mode")
    sram = structs.c_nvmlEccSramErrorStatus_v1_t()
    calls.struct("nvmlDeviceGetSramEccErrorStatus", "sram", sram, volatile_corrected="volatileCor",
                 volatile_uncorrected_parity="volatileUncParity", volatile_uncorrected_secded="volatileUncSecDed",
                 aggregate_corrected="aggregateCor", aggregate_uncorrected_parity="aggregateUncParity",
                 aggregate_uncorrected_secded="aggregateUncSecDed", threshold_exceeded="bThresholdExceeded")  # fmt: skip
    remap = [calls.new(uint()) for _ in range(4)]
    names = ("corrected", "uncorrected", "pending", "failed")
    calls.add(
        "nvmlDeviceGetRemappedRows",
        "remap",
        None,
        lambda: {n: v.value for n, v in zip(names, remap, strict=True)},
        *map(ctypes.byref, remap),
    )
    rows = calls.new(structs.c_nvmlRowRemapperHistogramValues())
    calls.add(
        "nvmlDeviceGetRowRemapperHistogram",
        "remap",
        "histogram",
        lambda: [rows.max, rows.high, rows.partial, rows.low, rows.none],
        ctypes.byref(rows),
    )
    calls.uint("nvmlDeviceGetClockInfo", "clocks", "sm_hertz", uint(1), scale=1_000_000)
    _reasons(calls)
    calls.struct(
        "nvmlDeviceGetUtilizationRates", "utilization", structs.c_nvmlUtilization_t(), gpu_percent="gpu", memory_percent="memory"
    )
    return calls


def vital_calls(calls: Calls, structs: Any) -> Calls:
    """Add the calls that are made in every sweep to find out whether the GPU answers. Their values are reported only in a sweep
    with ``closely``."""
    memory = structs.c_nvmlMemory_v2_t(version=0x02000028)
    calls.struct(
        "nvmlDeviceGetMemoryInfo_v2", "memory", memory, total_bytes="total", reserved_bytes="reserved", used_bytes="used"
    )
    calls.uint("nvmlDeviceGetTemperature", "temperature", "gpu_celsius", ctypes.c_uint(0))
    calls.uint("nvmlDeviceGetPowerUsage", "power", "draw_milliwatts")
    calls.uint("nvmlDeviceGetPerformanceState", "performance_state")
    return calls


def near_calls(calls: Calls) -> Calls:
    """Add the calls that are made only in a sweep with ``closely`` (``Device.sweep``). A check that needs
    several thorough sweeps for its confirmation gets a new value in each of them."""
    calls.uint("nvmlDeviceGetPersistenceMode", "persistence_mode")
    calls.uint("nvmlDeviceGetCurrPcieLinkGeneration", "pcie", "gen_current")
    calls.uint("nvmlDeviceGetCurrPcieLinkWidth", "pcie", "width_current")
    calls.uint("nvmlDeviceGetPowerManagementLimit", "power", "limit_milliwatts")
    calls.uint("nvmlDeviceGetClockInfo", "clocks", "memory_hertz", ctypes.c_uint(2), scale=1_000_000)
    _application_clocks(calls, "", "")
    return calls


def slow_calls(calls: Calls, structs: Any) -> Calls:
    """Add the calls that are made once a minute."""
    one = ctypes.c_uint
    calls.struct(
        "nvmlDeviceGetBAR1MemoryInfo", "bar1", structs.c_nvmlBAR1Memory_t(), total_bytes="bar1Total", used_bytes="bar1Used"
    )
    calls.uint("nvmlDeviceGetComputeMode", "compute_mode")
    calls.uint("nvmlDeviceGetAccountingMode", "accounting_mode")
    calls.uint("nvmlDeviceGetMaxPcieLinkGeneration", "pcie", "gen_max")
    calls.uint("nvmlDeviceGetMaxPcieLinkWidth", "pcie", "width_max")
    calls.uint("nvmlDeviceGetTemperatureThreshold", "temperature", "slowdown_celsius", one(1))
    calls.uint("nvmlDeviceGetTemperatureThreshold", "temperature", "shutdown_celsius", one(0))
    calls.uint("nvmlDeviceGetPowerManagementDefaultLimit", "power", "default_limit_milliwatts")
    low, high = calls.new(one()), calls.new(one())
    for key, limit in (("minimum_limit_milliwatts", low), ("maximum_limit_milliwatts", high)):
        calls.add(
            "nvmlDeviceGetPowerManagementLimitConstraints",
            "power",
            key,
            partial(getattr, limit, "value"),
            ctypes.byref(low),
            ctypes.byref(high),
        )
    calls.uint("nvmlDeviceGetMaxClockInfo", "clocks", "sm_max_hertz", one(1), scale=1_000_000)
    calls.uint("nvmlDeviceGetMaxClockInfo", "clocks", "memory_max_hertz", one(2), scale=1_000_000)
    _application_clocks(calls, "Default", "default_")
    cpus = calls.new((ctypes.c_ulonglong * 64)())
    calls.add("nvmlDeviceGetCpuAffinity", "cpu_affinity", None, lambda: cpu_list(cpus), one(64), cpus)
    nodes = calls.new((ctypes.c_ulonglong * 4)())
    calls.add("nvmlDeviceGetMemoryAffinity", "numa", None, lambda: lowest_bit(nodes), one(4), nodes, one(0))
    return calls


def rare_calls(calls: Calls) -> Calls:
    """Add the calls that are made once an hour, because they read flash. The answer of
    nvmlDeviceValidateInforom is its return code."""
    calls.add("nvmlDeviceValidateInforom", "inforom_valid", None, lambda: 1)
    return calls


def _application_clocks(calls: Calls, which: str, prefix: str) -> None:
    name = f"nvmlDeviceGet{which}ApplicationsClock"
    for key, kind in (("sm", 0), ("memory", 2)):
        calls.uint(name, "application_clocks", f"{prefix}{key}_hertz", ctypes.c_uint(kind), scale=1_000_000)


def _reasons(calls: Calls) -> None:
    """Add the call for the throttle reasons. NVML renamed this call in r535, and r470 has only the old name."""
    mask = calls.new(ctypes.c_ulonglong())
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    name = names[0] if calls.has(names[0]) else names[1]
    calls.add(name, "throttle_reasons", None, lambda: mask.value, ctypes.byref(mask))


def lowest_bit(words: Any) -> int | Json:
    """Return the number of the lowest bit that is set in these 64 bit words, or an error if no bit is set."""
    for i, word in enumerate(words):
        if word:
            return int(64 * i + (word & -word).bit_length() - 1)
    return {"error": NOT_SUPPORTED}


def cpu_list(words: Any) -> str:
    """Return the CPUs whose bits are set in these 64 bit words, as a list such as "0-55"."""
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
