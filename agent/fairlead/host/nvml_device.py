"""One GPU as the NVML worker reads it: what is read how often, and how an answer becomes nvml.json.

Runs inside the worker process only. Every call is announced by ``beat`` before it is made; a call that answers
NOT_SUPPORTED or FUNCTION_NOT_FOUND twice in a row is not made again for ten minutes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fairlead.host import nvml_load
from fairlead.host.nvml_calls import Call, close_calls, fast_calls, rare_calls, slow_calls
from fairlead.host.nvml_fields import FIELDS, Batch
from fairlead.host.nvml_links import FATAL, FUNCTION_NOT_FOUND, LINK_FIELDS, NOT_SUPPORTED, Beat, Json, Links
from fairlead.host.nvml_mig import Mig

_ANSWERS = (14, 16)  # CORRUPTED_INFOROM, RESET_REQUIRED: not worth asking again
_FORGET = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
PROBE_AGAIN_SECONDS = 600.0
SLOW_SECONDS = 60.0
RARE_SECONDS = 3600.0
LINK_SECONDS = 7.0  # NVLinks are most of the values of a sweep, and are judged on thorough looks: those ask for them closely
_VALUE_NOT_AVAILABLE = 2**64 - 1


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
        self._rare_due = 0.0
        self._rare = rare_calls(lib)
        self._fast = fast_calls(lib, structs) + nvml_load.fast_calls(lib, structs)
        self._close = close_calls(lib) + nvml_load.close_calls(lib, structs)
        self._slow = slow_calls(lib, structs) + nvml_load.slow_calls(lib)
        self._links = Links(lib, structs, self.pci, beat)
        self._events = nvml_load.ClockEvents(lib, self.pci, beat)
        self._batch_due = 0.0
        self._links_due = 0.0
        self._batches: list[Batch | None] = [None, None]
        self.failed = False
        self._processes = (structs.c_nvmlProcessInfo_v2_t * 64)()

    def sweep(self, now: float, *, closely: bool) -> int:
        """Refreshes ``values``, those of NVLinks and ``close_calls`` when due or looked at ``closely``; 0 or the code that ended
        this GPU's sweep."""
        if closely:
            self._links_due = 0.0
        if self.failed:
            self.failed = False
            self.values = dict(self.identity)
        slow = now >= self._slow_due
        rare = now >= self._rare_due
        code = (
            self._run(self._fast, now)
            or (self._run(self._close, now) if closely or slow else 0)
            or (self._run(self._slow, now) if slow else 0)
            or (self._run(self._rare, now) if rare else 0)
        )
        if not code and (slow or (closely and self._links.fewer)):
            code = self._find_links()
        if not code and slow:
            self.values["mig"] = Mig(self._lib, self._structs, self.handle, self._beat, self.pci).read()
        code = code or self._read_all_fields(now) or self._read_processes()
        code = code or self._events.read(self.handle, self.values, now)
        if code:
            self.fail(code)
        else:
            self._slow_due = now + SLOW_SECONDS if slow else self._slow_due
            if rare:  # flash that could not be read is asked again with the slow values
                self._rare_due = now + (SLOW_SECONDS if self._failed(self._rare) else RARE_SECONDS)
        return code

    def _failed(self, calls: list[Call]) -> bool:
        """Whether one of them had no answer but an error that says nothing."""
        errors = [self.values[c.part].get("error") for c in calls if isinstance(self.values.get(c.part), dict)]
        return any(code not in (*_FORGET, *_ANSWERS) for code in errors)

    def read_all_next(self) -> None:
        """The next sweep reads this GPU's slow values too: one of them was set."""
        self._slow_due = 0.0

    def fail(self, code: int) -> None:
        """Every value but the identity becomes this error; all is read again when the GPU comes back."""
        self.failed = True
        self._slow_due = self._rare_due = self._batch_due = self._links_due = 0.0
        self._links.forget()
        calls = (*self._fast, *self._close, *self._slow, *self._rare)
        self._events.forget()
        for call in calls:
            call.not_before = 0.0
        error = {"error": code}
        read = {c.part for c in calls} | {p for p, _ in FIELDS.values()}
        parts = read | {"nvlink", "processes", "mig", nvml_load.PART}
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
                answer = {"error": code}
                if code in _FORGET and answer == self._last(call.part, call.key):
                    call.not_before = now + PROBE_AGAIN_SECONDS
            old = values.get(call.part)
            if call.key is None:
                values[call.part] = {**old, **answer} if call.merge and old and "error" not in old | answer else answer
            elif old is None:
                values[call.part] = {call.key: answer}
            elif "error" not in old:  # a part that is an error as a whole stays so
                old[call.key] = answer
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
            code = self._read_fields(1) or self._links.read(self.handle, self.values) or self._links.read_errors(self.handle)
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
                if answer["error"] in _FORGET and (which or answer == self._last(*FIELDS[field])):
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

    def _last(self, part: str, key: str | None) -> Any:
        """What was said here last: an answer that says "never" counts once it is given twice."""
        value = self.values.get(part)
        return value if key is None or value is None else value.get(key, value)

    def _find_links(self) -> int:
        before = len(self._links.found)
        code = self._links.find(self.handle)
        self._links_due = 0.0
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


def _put(values: Json, part: str, key: str, answer: Any) -> None:
    """values[part][key] = answer; a part that is an error as a whole stays so."""
    group = values.setdefault(part, {})
    if "error" not in group:
        group[key] = answer
