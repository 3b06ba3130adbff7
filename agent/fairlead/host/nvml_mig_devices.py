"""Reads the MIG devices of one GPU, inside the NVML worker only.

A MIG device is what Slurm and CUDA see of a compute instance. NVML answers for it with its own handle, but only for what the
instance has of its own: memory, processes and errors of its SRAM. Utilisation, power, temperature and clocks are those of the
whole GPU. Source: NVML API reference, "Multi Instance GPU Management" and nvmlDeviceGetMemoryErrorCounter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any

from fairlead.host.nvml_activity import PART as ACTIVITY
from fairlead.host.nvml_gpm import GpmSums
from fairlead.host.nvml_links import FATAL, Beat, Json, entry

PART = "mig_devices"
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7
_TEXT_BYTES, _PROCESSES = 96, 64
_UNCORRECTED, _VOLATILE, _SRAM = 1, 0, 7  # nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t


class MigDevices:
    """Reads the MIG devices of one GPU. ``structs``: the ctypes declarations of nvidia-ml-py."""

    def __init__(self, lib: Any, structs: Any, pci: bytes, beat: Beat) -> None:
        self._lib = lib
        self._structs = structs
        self._pci = pci
        self._beat = beat
        self._fatal = 0
        self._gpm: dict[tuple[str, int], GpmSums] = {}  # by UUID and GPU instance: a new instance may have an old UUID

    def forget(self) -> None:
        """Take no pair of GPM samples over the time in which the GPU did not answer."""
        for sums in self._gpm.values():
            sums.forget()

    def end(self) -> None:
        """Give the GPM samples back before NVML is released."""
        self._keep(())

    def read(self, gpu: Any) -> tuple[int, list[Json] | Json]:
        """Return 0 and the MIG devices in the form of nvml.json, or a code of ``FATAL`` and nothing. ``gpu``: the GPU's handle.

        The second value is ``{"error": code}`` if the devices cannot be listed. A value of one device that cannot be read is
        ``{"error": code}`` too.
        """
        self._fatal = 0
        most = ctypes.c_uint()
        if code := self._ask("nvmlDeviceGetMaxMigDeviceCount", gpu, ctypes.byref(most)):
            return self._fatal, {"error": code}
        found: list[Json] = []
        for index in range(most.value):
            handle = ctypes.c_void_p()
            code = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(index), ctypes.byref(handle))
            if code == NOT_FOUND:
                continue  # NVML counts the devices that are possible, and has fewer
            if code:
                return self._fatal, {"error": code}
            found.append(self._device(gpu, handle))
        self._keep([(device["uuid"], device["gi"]) for device in found])
        return self._fatal, found

    def _keep(self, devices: Collection[tuple[Any, Any]]) -> None:
        for gone in [key for key in self._gpm if key not in devices]:
            self._gpm.pop(gone).free()

    def _device(self, gpu: Any, handle: Any) -> Json:
        gi, uuid = self._uint("nvmlDeviceGetGpuInstanceId", handle), self._text("nvmlDeviceGetUUID", handle)
        return {
            "uuid": uuid,
            "name": self._text("nvmlDeviceGetName", handle),
            "gi": gi,
            "ci": self._uint("nvmlDeviceGetComputeInstanceId", handle),
            "placement": self._placement(gpu, gi),
            "memory": self._memory(handle),
            "sram_uncorrected": self._sram_uncorrected(handle),
            "processes": self._processes(handle),
            ACTIVITY: self._activity(gpu, uuid, gi),
        }

    def _activity(self, gpu: Any, uuid: Any, gi: Any) -> Json:
        """Return the GPM sums of the GPU instance. NVML gives no other activity of an instance."""
        if not isinstance(uuid, str) or not isinstance(gi, int):
            return next(value for value in (uuid, gi) if isinstance(value, dict))
        sums = self._gpm.get((uuid, gi))
        if sums is None:
            sums = self._gpm[uuid, gi] = GpmSums(self._lib, self._structs, gi, self._pci, self._beat)
        if not self._fatal:
            self._fatal = sums.read(gpu)
        return sums.values()

    def _ask(self, name: str, *arguments: Any) -> int:
        """Make one call and return its code. After a code of ``FATAL``, make no more calls and return that code."""
        if self._fatal:
            return self._fatal
        self._beat(name.encode(), self._pci)
        code = int(entry(self._lib, name)(*arguments))
        self._fatal = code if code in FATAL else 0
        return code

    def _uint(self, name: str, handle: Any) -> Any:
        value = ctypes.c_uint()
        code = self._ask(name, handle, ctypes.byref(value))
        return {"error": code} if code else value.value

    def _text(self, name: str, handle: Any) -> Any:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._ask(name, handle, text, ctypes.c_uint(_TEXT_BYTES))
        return {"error": code} if code else text.value.decode("ascii", "replace")

    def _placement(self, gpu: Any, gi: Any) -> Json:
        """Return the first memory slice of the GPU instance and the number of its memory slices."""
        if isinstance(gi, dict):
            return gi
        instance, info = ctypes.c_void_p(), self._structs.c_nvmlGpuInstanceInfo_t()
        code = self._ask("nvmlDeviceGetGpuInstanceById", gpu, ctypes.c_uint(gi), ctypes.byref(instance))
        code = code or self._ask("nvmlGpuInstanceGetInfo", instance, ctypes.byref(info))
        return {"error": code} if code else {"start": info.placement.start, "size": info.placement.size}

    def _memory(self, handle: Any) -> Json:
        memory = self._structs.c_nvmlMemory_v2_t(version=0x02000028)
        code = self._ask("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
        return {"error": code} if code else {"total_bytes": memory.total, "used_bytes": memory.used}

    def _sram_uncorrected(self, handle: Any) -> Any:
        kind, count = map(ctypes.c_uint, (_UNCORRECTED, _VOLATILE)), ctypes.c_ulonglong()
        code = self._ask("nvmlDeviceGetMemoryErrorCounter", handle, *kind, ctypes.c_uint(_SRAM), ctypes.byref(count))
        return {"error": code} if code else count.value

    def _processes(self, handle: Any) -> Any:
        """Return the process ids. A list longer than ``_PROCESSES`` is read once more with the room that NVML asks for."""
        name, count = "nvmlDeviceGetComputeRunningProcesses_v3", ctypes.c_uint(_PROCESSES)
        found = (self._structs.c_nvmlProcessInfo_v2_t * count.value)()
        code = self._ask(name, handle, ctypes.byref(count), found)
        if code == INSUFFICIENT_SIZE:
            found = (self._structs.c_nvmlProcessInfo_v2_t * count.value)()
            code = self._ask(name, handle, ctypes.byref(count), found)
        return {"error": code} if code else [process.pid for process in found[: count.value]]


def is_on(mode: Any) -> bool:
    """Say whether MIG is on, by the part ``mig_mode`` of nvml.json."""
    return isinstance(mode, dict) and mode.get("current") == 1
