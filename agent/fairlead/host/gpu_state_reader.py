"""Reads the settings of one GPU (clocks, power limits, MIG) from its part of nvml.json. This conversion is pure."""

from __future__ import annotations

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Missing, unreadable
from fairlead.model.gpu_state import GpuState, MigInstance

#: The state is made of these parts of nvml.json.
PARTS = ("application_clocks", "clocks.memory_max_hertz", "power.minimum_limit_milliwatts", "mig")


def state(read: GpuReader) -> GpuState:
    """Return the clocks, power limits and MIG instances that a GPU is set to. A value that cannot be read is Missing."""
    return GpuState(
        application_sm_hertz=read.number("application_clocks.sm_hertz", "state.application_sm_hertz"),
        application_memory_hertz=read.number("application_clocks.memory_hertz", "state.application_memory_hertz"),
        application_default_sm_hertz=read.number("application_clocks.default_sm_hertz", "state.application_default_sm_hertz"),
        application_default_memory_hertz=read.number(
            "application_clocks.default_memory_hertz", "state.application_default_memory_hertz"
        ),
        clock_memory_max_hertz=read.number("clocks.memory_max_hertz", "state.clock_memory_max_hertz"),
        power_minimum_watts=read.watts("power.minimum_limit_milliwatts", "state.power_minimum_watts"),
        mig_instances=_instances(read),
        mig_profiles=_profiles(read),
    )


def _instances(read: GpuReader) -> tuple[MigInstance, ...] | Missing:
    found = read.items("mig.instances", "state.mig_instances")
    if isinstance(found, Missing):
        return found
    try:
        return tuple(
            MigInstance(str(i["profile"]), int(i["start"]), int(i["compute"]), int(i.get("size", -1)), int(i.get("gi", -1)))
            for i in found
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return unreadable("nvml: mig.instances holds an entry that is no instance")


def _profiles(read: GpuReader) -> tuple[str, ...] | Missing:
    found = read.items("mig.profiles", "state.mig_profiles")
    return found if isinstance(found, Missing) else tuple(str(p) for p in found)
