"""Reads GPM (GPU performance monitoring, Hopper and later) of a GPU or a GPU instance, inside the NVML worker only.

A value of GPM is the mean between two samples, which must be more than 100 ms apart (nvml.h, "GPM"). An instance without a
compute instance has no data, which NVML shows as NaN (DCGM, DcgmGpmManager.cpp).
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

from fairlead.host.nvml_links import FATAL, NOT_SUPPORTED, Beat, Json, entry

METRICS = {2: "sm_active", 5: "tensor_active", 10: "dram_active"}  # nvmlGpmMetricId_t
APART_NANOSECONDS = 100_000_000
OLD_NANOSECONDS = 30_000_000_000  # two intervals: from an older sample, no value is computed
_NO_DATA = 21
_VERSION = 1  # NVML_GPM_SUPPORT_VERSION, NVML_GPM_METRICS_GET_VERSION


def supported(lib: Any, structs: Any, gpu: Any, pci: bytes, beat: Beat) -> int:
    """Return 0 if the GPU has GPM, else a return code."""
    said = structs.c_nvmlGpmSupport_t(version=_VERSION)
    beat(b"nvmlGpmQueryDeviceSupport", pci)
    code = int(entry(lib, "nvmlGpmQueryDeviceSupport")(gpu, ctypes.byref(said)))
    return code or (0 if said.isSupportedDevice else NOT_SUPPORTED)


class GpmSums:
    """Adds up what the pairs of GPM samples say, in nanoseconds. ``gi``: the id of the GPU instance, or None for the whole GPU.

    The first pair with a value decides which metrics there are. A later pair counts only if all of them have a value.
    """

    def __init__(self, lib: Any, structs: Any, gi: int | None, pci: bytes, beat: Beat) -> None:
        self._lib = lib
        self._structs = structs
        self._gi = gi
        self._pci = pci
        self._beat = beat
        self._code = _NO_DATA  # why there are no sums yet
        self._began = time.monotonic_ns()
        self._covered = 0
        self._sums: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._samples: list[Any] = []  # the last sample is the second one, if ``_taken`` is not 0
        self._taken = 0
        self._asked: Any = None

    def read(self, gpu: Any) -> int:
        """Take a sample and add the pair that it ends. Return 0, or a return code in ``FATAL``. ``gpu``: the GPU's handle."""
        if self._taken and time.monotonic_ns() - self._taken <= APART_NANOSECONDS:
            return 0
        code = self._allocate() or self._take(gpu)
        now = time.monotonic_ns()
        before, self._taken = self._taken, 0 if code else now
        if not code:
            self._samples.reverse()
            if before and now - before <= OLD_NANOSECONDS:
                code = self._add(now - before)
        self._code = code or self._code
        return code if code in FATAL else 0

    def values(self) -> Json:
        """Return the sums, or an error in the place of those that there are not."""
        said: Json = {"gpm_began_nanoseconds": self._began, "gpm_nanoseconds": self._covered}
        if not self._sums:
            return said | {f"{name}_nanoseconds": {"error": self._code} for name in METRICS.values()}
        for name in METRICS.values():
            said[f"{name}_nanoseconds"] = self._sums.get(name, {"error": self._codes.get(name, _NO_DATA)})
        return said

    def forget(self) -> None:
        """Take no pair with the last sample, because the GPU did not answer since then."""
        self._taken = 0

    def free(self) -> None:
        """Give the samples back to NVML."""
        samples, self._samples, self._taken = self._samples, [], 0
        for sample in samples:
            self._beat(b"nvmlGpmSampleFree", self._pci)
            entry(self._lib, "nvmlGpmSampleFree")(sample)

    def _allocate(self) -> int:
        while len(self._samples) < 2:
            sample = self._structs.c_nvmlGpmSample_t()
            self._beat(b"nvmlGpmSampleAlloc", self._pci)
            if code := entry(self._lib, "nvmlGpmSampleAlloc")(ctypes.byref(sample)):
                return int(code)
            self._samples.append(sample)
        return 0

    def _take(self, gpu: Any) -> int:
        """Take a sample into the first of the two, which is the older one."""
        if self._gi is None:
            self._beat(b"nvmlGpmSampleGet", self._pci)
            return int(entry(self._lib, "nvmlGpmSampleGet")(gpu, self._samples[0]))
        self._beat(b"nvmlGpmMigSampleGet", self._pci)
        return int(entry(self._lib, "nvmlGpmMigSampleGet")(gpu, ctypes.c_uint(self._gi), self._samples[0]))

    def _add(self, passed: int) -> int:
        asked = _question(self._structs)
        asked.sample1, asked.sample2 = self._samples
        self._beat(b"nvmlGpmMetricsGet", self._pci)
        if code := entry(self._lib, "nvmlGpmMetricsGet")(ctypes.byref(asked)):
            return int(code)
        found: dict[str, int] = {}
        for position, name in enumerate(METRICS.values()):
            metric = asked.metrics[position]
            if not metric.nvmlReturn and math.isfinite(metric.value) and 0 <= metric.value <= 100:
                found[name] = round(metric.value / 100 * passed)
            elif name not in self._sums:
                self._codes[name] = metric.nvmlReturn or _NO_DATA
        if found and found.keys() >= self._sums.keys():
            wanted = self._sums or dict.fromkeys(found, 0)
            self._sums = {name: wanted[name] + found[name] for name in wanted}
            self._covered += passed
        return 0


_questions: list[Any] = []  # one structure of some 13 kB, for all GPUs


def _question(structs: Any) -> Any:
    if not _questions:
        asked = structs.c_nvmlGpmMetricsGet_t(version=_VERSION, numMetrics=len(METRICS))
        for position, number in enumerate(METRICS):
            asked.metrics[position].metricId = number
        _questions.append(asked)
    return _questions[0]
