"""What only health asks of a GPU: retired pages, errors on its PCIe link as the kernel counts them."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.missing import Missing


class RetiredPages(Struct, frozen=True, kw_only=True):
    """Memory pages that are used no more (NVML_FI_DEV_RETIRED_SBE, _DBE, _PENDING): GPUs before Ampere, which cannot remap
    rows. ``pending``: pages wait for the driver to be loaded anew."""

    single_bit: int | Missing
    double_bit: int | Missing
    pending: bool | Missing


class AerCounts(Struct, frozen=True, kw_only=True):
    """Advanced Error Reporting messages of one PCI function since it was found: TOTAL_ERR_COR, TOTAL_ERR_NONFATAL and
    TOTAL_ERR_FATAL of /sys/bus/pci/devices/X/aer_dev_* (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats)."""

    correctable: int | Missing
    nonfatal: int | Missing
    fatal: int | Missing
