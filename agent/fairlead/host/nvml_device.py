"""One GPU as the NVML worker reads it: which calls are made, how often, and how an answer becomes nvml.json.

Runs inside the worker process only. Every call is announced by ``beat`` before it is made. Structures are allocated
once and used again; a call that answers NOT_SUPPORTED or FUNCTION_NOT_FOUND is not made again for ten minutes.
Field ids are our own table: nvml.h renumbered 199, 200 and everything from 251 up between driver branches.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from fairlead.host.nvml_links import FATAL, LINK_FIELDS, NOT_SUPPORTED, Beat, Json, Links

Place = tuple[str, str | None]  # in a GPU's entry of nvml.json

FUNCTION_NOT_FOUND = 13
_FORGET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
PROBE_AGAIN_SECONDS = 600.0
SLOW_SECONDS = 60.0
LINK_SECONDS = 4.0  # NVLink error counters are most of the values of a sweep, and are judged as rates over minutes
_VALUE_NOT_AVAILABLE = 2**64 - 1

# nvml.h, NVML_FI_*: id -> place in nvml.json
FIELDS: dict[int, Place] = {
    3: ("ecc", "volatile_corrected"),
    4: ("ecc", "volatile_uncorrected"),
    5: ("ecc", "aggregate_corrected"),
    6: ("ecc", "aggregate_uncorrected"),
    29: ("retired_pages", "single_bit"),
    30: ("retired_pages", "double_bit"),
    31: ("retired_pages", "pending"),
    82: ("temperature", "memory_celsius"),
    83: ("power", "energy_millijoules"),
    94: ("pcie", "replays"),
    197: ("pcie", "transmit_bytes"),
    198: ("pcie", "receive_bytes"),
    230: ("recovery_action", None),
}
# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_FIELD = struct.Struct("<IIqqIIQ")
_MASK = {1: 0xFFFFFFFF, 2: 2**64 - 1, 3: 2**64 - 1, 6: 0xFFFF}  # unsigned int, long, long long, short
_SIGNED = {4: 64, 5: 32}


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


class Batch:
    """One nvmlDeviceGetFieldValues call over ids with a scope each. Every entry has its own return code."""

    def __init__(self, lib: Any, handle: Any, wanted: list[tuple[int, int]]) -> None:
        self._fn = getattr(lib, "nvmlDeviceGetFieldValues", None)
        self._handle = handle
        self.wanted = wanted
        self._template = b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in wanted)
        self._buffer = ctypes.create_string_buffer(self._template, len(self._template) + 1)
        self._count = ctypes.c_int(len(wanted))

    def read(self) -> int | list[tuple[int, int, int | Json]]:
        """(id, scope, value or error) of each, or the return code of the call as a whole."""
        if self._fn is None:
            return FUNCTION_NOT_FOUND
        ctypes.memmove(self._buffer, self._template, len(self._template))
        code = self._fn(self._handle, self._count, self._buffer)
        if code:
            return int(code)
        entries = _FIELD.iter_unpack(ctypes.string_at(self._buffer, len(self._template)))
        return [(f, s, field_value(kind, raw) if not ret else {"error": ret}) for f, s, _, _, kind, ret, raw in entries]


def field_value(kind: int, raw: int) -> int:
    """The union nvmlValue_t by its nvmlValueType_t."""
    if kind in _MASK:
        return raw & _MASK[kind]
    if kind in _SIGNED:
        bits = _SIGNED[kind]
        raw &= (1 << bits) - 1
        return raw - (1 << bits) if raw >> (bits - 1) else raw
    if kind == 0:
        (value,) = struct.unpack("<d", struct.pack("<Q", raw))
        return int(value)
    return raw


class Device:
    """A GPU with its handle. ``values`` is its entry of nvml.json; ``identity`` outlives the GPU's being lost."""

    def __init__(self, lib: Any, structs: Any, handle: Any, identity: Json, beat: Beat) -> None:
        self.identity = identity
        self.values: Json = dict(identity)
        self.pci = identity["pci"].encode()
        self._lib = lib
        self._structs = structs
        self.handle = handle
        self._beat = beat
        self._slow_due = 0.0
        self._fast = self._fast_calls()
        self._slow = self._slow_calls()
        self._links = Links(lib, structs, self.pci, beat)
        self._batch_due = 0.0
        self._links_due = 0.0
        self._batches: list[Batch | None] = [None, None]
        self.failed = False
        self._processes = (structs.c_nvmlProcessInfo_v2_t * 64)()

    def sweep(self, now: float) -> int:
        """Refreshes ``values``; returns 0 or the code that ended the sweep of this GPU."""
        if self.failed:
            self.failed = False
            self.values = dict(self.identity)
        slow = now >= self._slow_due
        code = self._run(self._fast, now) or (self._run(self._slow, now) if slow else 0)
        if not code and slow:
            code = self._find_links()
        code = code or self._read_all_fields(now) or self._links.read(self.handle, self.values) or self._read_processes()
        if code:
            self.fail(code)
        elif slow:
            self._slow_due = now + SLOW_SECONDS
        return code

    def fail(self, code: int) -> None:
        """Every value but the identity becomes this error; all is read again when the GPU comes back."""
        self.failed = True
        self._slow_due = self._batch_due = self._links_due = 0.0
        self._links.forget()
        for call in (*self._fast, *self._slow):
            call.not_before = 0.0
        error = {"error": code}
        parts = {c.part for c in (*self._fast, *self._slow)} | {p for p, _ in FIELDS.values()} | {"nvlink", "processes"}
        self.values = {**dict.fromkeys(sorted(parts), error), **self.identity}

    def _run(self, calls: list[Call], now: float) -> int:
        values = self.values
        beat = self._beat
        for call in calls:
            if call.not_before > now:
                continue
            if call.fn is None:
                code = FUNCTION_NOT_FOUND
            else:
                beat(call.name, self.pci)
                code = call.fn(self.handle, *call.args)
            if code == 0:
                answer: Any = call.store()
            else:
                if code in FATAL:
                    return int(code)
                if code in _FORGET:
                    call.not_before = now + PROBE_AGAIN_SECONDS
                answer = {"error": code}
            if call.key is None:
                old = values.get(call.part)
                values[call.part] = {**old, **answer} if call.merge and old and "error" not in old | answer else answer
            else:
                _put(values, call.part, call.key, answer)
        return 0

    def _read_all_fields(self, now: float) -> int:
        if now >= self._batch_due:
            self._batch_due = now + PROBE_AGAIN_SECONDS
            self._links_due = 0.0
            links = [(f, i) for i in range(len(self._links.found)) for f in LINK_FIELDS]
            self._batches = [Batch(self._lib, self.handle, [(f, 0) for f in FIELDS]), Batch(self._lib, self.handle, links)]
            self._links.errors_by_call = False
        code = self._read_fields(0)
        if not code and now >= self._links_due:
            self._links_due = now + LINK_SECONDS
            code = self._read_fields(1) or self._links.read_errors(self.handle)
        return code

    def _read_fields(self, which: int) -> int:
        batch = self._batches[which]
        if batch is None or not batch.wanted:
            return 0
        self._beat(b"nvmlDeviceGetFieldValues", self.pci)
        answers = batch.read()
        if isinstance(answers, int):
            if answers in FATAL:
                return answers
            answers = [(f, s, {"error": answers}) for f, s in batch.wanted]
        refused: set[tuple[int, int]] = set()
        for field, scope, answer in answers:
            if isinstance(answer, dict):
                if answer["error"] in FATAL:
                    return int(answer["error"])
                if answer["error"] in _FORGET:
                    refused.add((field, scope))
            if which == 1:
                if scope < len(self._links.found):
                    self._links.found[scope][LINK_FIELDS[field]] = answer
                continue
            part, key = FIELDS[field]
            if key is None:
                self.values[part] = answer
            else:
                _put(self.values, part, key, answer)
        if refused:
            if which == 1 and len(refused) == len(batch.wanted):
                self._links.errors_by_call = True
            self._batches[which] = Batch(self._lib, self.handle, [w for w in batch.wanted if w not in refused])
        return 0

    def _find_links(self) -> int:
        before = len(self._links.found)
        code = self._links.find(self.handle)
        if len(self._links.found) != before:
            self._batch_due = 0.0
        return code

    def _read_processes(self) -> int:
        fn = getattr(self._lib, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if fn is None:
            self.values["processes"] = {"error": FUNCTION_NOT_FOUND}
            return 0
        self._beat(b"nvmlDeviceGetComputeRunningProcesses_v3", self.pci)
        for _ in range(3):
            count = ctypes.c_uint(len(self._processes))
            code = fn(self.handle, ctypes.byref(count), self._processes)
            if code != 7:  # INSUFFICIENT_SIZE: count says how many there are
                break
            self._processes = (self._structs.c_nvmlProcessInfo_v2_t * (count.value * 2 + 5))()
        if code:
            self.values["processes"] = {"error": code}
            return int(code) if code in FATAL else 0
        self.values["processes"] = [
            {"pid": p.pid, "used_bytes": {"error": NOT_SUPPORTED} if p.usedGpuMemory == _VALUE_NOT_AVAILABLE else p.usedGpuMemory}
            for p in self._processes[: count.value]
        ]
        return 0

    def _fast_calls(self) -> list[Call]:
        s = self._structs
        memory = s.c_nvmlMemory_v2_t(version=0x02000028)
        sram = s.c_nvmlEccSramErrorStatus_v1_t()
        utilization = s.c_nvmlUtilization_t()
        histogram = s.c_nvmlRowRemapperHistogramValues()
        remap = [ctypes.c_uint() for _ in range(4)]
        return [
            self._struct("nvmlDeviceGetMemoryInfo_v2", "memory", memory, total_bytes="total", reserved_bytes="reserved",
                         used_bytes="used"),
            self._uint("nvmlDeviceGetPersistenceMode", "persistence_mode", None),
            self._pair("nvmlDeviceGetMigMode", "mig_mode"),
            self._pair("nvmlDeviceGetEccMode", "ecc_mode"),
            self._struct("nvmlDeviceGetSramEccErrorStatus", "sram", sram, volatile_corrected="volatileCor",
                         volatile_uncorrected_parity="volatileUncParity", volatile_uncorrected_secded="volatileUncSecDed",
                         aggregate_corrected="aggregateCor", aggregate_uncorrected_parity="aggregateUncParity",
                         aggregate_uncorrected_secded="aggregateUncSecDed", threshold_exceeded="bThresholdExceeded"),
            Call(self._lib, "nvmlDeviceGetRemappedRows", ("remap", None), tuple(map(ctypes.byref, remap)),
                 lambda: dict(zip(("corrected", "uncorrected", "pending", "failed"), (v.value for v in remap), strict=True))),
            Call(self._lib, "nvmlDeviceGetRowRemapperHistogram", ("remap", "histogram"), (ctypes.byref(histogram),),
                 lambda: [histogram.max, histogram.high, histogram.partial, histogram.low, histogram.none]),
            self._uint("nvmlDeviceGetCurrPcieLinkGeneration", "pcie", "gen_current"),
            self._uint("nvmlDeviceGetCurrPcieLinkWidth", "pcie", "width_current"),
            self._uint("nvmlDeviceGetTemperature", "temperature", "gpu_celsius", before=(ctypes.c_uint(0),)),
            self._uint("nvmlDeviceGetPowerUsage", "power", "draw_milliwatts"),
            self._uint("nvmlDeviceGetPowerManagementLimit", "power", "limit_milliwatts"),
            self._uint("nvmlDeviceGetClockInfo", "clocks", "sm_hertz", before=(ctypes.c_uint(1),), scale=1_000_000),
            self._uint("nvmlDeviceGetClockInfo", "clocks", "memory_hertz", before=(ctypes.c_uint(2),), scale=1_000_000),
            self._reasons(),
            self._struct("nvmlDeviceGetUtilizationRates", "utilization", utilization, gpu_percent="gpu", memory_percent="memory"),
            self._uint("nvmlDeviceGetPerformanceState", "performance_state", None),
        ]  # fmt: skip

    def _slow_calls(self) -> list[Call]:
        bar1 = self._structs.c_nvmlBAR1Memory_t()
        fabric = self._structs.c_nvmlGpuFabricInfo_v2_t()
        nodes = (ctypes.c_ulonglong * 4)()
        cpus = (ctypes.c_ulonglong * 64)()
        low, high = ctypes.c_uint(), ctypes.c_uint()
        one = ctypes.c_uint
        return [
            self._struct("nvmlDeviceGetBAR1MemoryInfo", "bar1", bar1, total_bytes="bar1Total", used_bytes="bar1Used"),
            self._uint("nvmlDeviceGetComputeMode", "compute_mode", None),
            self._uint("nvmlDeviceGetAccountingMode", "accounting_mode", None),
            self._uint("nvmlDeviceGetMaxPcieLinkGeneration", "pcie", "gen_max"),
            self._uint("nvmlDeviceGetMaxPcieLinkWidth", "pcie", "width_max"),
            self._uint("nvmlDeviceGetTemperatureThreshold", "temperature", "slowdown_celsius", before=(one(1),)),
            self._uint("nvmlDeviceGetTemperatureThreshold", "temperature", "shutdown_celsius", before=(one(0),)),
            self._uint("nvmlDeviceGetPowerManagementDefaultLimit", "power", "default_limit_milliwatts"),
            Call(self._lib, "nvmlDeviceGetPowerManagementLimitConstraints", ("power", "minimum_limit_milliwatts"),
                 (ctypes.byref(low), ctypes.byref(high)), lambda: low.value),
            Call(self._lib, "nvmlDeviceGetPowerManagementLimitConstraints", ("power", "maximum_limit_milliwatts"),
                 (ctypes.byref(low), ctypes.byref(high)), lambda: high.value),
            self._uint("nvmlDeviceGetMaxClockInfo", "clocks", "sm_max_hertz", before=(one(1),), scale=1_000_000),
            self._uint("nvmlDeviceGetMaxClockInfo", "clocks", "memory_max_hertz", before=(one(2),), scale=1_000_000),
            Call(self._lib, "nvmlDeviceGetGpuFabricInfoV", ("fabric", None), (ctypes.byref(fabric),),
                 lambda: {"state": fabric.state, "status": fabric.status, "clique_id": fabric.cliqueId,
                          "cluster_uuid": bytes(fabric.clusterUuid).hex()}),
            Call(self._lib, "nvmlDeviceGetCpuAffinity", ("cpu_affinity", None), (one(64), cpus), lambda: cpu_list(cpus)),
            Call(self._lib, "nvmlDeviceGetMemoryAffinity", ("numa", None), (one(4), nodes, one(0)), lambda: lowest_bit(nodes)),
        ]  # fmt: skip

    def _uint(self, name: str, part: str, key: str | None, *, before: tuple[Any, ...] = (), scale: int = 1) -> Call:
        value = ctypes.c_uint()
        return Call(self._lib, name, (part, key), (*before, ctypes.byref(value)), lambda: value.value * scale)

    def _pair(self, name: str, part: str) -> Call:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        where = (ctypes.byref(current), ctypes.byref(pending))
        return Call(self._lib, name, (part, None), where, lambda: {"current": current.value, "pending": pending.value})

    def _struct(self, name: str, part: str, value: Any, **keys: str) -> Call:
        return Call(
            self._lib, name, (part, None), (ctypes.byref(value),), lambda: {k: getattr(value, f) for k, f in keys.items()}
        )

    def _reasons(self) -> Call:
        """Renamed in r535; r470 has only the old name."""
        mask = ctypes.c_ulonglong()
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(self._lib, name):
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return Call(self._lib, name, ("throttle_reasons", None), (ctypes.byref(mask),), lambda: mask.value)


def _put(values: Json, part: str, key: str, answer: Any) -> None:
    """values[part][key] = answer; a part that is an error as a whole stays so."""
    group = values.setdefault(part, {})
    if "error" not in group:
        group[key] = answer


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
