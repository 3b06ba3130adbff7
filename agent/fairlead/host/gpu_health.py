"""Health facts of one GPU from its part of nvml.json. Pure conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.facts import Missing
from fairlead.model.gpu_health import RetiredPages

if TYPE_CHECKING:
    from fairlead.host.gpu import Reader

CORRUPTED_INFOROM = 14


def retired(read: Reader) -> RetiredPages | Missing:
    """Missing as a whole only when nothing of it can be read, for one reason."""
    single = read.number("retired_pages.single_bit", "retired.single_bit")
    double = read.number("retired_pages.double_bit", "retired.double_bit")
    pending = read.flag("retired_pages.pending", "retired.pending")
    if isinstance(single, Missing) and single == double == pending:
        return single
    return RetiredPages(single_bit=single, double_bit=double, pending=pending)


def inforom_valid(read: Reader) -> bool | Missing:
    """nvmlDeviceValidateInforom answers by its return code alone: CORRUPTED_INFOROM (14) is an answer."""
    value = read.raw.get("inforom_valid")
    if isinstance(value, dict) and value.get("error") == CORRUPTED_INFOROM:
        return False
    return read.flag("inforom_valid", "inforom_valid")
