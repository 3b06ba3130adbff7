"""Runs the NVML worker: a separate process, and the only one that loads NVML, so that a call that hangs blocks nothing else.

The parent (host.nvml) sends commands as lines on the worker's stdin. It also shares a page of memory with the worker (``BEAT``).
The worker writes the name of each call into that page before it makes the call. It writes answers to stdout as frames: length
(32 bit, little endian), kind (one byte: S snapshot, D difference, R result of ``set``), JSON. The worker ends when its stdin is
closed.

    sweep [closely]       -> S: a snapshot in nvml.json form, or D: the parts that differ from the last snapshot.
                             closely: read also the values that only thorough sweeps and metrics need
    set PCI WHAT VALUE    -> R: {"code": 0}
    reattach              releases NVML and attaches to it again in the next sweep
    quit
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fairlead.host import nvml_set
from fairlead.host.nvml_device import Device
from fairlead.host.nvml_frames import BEAT, FRAME, SentParts
from fairlead.host.nvml_links import FUNCTION_NOT_FOUND, Beat, Json, bus_id, entry
from fairlead.host.nvml_mig import Mig


def _pynvml() -> Any:
    """Import pynvml without ``ctypes.util``. pynvml imports that module, but never calls it on Linux. ``ctypes.util`` imports re,
    subprocess and tempfile, and takes a quarter of the worker's start time."""

    def find_library(name: str) -> str | None:
        from ctypes.util import find_library as find

        return find(name)

    late = ModuleType("ctypes.util")
    late.find_library = find_library  # type: ignore[attr-defined]
    ours = sys.modules.setdefault(late.__name__, late) is late
    try:
        import pynvml
    finally:
        if ours:
            del sys.modules[late.__name__]
    return pynvml


