"""Reads what one GPU did, inside the NVML worker: the driver's samples of the utilisation, GPM, and the bytes over NVLink.

The part ``activity`` of nvml.json has sums since this worker process first read the GPU, in nanoseconds, and the driver's
counters of NVLink bytes. The worker keeps the samples to itself. Samples and GPM are read in close sweeps only, because the
driver's buffer bridges the time between them. If the buffer was too short once, the samples are read in every sweep.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

from fairlead.host.busy_time import BusyTime, Sample
from fairlead.host.nvml_calls import PROBE_AGAIN_SECONDS
from fairlead.host.nvml_fields import Batch
from fairlead.host.nvml_gpm import GpmSums, supported
from fairlead.host.nvml_links import FATAL, FUNCTION_NOT_FOUND, NOT_SUPPORTED, Beat, Json, entry

PART = "activity"
_UTILIZATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_NOT_FOUND = 6  # no samples are newer
_ALL_LINKS = 0xFFFFFFFF
_SAMPLE = struct.Struct("<QI4x")  # nvmlSample_t with an unsigned int
_KIBIBYTE = 1024
# nvml.h: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX in KiB, over all links; NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and
# _RCV_BYTES of one link in bytes, from NVLink 5 on
_OLDER_LINKS = {138: "nvlink_transmit_bytes", 139: "nvlink_receive_bytes"}
_NEWER_LINKS = {202: "nvlink_transmit_bytes", 204: "nvlink_receive_bytes"}


class ActivityReader:
    """Reads the part of one GPU. ``structs``: the ctypes declarations of nvidia-ml-py."""

    def __init__(self, lib: Any, structs: Any, pci: bytes, beat: Beat) -> None:
        self._lib = lib
        self._structs = structs
        self._pci = pci
        self._beat = beat
        self._busy = BusyTime(time.monotonic_ns())
        self._seen = 0  # the time stamp of the newest sample
        self._samples_code = 0
        self._samples_due = self._gpm_due = self._links_due = 0.0
        self._gpm_code = 0
        self._gpm = GpmSums(lib, structs, None, pci, beat)
        self._link_batch: Batch | None = None

    def look(self, handle: Any, percent: Any) -> int:
        """Add a sweep that does not read closely. ``percent``: the utilisation, or an error. Return 0 or a code in ``FATAL``."""
        now = time.monotonic_ns()
        self._busy.look(now, percent if type(percent) is int else None)
        return self._read_samples(handle, now / 1e9) if self._busy.lost_samples else 0

    def read(self, handle: Any, percent: Any, links: int, news: Json) -> int:
        """Read everything and put the part into ``news``. ``links``: the number of NVLinks. Return 0 or a code in ``FATAL``."""
        now = time.monotonic()
        self._busy.look(time.monotonic_ns(), percent if type(percent) is int else None)
        code = self._read_samples(handle, now) or self._read_gpm(handle, now)
        part = self._sums() | self._gpm_values()
        code = code or self._read_links(handle, links, now, part)
        news[PART] = part
        return code

    def forget(self) -> None:
        """Begin anew at the next reading, because the GPU did not answer."""
        self._samples_due = self._gpm_due = self._links_due = 0.0
        self._seen = 0
        self._busy.restart(time.monotonic_ns())
        self._gpm.forget()

    def end(self) -> None:
        """Give the GPM samples back before NVML is released."""
        self._gpm.free()

    def _sums(self) -> Json:
        busy = self._busy
        code = self._samples_code or _NOT_FOUND
        return {
            "began_nanoseconds": busy.began,
            "until_nanoseconds": busy.until,
            "measured_nanoseconds": busy.measured,
            "busy_nanoseconds": busy.busy if busy.measured else {"error": code},
            "spot_nanoseconds": busy.spot,
        }

    def _read_samples(self, handle: Any, now: float) -> int:
        samples: list[Sample] = []
        if now >= self._samples_due:
            self._samples_code, samples = self._new_samples(handle)
            if self._samples_code in FATAL:
                return self._samples_code
            if self._samples_code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                self._samples_due = now + PROBE_AGAIN_SECONDS
        self._busy.add(samples, time.monotonic_ns(), time.time_ns(), wait=self._samples_code in (0, _NOT_FOUND))
        return 0

    def _new_samples(self, handle: Any) -> tuple[int, list[Sample]]:
        """Return the return code and the samples since the last reading. NVML first says how many there are."""
        fn = entry(self._lib, "nvmlDeviceGetSamples")
        kind, count = ctypes.c_int(), ctypes.c_uint()
        question = (handle, ctypes.c_int(_UTILIZATION), ctypes.c_ulonglong(self._seen), ctypes.byref(kind), ctypes.byref(count))
        self._beat(b"nvmlDeviceGetSamples", self._pci)
        code = fn(*question, None)
        if code or not count.value:
            return int(code) or _NOT_FOUND, []
        buffer = (ctypes.c_char * (_SAMPLE.size * count.value))()
        if code := fn(*question, buffer):
            return int(code), []
        found = list(_SAMPLE.iter_unpack(buffer))[: count.value]
        self._seen = max((stamp for stamp, _ in found), default=self._seen)
        return 0, found

    def _read_gpm(self, handle: Any, now: float) -> int:
        if now >= self._gpm_due:
            self._gpm_due = now + PROBE_AGAIN_SECONDS
            self._gpm_code = supported(self._lib, self._structs, handle, self._pci, self._beat)
        if self._gpm_code:
            return self._gpm_code if self._gpm_code in FATAL else 0
        return self._gpm.read(handle)

    def _gpm_values(self) -> Json:
        said = self._gpm.values()
        if self._gpm_code and not said["gpm_nanoseconds"]:
            return {key: {"error": self._gpm_code} if isinstance(value, dict) else value for key, value in said.items()}
        return said

    def _read_links(self, handle: Any, links: int, now: float, part: Json) -> int:
        """Read the counters of bytes over all links. Up to NVLink 4 one counter has all links, later each link has its own."""
        if not links:
            part.update(_refused(NOT_SUPPORTED))
            return 0
        if self._link_batch is None or now >= self._links_due:
            self._links_due = now + PROBE_AGAIN_SECONDS
            newer = [(field, link) for link in range(links) for field in _NEWER_LINKS]
            self._link_batch = Batch(self._lib, handle, [*((field, _ALL_LINKS) for field in _OLDER_LINKS), *newer])
        self._beat(b"nvmlDeviceGetFieldValues", self._pci)
        answers = self._link_batch.read(again=True)
        if isinstance(answers, int):
            part.update(_refused(answers))
            return answers if answers in FATAL else 0
        told = [(field, scope) for field, scope, answer in answers if isinstance(answer, int)]
        older = [each for each in told if each[0] in _OLDER_LINKS]
        if len(told) < len(answers):  # ask only for what the GPU has, or for one field if it has none
            self._link_batch = Batch(self._lib, handle, older or told or [(138, _ALL_LINKS)])
        part.update(_link_bytes(answers))
        return 0


def _refused(code: int) -> Json:
    return {name: {"error": code} for name in _OLDER_LINKS.values()}


def _link_bytes(answers: list[tuple[int, int, int | Json]]) -> Json:
    """Return the bytes of each direction: those of all links, else the sum over the links if each link has answered."""
    said: Json = {}
    for older, name in _OLDER_LINKS.items():
        whole = [answer for field, _, answer in answers if field == older]
        if whole and isinstance(whole[0], int):
            said[name] = whole[0] * _KIBIBYTE
            continue
        parts = [answer for field, _, answer in answers if _NEWER_LINKS.get(field) == name]
        refused = [answer for answer in parts or whole if not isinstance(answer, int)]
        said[name] = refused[0] if refused else sum(answer for answer in parts if isinstance(answer, int))
    return said
