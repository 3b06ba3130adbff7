"""Holds facts of a GPU that only health checks need: retired pages, and PCIe errors as the kernel counts them."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.missing import Missing


class RetiredPages(Struct, frozen=True, kw_only=True):
    """Counts memory pages that are not used any more (NVML_FI_DEV_RETIRED_SBE, _DBE, _PENDING), on GPUs before Ampere, which
    cannot remap rows. ``pending``: True if pages will be retired when the driver is loaded again."""

    single_bit: int | Missing
    double_bit: int | Missing
    pending: bool | Missing


class AerCounts(Struct, frozen=True, kw_only=True):
    """Counts Advanced Error Reporting messages of one PCI function since the kernel found the function: TOTAL_ERR_COR,
    TOTAL_ERR_NONFATAL and TOTAL_ERR_FATAL of /sys/bus/pci/devices/X/aer_dev_*
    (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""

    correctable: int | Missing
    nonfatal: int | Missing
    fatal: int | Missing
