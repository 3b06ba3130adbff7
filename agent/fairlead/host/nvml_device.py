"""Reads one GPU inside the NVML worker. It decides how often each value is read, and converts the answers to nvml.json form.

This code runs in the worker process only. Before each call, ``beat`` writes the call's name to the page that the worker shares
with its parent. A call that returns NOT_SUPPORTED or FUNCTION_NOT_FOUND twice in a row is not made again for ten minutes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fairlead.host import nvml_activity, nvml_load, nvml_mig_devices
from fairlead.host.nvml_calls import (
    PROBE_AGAIN_SECONDS,
    Calls,
    fast_calls,
    near_calls,
    rare_calls,
    slow_calls,
    vital_calls,
)
from fairlead.host.nvml_fields import FAST_FIELDS, FIELDS, NEAR_FIELDS, Batch
from fairlead.host.nvml_links import (
    BER_FIELDS,
    FATAL,
    FUNCTION_NOT_FOUND,
    LINK_FIELDS,
    NO_RATE,
    NOT_SUPPORTED,
    Beat,
    Json,
    Links,
)
from fairlead.host.nvml_mig import Mig

_ANSWERS = (14, 16)  # CORRUPTED_INFOROM, RESET_REQUIRED: these are answers, so the call is not repeated soon
SLOW_SECONDS = 60.0
RARE_SECONDS = 3600.0
_FORGET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_VALUE_NOT_AVAILABLE = 2**64 - 1
_NO_INSTANCE = 0xFFFFFFFF  # of a process that is on no GPU instance
_LINKS, _RATES = 2, 3  # the indices of the batches of the NVLinks in ``_batches``


class Device:
    """Holds a GPU with its handle. ``values`` is its entry of nvml.json. ``identity`` has the values that remain when the GPU is
    lost.

    The dict ``values`` is never changed. When a part has changed, ``values`` becomes a new dict that shares the unchanged parts.
    """

    def __init__(self, lib: Any, structs: Any, handle: Any, identity: Json, beat: Beat) -> None:
        self.identity = identity
        self.values: Json = dict(identity)
        self.pci = identity["pci"].encode()
        self._news: Json = {}
        self._lib = lib
        self._structs = structs
        self.handle = handle
        self._beat = beat
        self._slow_due = 0.0
        self._rare_due = 0.0
        self._fast = fast_calls(self._calls(), structs)
        self._vital = vital_calls(self._calls(), structs)
        self._near = nvml_load.near_calls(near_calls(self._calls()), structs)
        self._slow = nvml_load.slow_calls(slow_calls(self._calls(), structs))
        self._rare = rare_calls(self._calls())
        self._links = Links(lib, structs, self.pci, beat)
        self._events = nvml_load.ClockEventReader(lib, self.pci, beat)
        self._activity = nvml_activity.ActivityReader(lib, structs, self.pci, beat)
        self._mig_devices = nvml_mig_devices.MigDevices(lib, structs, self.pci, beat)
        self._batch_due = 0.0
        self._near_due = True
        self._batches: list[Batch] = []
        self.failed = False
        self._processes = (structs.c_nvmlProcessInfo_v2_t * 64)()

    def _calls(self) -> Calls:
        return Calls(self._lib, self.pci, self._beat)

    def found(self, handle: Any, index: int) -> None:
        """Record that NVML has listed this GPU again."""
        self.handle = handle
        self.identity["index"] = index
        if self.values.get("index") != index:
            self.values = {**self.values, "index": index}

    def sweep(self, now: float, *, closely: bool) -> int:
        """Read the values that are judged in every sweep, and the other values that are due. With ``closely``, also read all
        values that thorough sweeps and metrics need. Return 0, or the return code that ended the sweep of this GPU."""
        if self.failed:
            self.failed = False
            self.values = dict(self.identity)
        self._news = {}
        slow = now >= self._slow_due
        rare = now >= self._rare_due
        near = closely or slow or self._near_due
        code = self._run(self._fast, now) or self._run(self._vital, now, report_values=near)
        code = code or (self._run(self._near, now) if near else 0)
        code = code or (self._run(self._slow, now) if slow else 0) or (self._run(self._rare, now) if rare else 0)
        if not code and (slow or (closely and self._links.fewer)):
            code = self._find_links()
        if not code and slow:
            self._news["mig"] = Mig(self._lib, self._structs, self.handle, self._beat, self.pci).read()
        code = code or self._read_fields(now, near=near, slow=slow)
        if not code and near:
            code = self._read_links() or self._read_processes() or self._events.read(self.handle, self.values, self._news, now)
        code = code or self._read_mig_devices(near=near)
        code = code or self._read_activity(near=near)
        if code:
            self.fail(code)
            return code
        self._slow_due = now + SLOW_SECONDS if slow else self._slow_due
        if rare:  # if the flash could not be read, it is read again with the slow values
            mute = any(call.code and call.code not in (*_FORGET, *_ANSWERS) for call in self._rare.all)
            self._rare_due = now + (SLOW_SECONDS if mute else RARE_SECONDS)
        self._near_due = False
        old = self.values
        if news := {part: value for part, value in self._news.items() if part not in old or old[part] != value}:
            self.values = {**old, **news}
        return 0

    def read_all_next(self) -> None:
        """Make the next sweep read this GPU's slow values too, because one of them was set."""
        self._slow_due = 0.0

    def fail(self, code: int) -> None:
        """Set every value except the identity to this error. All values are read again when the GPU is back."""
        self.failed = self._near_due = True
        self._slow_due = self._rare_due = self._batch_due = 0.0
        self._links.forget()
        self._events.forget()
        self._activity.forget()
        self._mig_devices.forget()
        read = {part for part, _ in FIELDS.values()} | {"nvlink", "processes", "mig", nvml_load.PART, nvml_activity.PART}
        read |= {nvml_mig_devices.PART} & self.values.keys()
        for calls in (self._fast, self._vital, self._near, self._slow, self._rare):
            calls.forget()
            read |= {call.part for call in calls.all}
        error = {"error": code}
        self.values = {**dict.fromkeys(sorted(read), error), **self.identity}

    def end(self) -> None:
        """Give back what NVML holds for this GPU, before NVML is released."""
        self._activity.end()
        self._mig_devices.end()

    def _run(self, calls: Calls, now: float, *, report_values: bool = True) -> int:
        return calls.run(self.handle, now, self.values, self._news, report_values=report_values)

    def _read_fields(self, now: float, *, near: bool, slow: bool) -> int:
        if now >= self._batch_due:
            self._batch_due = now + PROBE_AGAIN_SECONDS
            links = range(len(self._links.found))
            wanted = [[(f, 0) for f in fields] for fields in (FAST_FIELDS, NEAR_FIELDS)]
            wanted += [[(f, i) for i in links for f in fields] for fields in (LINK_FIELDS, BER_FIELDS)]
            self._batches = [Batch(self._lib, self.handle, each) for each in wanted]
            self._links.errors_by_call = False
        code = self._read_batch(0) or (near and (self._read_batch(1) or self._read_batch(_LINKS))) or 0
        return code or (self._read_batch(_RATES) if slow else 0)

    def _read_batch(self, which: int) -> int:
        batch = self._batches[which]
        if not batch.wanted:
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
                if which == _RATES:
                    refused |= {(field, scope)} if answer["error"] in NO_RATE else set()
                elif answer["error"] in _FORGET and (which == _LINKS or answer == self._last(*FIELDS[field])):
                    refused.add((field, scope))
            if which == _RATES:
                self._links.keep_rate(field, scope, answer)
                continue
            if which == _LINKS:
                if scope < len(self._links.found):
                    self._links.found[scope][LINK_FIELDS[field]] = answer
                continue
            part, key = FIELDS[field]
            if key is None:
                self._news[part] = answer
            else:
                self._put(part, key, answer)
        if refused:
            if which == _LINKS and len(refused) == len(batch.wanted):
                self._links.errors_by_call = True
            self._batches[which] = Batch(self._lib, self.handle, [w for w in batch.wanted if w not in refused])
        return 0

    def _put(self, part: str, key: str, answer: Any) -> None:
        """Put one value into a part. A part that is an error as a whole stays an error."""
        group: Json = self._news.get(part) or self.values.get(part) or {}
        if "error" not in group:
            self._news[part] = {**group, key: answer}

    def _read_links(self) -> int:
        code = self._links.read(self.handle) or self._links.read_errors(self.handle)
        self._news["nvlink"] = [dict(link) for link in self._links.found]
        return code

    def _last(self, part: str, key: str | None) -> Any:
        """Return the last value of this key. A field counts as not supported only if two answers in a row say so."""
        value = self.values.get(part)
        return value if key is None or value is None else value.get(key, value)

    def _find_links(self) -> int:
        before = len(self._links.found)
        code = self._links.find(self.handle)
        if len(self._links.found) != before:
            self._batch_due = 0.0
        return code

    def _read_processes(self) -> int:
        fn = getattr(self._lib, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if fn is None:
            self._news["processes"] = {"error": FUNCTION_NOT_FOUND}
            return 0
        self._beat(b"nvmlDeviceGetComputeRunningProcesses_v3", self.pci)
        for _ in range(3):
            count = ctypes.c_uint(len(self._processes))
            code = fn(self.handle, ctypes.byref(count), self._processes)
            if code != 7:  # INSUFFICIENT_SIZE: ``count`` is now the number of processes
                break
            self._processes = (self._structs.c_nvmlProcessInfo_v2_t * (count.value * 2 + 5))()
        if code:
            self._news["processes"] = {"error": code}
            return int(code) if code in FATAL else 0
        self._news["processes"] = [
            {
                "pid": p.pid,
                "used_bytes": {"error": NOT_SUPPORTED} if p.usedGpuMemory == _VALUE_NOT_AVAILABLE else p.usedGpuMemory,
                **({} if p.gpuInstanceId == _NO_INSTANCE else {"gi": p.gpuInstanceId, "ci": p.computeInstanceId}),
            }
            for p in self._processes[: count.value]
        ]
        return 0

    def _read_activity(self, *, near: bool) -> int:
        """Read what the GPU did. Between close sweeps, only the utilisation of this sweep is remembered."""
        rates: Json = self._news.get("utilization") or self.values.get("utilization") or {}
        percent = rates.get("gpu_percent", rates)
        if near:
            return self._activity.read(self.handle, percent, len(self._links.found), self._news)
        return self._activity.remember(self.handle, percent)

    def _read_mig_devices(self, *, near: bool) -> int:
        """Read the MIG devices if MIG is on. The part stays absent while MIG was never on. Return 0, or a fatal return code."""
        on = nvml_mig_devices.is_on(self._news.get("mig_mode", self.values.get("mig_mode")))
        known = nvml_mig_devices.PART in self.values
        if not on:
            if known:
                self._news[nvml_mig_devices.PART] = []
            return 0
        if known and not near:
            return 0
        code, self._news[nvml_mig_devices.PART] = self._mig_devices.read(self.handle)
        return code
