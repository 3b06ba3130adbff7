"""Reads the NVLinks of one GPU, inside the NVML worker."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

Beat = Callable[[bytes, bytes], None]
Json = dict[str, Any]

NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
FATAL = (1, 9, 15)  # UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST: further calls for this GPU are useless
NO_RATE = (2, NOT_SUPPORTED, FUNCTION_NOT_FOUND)  # 2: INVALID_ARGUMENT, a field that this driver does not know
LINKS_MAX = 18  # NVML_NVLINK_MAX_LINKS
# field ids NVML_FI_DEV_NVLINK_ERROR_DL_*; their scopeId is the number of the link
LINK_FIELDS = {161: "replay_errors", 162: "recovery_errors", 163: "crc_errors"}
# NVLink 5 has other counters (NVML_FI_DEV_NVLINK_COUNT_*). A field that a GPU does not support is not read for ten minutes.
LINK_FIELDS |= {
    206: "malformed_packets",
    208: "receive_errors",
    214: "recoveries_failed",
    215: "recoveries",
    219: "effective_errors",
}
# Bit error rates of NVLink 5, as NVML packs them (NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, _SYMBOL_BER). Read once a minute.
BER_FIELDS = {220: "effective_ber_code", 222: "symbol_ber_code"}
LINK_COUNTERS = {0: "replay_errors", 1: "recovery_errors", 2: "crc_errors"}  # nvmlNvLinkErrorCounter_t


def entry(lib: Any, name: str) -> Any:
    """Return the library's function of this name. If the library (of another driver branch) has none, return a function that
    returns FUNCTION_NOT_FOUND."""
    return getattr(lib, name, _not_found)


def _not_found(*_: object) -> int:
    return FUNCTION_NOT_FOUND


class Links:
    """Reads the NVLinks of one GPU. ``found``: one entry of nvml.json per link that the GPU has."""

    def __init__(self, lib: Any, structs: Any, pci: bytes, beat: Beat) -> None:
        self.found: list[Json] = []
        self.fewer = False  # True when fewer links were found than before
        self.errors_by_call = False
        self.pci = pci
        self._lib = lib
        self._structs = structs
        self._beat = beat
        self._state = ctypes.c_uint()
        self._most = 0

    def forget(self) -> None:
        self.found = []

    def keep_rate(self, field: int, link: int, answer: int | Json) -> None:
        """Keep the answer for a bit error rate. If the GPU has no such field, the link has no such key."""
        if link >= len(self.found):
            return
        if isinstance(answer, dict) and answer["error"] in NO_RATE:
            self.found[link].pop(BER_FIELDS[field], None)
        else:
            self.found[link][BER_FIELDS[field]] = answer

    def find(self, handle: Any) -> int:
        """Find out how many NVLinks there are and which device is at the far end of each. Return 0, or the fatal return code."""
        lib, s = self._lib, self._structs
        old_links = self.found
        found: list[Json] = []
        for i in range(LINKS_MAX):
            self._beat(b"nvmlDeviceGetNvLinkState", self.pci)
            code = entry(lib, "nvmlDeviceGetNvLinkState")(handle, i, ctypes.byref(self._state))
            if code in FATAL:
                return int(code)
            if code in (2, NOT_SUPPORTED):  # INVALID_ARGUMENT: no such link
                break
            old = old_links[i] if i < len(old_links) else {}
            link: Json = {"active": 0, "version": 0, "remote": "", "crc_errors": 0, "replay_errors": 0, "recovery_errors": 0}
            link.update(old)
            version = ctypes.c_uint()
            self._beat(b"nvmlDeviceGetNvLinkVersion", self.pci)
            code = entry(lib, "nvmlDeviceGetNvLinkVersion")(handle, i, ctypes.byref(version))
            link["version"] = {"error": code} if code else version.value
            kind = ctypes.c_uint()
            self._beat(b"nvmlDeviceGetNvLinkRemoteDeviceType", self.pci)
            code = entry(lib, "nvmlDeviceGetNvLinkRemoteDeviceType")(handle, i, ctypes.byref(kind))
            if code:  # the remote address is still read, but it is not known whether it is that of a switch
                link["version"] = {"error": code}
            if code == 0 and kind.value == 2:  # NVML_NVLINK_DEVICE_TYPE_SWITCH
                link["remote"] = "switch"
            else:
                info = s.nvmlPciInfo_t()
                self._beat(b"nvmlDeviceGetNvLinkRemotePciInfo_v2", self.pci)
                code = entry(lib, "nvmlDeviceGetNvLinkRemotePciInfo_v2")(handle, i, ctypes.byref(info))
                link["remote"] = {"error": code} if code else bus_id(info)
            found.append(link)
        self._most = max(self._most, len(found))
        self.fewer = len(found) < self._most
        self.found = found
        return 0

    def read(self, handle: Any) -> int:
        """Read the states of the links. Return 0, or the fatal return code."""
        fn, state = entry(self._lib, "nvmlDeviceGetNvLinkState"), self._state
        where = ctypes.byref(state)
        if self.found:
            self._beat(b"nvmlDeviceGetNvLinkState", self.pci)
        for i, link in enumerate(self.found):
            code = fn(handle, i, where)
            if code in FATAL:
                return int(code)
            link["active"] = {"error": code} if code else state.value
        return 0

    def read_errors(self, handle: Any) -> int:
        """Read the error counters by a separate call if they are not among the field values. Return 0, or the fatal return
        code."""
        if self.errors_by_call and self.found:
            value = ctypes.c_ulonglong()
            fn = entry(self._lib, "nvmlDeviceGetNvLinkErrorCounter")
            self._beat(b"nvmlDeviceGetNvLinkErrorCounter", self.pci)
            for i, link in enumerate(self.found):
                for counter, key in LINK_COUNTERS.items():
                    code = fn(handle, i, counter, ctypes.byref(value))
                    if code in FATAL:
                        return int(code)
                    link[key] = {"error": code} if code else value.value
        return 0


def bus_id(info: Any) -> str:
    """Return nvmlPciInfo_t.busId "00000000:1B:00.0" as "0000:1b:00.0"."""
    text = info.busId  # a str, or bytes in older releases of the NVML binding
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
