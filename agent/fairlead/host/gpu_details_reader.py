"""Reads the static facts of one GPU (VBIOS, part number, ...) from its part of nvml.json. This conversion is pure."""

from __future__ import annotations

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Missing
from fairlead.model.gpu_details import GpuDetails

#: The static facts are made of these parts of nvml.json.
PARTS = (
    "vbios_version", "board_part_number", "inforom_image_version", "architecture", "brand", "compute_capability", "cores",
    "compute_mode", "accounting_mode", "bar1", "cpu_affinity", "numa",
)  # fmt: skip


def details(read: GpuReader) -> GpuDetails:
    """Return the static facts of a GPU. A value that cannot be read is Missing."""
    capability = read.items("compute_capability", "details.compute_major")
    major = capability if isinstance(capability, Missing) else capability[0] if capability else 0
    return GpuDetails(
        board_part_number=read.text("board_part_number", "details.board_part_number"),
        vbios_version=read.text("vbios_version", "details.vbios_version"),
        inforom_image_version=read.text("inforom_image_version", "details.inforom_image_version"),
        architecture=read.number("architecture", "details.architecture"),
        brand=read.number("brand", "details.brand"),
        compute_major=major if isinstance(major, Missing | int) else 0,
        cores=read.number("cores", "details.cores"),
        compute_mode=read.number("compute_mode", "details.compute_mode"),
        accounting_mode=read.number("accounting_mode", "details.accounting_mode"),
        bar1_bytes=read.number("bar1.total_bytes", "details.bar1_bytes"),
        cpu_affinity=read.text("cpu_affinity", "details.cpu_affinity"),
        memory_node=read.number("numa", "details.memory_node"),
    )