pynvml = _pynvml()
_UNINITIALIZED, _DRIVER_NOT_LOADED, _MISMATCH, _UNKNOWN = 1, 9, 18, 999
_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class Session:
    """Keeps NVML open from one sweep to the next, and attaches to it again after a driver reload."""

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._lib: Any = None
        self._error: Json = {"error": _UNINITIALIZED, "call": "nvmlInit_v2"}
        self._failures = 0
        self._next_try = 0.0
        self._count = 0
        self._devices: list[Device] = []
        self._lost: list[Json] = []  # identity and errors of GPUs without a handle
        self._identities: dict[int, Json] = {}  # identities by NVML index, also from earlier attachments
        self._system: Json = {}
        self.outdated = False  # True if the library in memory does not fit the loaded driver: a new process is needed

    def sweep(self, *, closely: bool = False) -> Json:
        """Return a snapshot of all GPUs in nvml.json form, or ``{"error": code, "call": name}`` when NVML as a whole fails."""
        now = time.monotonic()
        if self._lib is None and not self._attach(now):
            return {"schema": 1, **self._error}
        count = ctypes.c_uint()
        self._beat(b"nvmlDeviceGetCount_v2", b"")
        code = entry(self._lib, "nvmlDeviceGetCount_v2")(ctypes.byref(count))
        if code:
            return self._fail(code, "nvmlDeviceGetCount_v2")
        if count.value != self._count or self._lost or any(d.failed for d in self._devices):
            self._enumerate(count.value)
        for device in self._devices:
            code = device.sweep(now, closely=closely)
            if code in (_UNINITIALIZED, _DRIVER_NOT_LOADED):
                return self._fail(code, "nvmlDeviceGetMemoryInfo_v2")
        entries = [d.values for d in self._devices] + self._lost
        return {"schema": 1, **self._system, "gpus": sorted(entries, key=lambda e: e["index"])}

    def set(self, pci: str, what: str, value: str) -> int:
        """Change one setting of one GPU (``nvml_set``) and return NVML's code. The next sweep reads all values of the GPU."""
        if self._lib is None and not self._attach(time.monotonic()):
            return int(self._error["error"])
        handle = ctypes.c_void_p()
        self._beat(b"nvmlDeviceGetHandleByPciBusId_v2", pci.encode())
        code = entry(self._lib, "nvmlDeviceGetHandleByPciBusId_v2")(pci.encode(), ctypes.byref(handle))
        if code:
            return int(code)
        for device in self._devices:
            if device.identity["pci"] == pci:
                device.read_all_next()
        return nvml_set.make(Mig(self._lib, pynvml, handle, self._beat, pci.encode()), handle, what, value)

    def release(self) -> None:
        """Release NVML."""
        if self._lib is not None:
            for device in self._devices:
                device.end()
            self._beat(b"nvmlShutdown", b"")
            self._lib.nvmlShutdown()
        self._lib = None
        self._devices = []
        self._lost = []
        self._count = 0

    def _attach(self, now: float) -> bool:
        if now < self._next_try:
            return False
        self._beat(b"nvmlInit_v2", b"")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            code = int(getattr(e, "value", _UNKNOWN))
            self.outdated = code == _MISMATCH
            self._fail(code, "nvmlInit_v2")
            return False
        self._lib = pynvml.nvmlLib
        self._failures = 0
        version = ctypes.create_string_buffer(80)
        cuda = ctypes.c_int()
        driver_code = self._ask("nvmlSystemGetDriverVersion", version, 80)
        driver = version.value.decode("utf-8", "replace")
        nvml_code = self._ask("nvmlSystemGetNVMLVersion", version, 80)
        cuda_code = self._ask("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        self._system = {
            "driver_version": {"error": driver_code} if driver_code else driver,
            "nvml_version": {"error": nvml_code} if nvml_code else version.value.decode("utf-8", "replace"),
            "cuda_driver_version": {"error": cuda_code} if cuda_code else cuda.value,
        }
        return True

    def _ask(self, name: str, *args: Any) -> int:
        self._beat(name.encode(), b"")
        return int(entry(self._lib, name)(*args))

    def _fail(self, code: int, call: str) -> Json:
        if self._lib is not None:
            self.release()
        self._next_try = time.monotonic() + _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        self._error = {"error": code, "call": call}
        return {"schema": 1, **self._error}

    def _enumerate(self, count: int) -> None:
        """List the GPUs again. The same index may now mean another GPU, so the Device of a GPU is found by its PCI address."""
        known = {d.identity["pci"]: d for d in self._devices}
        self._count = count
        self._devices = []
        self._lost = []
        for index in range(count):
            handle = ctypes.c_void_p()
            info = pynvml.nvmlPciInfo_t()
            self._beat(b"nvmlDeviceGetHandleByIndex_v2", str(index).encode())
            code = entry(self._lib, "nvmlDeviceGetHandleByIndex_v2")(index, ctypes.byref(handle))
            if not code:
                self._beat(b"nvmlDeviceGetPciInfo_v3", str(index).encode())
                code = entry(self._lib, "nvmlDeviceGetPciInfo_v3")(handle, ctypes.byref(info))
            if code:
                identity = self._identities.get(index, {"index": index, "pci": ""})
                self._lost.append(_all_failed(identity, code))
                continue
            pci = bus_id(info)
            device = known.get(pci)
            if device is None:
                identity = {
                    **self._identify(handle, index, pci),
                    "pci_device_id": info.pciDeviceId,
                    "pci_subsystem_id": info.pciSubSystemId,
                }
                device = Device(self._lib, pynvml, handle, identity, self._beat)
            device.found(handle, index)
            self._identities[index] = device.identity
            self._devices.append(device)

    def _identify(self, handle: Any, index: int, pci: str) -> Json:
        """Return the values that do not change while the GPU is in its slot."""
        lib = self._lib
        where = pci.encode()

        def text(name: str, size: int, *before: Any) -> str | Json:
            buffer = ctypes.create_string_buffer(size)
            self._beat(name.encode(), where)
            fn = getattr(lib, name, None)
            code = fn(handle, *before, buffer, ctypes.c_uint(size)) if fn else FUNCTION_NOT_FOUND
            return {"error": code} if code else buffer.value.decode("utf-8", "replace")

        def number(name: str) -> int | Json:
            value = ctypes.c_uint()
            self._beat(name.encode(), where)
            fn = getattr(lib, name, None)
            code = fn(handle, ctypes.byref(value)) if fn else FUNCTION_NOT_FOUND
            return {"error": code} if code else value.value

        major, minor = ctypes.c_int(), ctypes.c_int()
        self._beat(b"nvmlDeviceGetCudaComputeCapability", where)
        code = entry(lib, "nvmlDeviceGetCudaComputeCapability")(handle, ctypes.byref(major), ctypes.byref(minor))
        return {
            "index": index,
            "pci": pci,
            "uuid": text("nvmlDeviceGetUUID", 96),
            "serial": text("nvmlDeviceGetSerial", 30),
            "minor": number("nvmlDeviceGetMinorNumber"),
            "name": text("nvmlDeviceGetName", 96),
            "board_part_number": text("nvmlDeviceGetBoardPartNumber", 80),
            "vbios_version": text("nvmlDeviceGetVbiosVersion", 32),
            "inforom_image_version": text("nvmlDeviceGetInforomImageVersion", 16),
            "architecture": number("nvmlDeviceGetArchitecture"),
            "brand": number("nvmlDeviceGetBrand"),
            "compute_capability": {"error": code} if code else [major.value, minor.value],
            "cores": number("nvmlDeviceGetNumGpuCores"),
        }


