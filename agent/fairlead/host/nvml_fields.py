"""Reads many values of a GPU with one nvmlDeviceGetFieldValues call. Each value has its own return code.

This module has its own table of field ids, because nvml.h renumbered 199, 200 and all ids from 251 on between driver branches.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from fairlead.host.nvml_links import FUNCTION_NOT_FOUND, Json

ValuePath = tuple[str, str | None]  # part and key in a GPU's entry of nvml.json

# field id (nvml.h, NVML_FI_*) -> part and key in nvml.json
FAST_FIELDS: dict[int, ValuePath] = {  # judged at every sweep
    3: ("ecc", "volatile_corrected"),
    4: ("ecc", "volatile_uncorrected"),
    5: ("ecc", "aggregate_corrected"),
    6: ("ecc", "aggregate_uncorrected"),
    29: ("retired_pages", "single_bit"),
    30: ("retired_pages", "double_bit"),
    31: ("retired_pages", "pending"),
    230: ("recovery_action", None),
}
NEAR_FIELDS: dict[int, ValuePath] = {  # read only in a sweep with ``closely``
    82: ("temperature", "memory_celsius"),
    83: ("power", "energy_millijoules"),
    94: ("pcie", "replays"),
    197: ("pcie", "transmit_bytes"),
    198: ("pcie", "receive_bytes"),
}
FIELDS = FAST_FIELDS | NEAR_FIELDS
# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_FIELD = struct.Struct("<IIqqIIQ")
_ANSWER = struct.Struct("<II16xIIQ")  # without timestamp and latencyUsec, which are new each time
_MASK = {1: 0xFFFFFFFF, 2: 2**64 - 1, 3: 2**64 - 1, 6: 0xFFFF}  # unsigned int, long, long long, short
_SIGNED = {4: 64, 5: 32}


class Batch:
    """Makes one nvmlDeviceGetFieldValues call for several pairs of field id and scope. Every pair has its own return code."""

    def __init__(self, lib: Any, handle: Any, wanted: list[tuple[int, int]]) -> None:
        self._fn = getattr(lib, "nvmlDeviceGetFieldValues", None)
        self._handle = handle
        self.wanted = wanted
        self._template = b"".join(_FIELD.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in wanted)
        self._buffer = (ctypes.c_char * len(self._template)).from_buffer_copy(self._template)
        self._count = ctypes.c_int(len(wanted))
        self._said: list[tuple[int, ...]] = []
        self._again = 0  # how many times in a row the entries were the same as before

    def read(self, *, again: bool = False) -> int | list[tuple[int, int, int | Json]]:
        """Return (id, scope, value or error) of each entry. Return [] if all entries are the same as in the two reads before,
        except with ``again``. If the call itself fails, return its return code."""
        if self._fn is None:
            return FUNCTION_NOT_FOUND
        ctypes.memmove(self._buffer, self._template, len(self._template))
        code = self._fn(self._handle, self._count, self._buffer)
        if code:
            self._said = []
            return int(code)
        entries = [*_ANSWER.iter_unpack(self._buffer)]
        self._again = self._again + 1 if entries == self._said else 0
        if self._again > 1 and not again:
            return []
        self._said = entries
        return [(f, s, field_value(kind, raw) if not ret else {"error": ret}) for f, s, kind, ret, raw in entries]


def field_value(kind: int, raw: int) -> int:
    """Return the value of the union nvmlValue_t by its nvmlValueType_t."""
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
