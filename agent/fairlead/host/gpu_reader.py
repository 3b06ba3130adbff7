"""Reads typed values out of one GPU's part of nvml.json. This conversion is pure.

Where NVML had no value, nvml.json has ``{"error": CODE}``, and CODE is an nvmlReturn_t. It becomes Missing(UNSUPPORTED) only
if the hardware profile lists the field in ``unsupported``, else Missing(UNREADABLE). Anything malformed is Missing too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.model.facts import Missing, Why, unreadable

GPU_IS_LOST = 15
# nvml.h, nvmlReturn_t
RETURN_NAMES = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    999: "UNKNOWN",
}  # fmt: skip


def return_text(code: int) -> str:
    """Return an nvmlReturn_t as text, such as "NVML NOT_SUPPORTED (3)"."""
    return f"NVML {RETURN_NAMES.get(code, 'ERROR')} ({code})"


class GpuReader:
    """Reads typed values out of one GPU's part of nvml.json.

    ``path`` is a dotted path in nvml.json. ``field`` is the dotted field of Gpu that the value is for. The hardware profile
    lists such fields in ``unsupported``.
    """

    __slots__ = ("raw", "unsupported")

    def __init__(self, raw: Mapping[str, Any], unsupported: frozenset[str] = frozenset()) -> None:
        self.raw = raw
        self.unsupported = unsupported

    def missing(self, field: str, why: str | int) -> Missing:
        """Return Missing for this field; ``why`` is an NVML return code or a sentence."""
        if isinstance(why, int):
            group = field.partition(".")[0]
            declared = field in self.unsupported or group in self.unsupported
            return Missing(Why.UNSUPPORTED if declared and why != GPU_IS_LOST else Why.UNREADABLE, return_text(why))
        return unreadable(why)

    def value(self, path: str, field: str) -> Any:
        """Return the value at this path, or Missing."""
        value: Any = self.raw
        for key in path.split("."):
            if not isinstance(value, dict):
                return self.missing(field, f"nvml: {path} is not there")
            if "error" in value:
                break
            if key not in value:
                return self.missing(field, f"nvml: {path} is not there")
            value = value[key]
        if isinstance(value, dict) and "error" in value:
            code = value["error"]
            return self.missing(field, code if type(code) is int else f"nvml: {path}: error is no number")
        return value

    def number(self, path: str, field: str) -> int | Missing:
        """Return the whole number at this path; true and false count as 1 and 0."""
        value = self.value(path, field)
        if isinstance(value, Missing) or type(value) is int:
            return value
        if isinstance(value, bool):
            return int(value)
        return self.missing(field, f"nvml: {path} is {type(value).__name__}, not a number")

    def flag(self, path: str, field: str) -> bool | Missing:
        """Return whether the number at this path is not 0."""
        value = self.number(path, field)
        return value if isinstance(value, Missing) else value != 0

    def text(self, path: str, field: str) -> str | Missing:
        """Return the text at this path; an empty one is Missing."""
        value = self.value(path, field)
        if isinstance(value, Missing) or (isinstance(value, str) and value):
            return value
        return self.missing(field, f"nvml: {path} is {'empty' if value == '' else type(value).__name__}")

    def watts(self, path: str, field: str) -> float | Missing:
        """Return the milliwatts at this path as watts."""
        value = self.number(path, field)
        return value if isinstance(value, Missing) else value / 1000

    def items(self, path: str, field: str) -> list[Any] | Missing:
        """Return the list at this path."""
        value = self.value(path, field)
        return value if isinstance(value, (list, Missing)) else self.missing(field, f"nvml: {path} is not a list")
