"""Holds what a GPU or a MIG device did since the agent began to read it: sums of seconds, joules and bytes.

Each sum only grows while one agent process runs. A new agent process begins at 0 again. A value that the GPU does not have, or
that could not be read, is Missing and never 0.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.missing import Missing, unreadable

_NOT_READ = unreadable("not read")


class GpuActivity(Struct, frozen=True, kw_only=True):
    """Holds the sums of one GPU or one MIG device.

    measured_seconds: the time in which the utilisation is known. gap_seconds: the time in which it is not known, although the
    agent ran: the driver did not answer, or its sample buffer had lost samples. Both together are the time since the first
    reading.
    busy_seconds: the integral of the utilisation (the share of time in which a kernel ran) over measured_seconds, by
    nvmlDeviceGetSamples with NVML_GPU_UTILIZATION_SAMPLES. spot_seconds: the part of measured_seconds for which the driver gave
    no samples, so that the last value of nvmlDeviceGetUtilizationRates stands for the whole time between two readings.
    gpm_seconds: the time that pairs of GPM samples cover (Hopper and later). sm_active_seconds, tensor_active_seconds and
    dram_active_seconds: the integrals of GPM metrics 2, 5 and 10 over gpm_seconds.
    energy_joules: the increase of the driver's energy counter (field 83). A counter that went back (the driver was loaded again)
    adds nothing, and the time between these two readings is added to energy_gap_seconds.
    energy_counter_joules: the counter itself, in joules since the driver was loaded.
    pcie_*_bytes: the increase of fields 197 and 198. nvlink_*_bytes: the increase over all NVLinks of the GPU.
    """

    measured_seconds: float = 0.0
    gap_seconds: float = 0.0
    busy_seconds: float | Missing = _NOT_READ
    spot_seconds: float = 0.0
    gpm_seconds: float = 0.0
    sm_active_seconds: float | Missing = _NOT_READ
    tensor_active_seconds: float | Missing = _NOT_READ
    dram_active_seconds: float | Missing = _NOT_READ
    energy_joules: float | Missing = _NOT_READ
    energy_gap_seconds: float = 0.0
    energy_counter_joules: float | Missing = _NOT_READ
    pcie_transmit_bytes: int | Missing = _NOT_READ
    pcie_receive_bytes: int | Missing = _NOT_READ
    nvlink_transmit_bytes: int | Missing = _NOT_READ
    nvlink_receive_bytes: int | Missing = _NOT_READ