_PARTS = (
    "memory", "persistence_mode", "mig_mode", "ecc_mode", "ecc", "sram", "remap", "pcie", "temperature", "power", "clocks",
    "throttle_reasons", "utilization", "performance_state", "recovery_action", "fabric", "clock_events", "nvlink", "processes",
    "uuid", "serial", "minor", "name", "retired_pages", "inforom_valid", "application_clocks", "mig",
    "activity",
)  # fmt: skip


def _all_failed(identity: Json, code: int) -> Json:
    return {**{key: {"error": code} for key in _PARTS}, **identity}


def _write(kind: bytes, data: bytes) -> None:
    view = memoryview(FRAME.pack(len(data), kind[0]) + data)
    while view:
        view = view[os.write(1, view) :]


def _plain(payload: Any) -> bytes:
    import json  # imported at the first answer, which most workers of a driver that hangs never give

    return json.dumps(payload).encode()


def _quick() -> Callable[[Any], bytes]:
    import msgspec  # its import takes a third of a worker's start time, but it encodes ten times faster than json

    return msgspec.json.encode


def main(beat_fd: int) -> None:
    """Execute commands until stdin ends. ``beat_fd``: the descriptor of the shared page."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the parent, even while a call hangs
    page = mmap.mmap(beat_fd, mmap.PAGESIZE)
    number = 0
    pack, now = BEAT.pack_into, time.monotonic  # a sweep of eight GPUs makes more than a hundred calls

    def beat(call: bytes, pci: bytes) -> None:
        nonlocal number
        number += 1
        pack(page, 0, number, now(), call, pci)

    answers = 0
    encode: Callable[[Any], bytes] = _plain

    def answer(kind: bytes, payload: Any) -> None:
        nonlocal answers, encode
        beat(b"", b"")
        _write(kind, encode(payload))
        answers += 1
        if answers == 2:  # only the agent wants more answers: `fairlead apply` and `check` want one or two
            encode = _quick()

    session, sent = Session(beat), SentParts()
    frozen = False
    pending = b""
    while data := os.read(0, 4096):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            words = line.decode("ascii", "replace").split()
            if words[:1] == ["sweep"]:
                snapshot = session.sweep(closely=words[1:] == ["closely"])
                answer(*sent.frame(snapshot))
                if not frozen:
                    frozen = True
                    gc.freeze()
                    gc.set_threshold(100_000)  # a sweep makes no reference cycles, so there is little to collect
                if session.outdated:
                    return
            elif words[:1] == ["set"] and len(words) == 4:
                answer(b"R", {"code": session.set(words[1], words[2], words[3])})
            elif words == ["reattach"]:
                session.release()
                beat(b"", b"")
            elif words == ["quit"]:
                session.release()
                return
            else:
                sys.exit(f"nvml worker: unknown command {line[:80]!r}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
