"""Reads a GPU's clocks, temperatures and fabric for the NVML worker, beside the calls of ``nvml_calls``.

The clock event counters are in nanoseconds (nvml.h). The field ids 74 to 79 never changed. The ids of the
slowdown counters came with r575 as 252 and 253. Since r590 they are 270 and 271, and 251 to 268 mean power smoothing. (Sources:
releases 12.575 to 13.615 of the NVML binding, and k8s-test-infra's pkg/gpu/mocknvml for r580.) So the ids are chosen by the
driver's branch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from fairlead.host.nvml_calls import PROBE_AGAIN_SECONDS, Calls
from fairlead.host.nvml_fields import Batch
from fairlead.host.nvml_links import FATAL, FUNCTION_NOT_FOUND, NOT_SUPPORTED, Beat, Json, entry

PART = "clock_events"
_EVENTS = {74: "sw_power_cap", 75: "thermal", 76: "sync_boost", 77: "board_limit", 79: "reliability"}
_SLOWDOWNS = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
_MEM_MAX = 2  # NVML_TEMPERATURE_THRESHOLD_MEM_MAX


def event_fields(branch: int) -> dict[int, str]:
    """Return the names of the counters that a driver of this branch has, by field id."""
    first = 270 if branch >= 590 else 252 if branch >= 575 else None
    return _EVENTS if first is None else {**_EVENTS, **{first + i: name for i, name in enumerate(_SLOWDOWNS)}}


def branch_of(version: object) -> int:
    """Return the branch of a driver version (570 for "570.172.08"), or 0 for a value that is no version."""
    head = version.partition(".")[0] if isinstance(version, str) else ""
    return int(head) if head.isascii() and head.isdigit() else 0


def near_calls(calls: Calls, structs: Any) -> Calls:
    """Add the calls that are made only in a sweep with ``closely`` (``Device.sweep``)."""
    margin = calls.new(structs.c_nvmlMarginTemperature_v1_t(version=structs.nvmlMarginTemperature_v1))
    said = partial(getattr, margin, "marginTemperature")
    calls.add("nvmlDeviceGetMarginTemperature", "temperature", "margin_celsius", said, ctypes.byref(margin))
    _fabric(calls, structs)
    return calls


def slow_calls(calls: Calls) -> Calls:
    """Add the calls that are made once a minute."""
    calls.uint("nvmlDeviceGetTemperatureThreshold", "temperature", "memory_max_celsius", ctypes.c_uint(_MEM_MAX))
    return calls


def _fabric(calls: Calls, structs: Any) -> None:
    """Add the call for the fabric's state. nvmlDeviceGetGpuFabricInfoV (r550 and later) reports the health too. r535 has
    only the older call."""
    kind, name = structs.c_nvmlGpuFabricInfo_t, "nvmlDeviceGetGpuFabricInfo"
    if calls.has("nvmlDeviceGetGpuFabricInfoV"):
        kind, name = structs.c_nvmlGpuFabricInfo_v2_t, "nvmlDeviceGetGpuFabricInfoV"
    info = calls.new(kind())
    calls.add(name, "fabric", None, partial(_fabric_entry, info), ctypes.byref(info))


def _fabric_entry(info: Any) -> Json:
    entry = {"state": info.state, "status": info.status, "clique_id": info.cliqueId,
             "cluster_uuid": bytes(info.clusterUuid).hex()}  # fmt: skip
    return {**entry, "health_mask": info.healthMask} if hasattr(info, "healthMask") else entry


class ClockEventReader:
    """Reads the clock event counters of one GPU into ``values[PART]``. They are judged over minutes."""

    def __init__(self, lib: Any, pci: bytes, beat: Beat) -> None:
        self._lib = lib
        self._pci = pci
        self._beat = beat
        self._names: dict[int, str] = {}
        self._batch: Batch | None = None
        self._probe_due = 0.0

    def forget(self) -> None:
        """Find out again, in the next ``read``, which counters the driver has."""
        self._probe_due = 0.0

    def read(self, handle: Any, values: Json, news: Json, now: float) -> int:
        """Read the counters, and put the part with the new values into ``news``. Return 0, or a return code in ``FATAL``."""
        if now >= self._probe_due:
            self._names = event_fields(branch_of(self._version()))
            self._batch = Batch(self._lib, handle, [(field, 0) for field in self._names])
            missing = [name for name in (*_EVENTS.values(), *_SLOWDOWNS) if name not in self._names.values()]
            news[PART] = {f"{name}_nanoseconds": {"error": NOT_SUPPORTED} for name in missing}
            self._probe_due = now + PROBE_AGAIN_SECONDS
        if self._batch is None or not self._batch.wanted:
            return 0
        self._beat(b"nvmlDeviceGetFieldValues", self._pci)
        answers = self._batch.read()
        if isinstance(answers, int):
            if answers in FATAL:
                return answers
            answers = [(field, scope, {"error": answers}) for field, scope in self._batch.wanted]
        part: Json = dict(news.get(PART) or values.get(PART) or {})
        refused = set()
        for field, _, answer in answers:
            if isinstance(answer, dict):
                if answer["error"] in FATAL:
                    return int(answer["error"])
                if answer["error"] in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                    refused.add(field)
            part[f"{self._names[field]}_nanoseconds"] = answer
        news[PART] = part
        if refused:
            self._batch = Batch(self._lib, handle, [w for w in self._batch.wanted if w[0] not in refused])
        return 0

    def _version(self) -> str:
        text = ctypes.create_string_buffer(80)
        self._beat(b"nvmlSystemGetDriverVersion", b"")
        return "" if entry(self._lib, "nvmlSystemGetDriverVersion")(text, 80) else text.value.decode("ascii", "replace")
