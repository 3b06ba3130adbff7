"""Holds static facts of a GPU (part number, VBIOS, ...). No check judges their values. ``checks.gpu_readings`` warns if such a
fact was readable before and is now unreadable. ``model.rma_evidence`` shows the facts that a vendor asks for."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.gpu_load import NOT_READ
from fairlead.model.missing import Missing


class GpuDetails(Struct, frozen=True, kw_only=True):
    """Describes the card, the firmware and the modes of a GPU. The numbers are those of nvml.h. memory_node: the NUMA node that
    nvmlDeviceGetMemoryAffinity returns."""

    board_part_number: str | Missing = NOT_READ
    vbios_version: str | Missing = NOT_READ
    inforom_image_version: str | Missing = NOT_READ
    architecture: int | Missing = NOT_READ
    brand: int | Missing = NOT_READ
    compute_major: int | Missing = NOT_READ
    cores: int | Missing = NOT_READ
    compute_mode: int | Missing = NOT_READ
    accounting_mode: int | Missing = NOT_READ
    bar1_bytes: int | Missing = NOT_READ
    cpu_affinity: str | Missing = NOT_READ
    memory_node: int | Missing = NOT_READ
