"""Holds what a GPU is set to: application clocks, the range of its power limit, MIG instances. Settings observe it here."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.gpu_load import NOT_READ
from fairlead.model.missing import Missing


class MigInstance(Struct, frozen=True):
    """Describes a GPU instance: its profile as `nvidia-smi mig -lgip` names it ("3g.40gb"), its first memory slice, and how
    many compute instances it holds. Slurm and CUDA use one compute instance that fills it."""

    profile: str
    start: int
    compute: int


class GpuState(Struct, frozen=True, kw_only=True):
    """Holds the application clocks (nvmlDeviceGet(Default)ApplicationsClock), which newer GPUs and drivers no longer have.

    power_minimum_watts: nvmlDeviceGetPowerManagementLimitConstraints. mig_instances: () while MIG is off. mig_profiles: the
    names of the profiles that the GPU offers; () while MIG is off, since NVML lists them only while it is on.
    """

    application_sm_hertz: int | Missing = NOT_READ
    application_memory_hertz: int | Missing = NOT_READ
    application_default_sm_hertz: int | Missing = NOT_READ
    application_default_memory_hertz: int | Missing = NOT_READ
    clock_memory_max_hertz: int | Missing = NOT_READ
    power_minimum_watts: float | Missing = NOT_READ
    mig_instances: tuple[MigInstance, ...] | Missing = NOT_READ
    mig_profiles: tuple[str, ...] | Missing = NOT_READ
