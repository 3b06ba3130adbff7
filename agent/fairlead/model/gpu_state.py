"""Holds the values that settings observe on a GPU: application clocks, the range of the power limit, MIG instances."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.gpu_load import NOT_READ
from fairlead.model.missing import Missing


class MigInstance(Struct, frozen=True):
    """Describes a GPU instance: its profile as `nvidia-smi mig -lgip` names it ("3g.40gb"), its first memory slice, and the
    number of its compute instances. Slurm and CUDA use a GPU instance with one compute instance that fills it."""

    profile: str
    start: int
    compute: int


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
