"""Reads the health facts of one GPU from its part of nvml.json. This conversion is pure."""

from __future__ import annotations

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Missing
from fairlead.model.gpu_health import RetiredPages

CORRUPTED_INFOROM = 14


def retired(read: GpuReader) -> RetiredPages | Missing:
    """Return the retired page counts, or one Missing if none of them can be read and the reason is the same for all."""
    single = read.number("retired_pages.single_bit", "retired.single_bit")
    double = read.number("retired_pages.double_bit", "retired.double_bit")
    pending = read.flag("retired_pages.pending", "retired.pending")
    if isinstance(single, Missing) and single == double == pending:
        return single
    return RetiredPages(single_bit=single, double_bit=double, pending=pending)


def inforom_valid(read: GpuReader) -> bool | Missing:
    """Return whether the infoROM is valid. nvmlDeviceValidateInforom returns CORRUPTED_INFOROM if it is not valid."""
    value = read.raw.get("inforom_valid")
    if isinstance(value, dict) and value.get("error") == CORRUPTED_INFOROM:
        return False
    return read.flag("inforom_valid", "inforom_valid")
