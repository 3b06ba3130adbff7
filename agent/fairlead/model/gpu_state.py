"""Holds the values that settings observe on a GPU: application clocks, the range of the power limit, MIG instances."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_load import NOT_READ
from fairlead.model.missing import Missing


class MigInstance(Struct, frozen=True):
    """Describes a GPU instance: its profile as `nvidia-smi mig -lgip` names it ("3g.40gb"), its first memory slice, and the
    number of its compute instances. Slurm and CUDA use a GPU instance with one compute instance that fills it.

    size: the number of memory slices, and gi: NVML's id of the GPU instance. Both are -1 if nvml.json does not have them.
    """

    profile: str
    start: int
    compute: int
    size: int = -1
    gi: int = -1


class MigDevice(Struct, frozen=True, kw_only=True):
    """Describes a MIG device, which is what Slurm and CUDA see of one compute instance. ``uuid`` identifies it.

    The UUID and the ids gi (GPU instance) and ci (compute instance) change when the instance is made again. The first memory
    slice (start) and the number of memory slices (size) of its GPU instance do not. profile: "3g.40gb", or "1c.3g.40gb" for a
    compute instance with a part of its GPU instance. The compute instances of one GPU instance share its memory, so each of them
    has the same memory_total_bytes and memory_used_bytes. sram_uncorrected: errors since the driver was loaded. processes: the
    process ids of compute processes. activity: the GPM sums of the GPU instance.
    """

    uuid: str
    gi: int
    ci: int
    profile: str | Missing = NOT_READ
    start: int | Missing = NOT_READ
    size: int | Missing = NOT_READ
    memory_total_bytes: int | Missing = NOT_READ
    memory_used_bytes: int | Missing = NOT_READ
    sram_uncorrected: int | Missing = NOT_READ
    processes: tuple[int, ...] | Missing = NOT_READ
    activity: GpuActivity | Missing = NOT_READ


class GpuState(Struct, frozen=True, kw_only=True):
    """Holds the values of one GPU.

    application clocks: nvmlDeviceGet(Default)ApplicationsClock, which newer GPUs and drivers no longer have.
    power_minimum_watts: the lowest value of nvmlDeviceGetPowerManagementLimitConstraints. mig_instances: () while MIG is off.
    mig_profiles: the names of the profiles that the GPU offers, or () while MIG is off, because NVML then lists none.
    """

    application_sm_hertz: int | Missing = NOT_READ
    application_memory_hertz: int | Missing = NOT_READ
    application_default_sm_hertz: int | Missing = NOT_READ
    application_default_memory_hertz: int | Missing = NOT_READ
    clock_memory_max_hertz: int | Missing = NOT_READ
    power_minimum_watts: float | Missing = NOT_READ
    mig_instances: tuple[MigInstance, ...] | Missing = NOT_READ
    mig_profiles: tuple[str, ...] | Missing = NOT_READ
