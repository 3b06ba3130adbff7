"""Holds further facts of GPUs and of the driver: how a GPU behaves under load, and which driver software is installed.

These facts are plain frozen values like those in ``facts``, with units in the names.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.missing import Missing, unreadable

NOT_READ = unreadable("not read")

#: The bit and the name of each reason: nvml.h, nvmlClocksEventReason* (nvmlClocksThrottleReason* before r535).
REASONS = (
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
#: From this utilisation on, a GPU counts as loaded (nvmlDeviceGetUtilizationRates: percent of time in which a kernel ran).
LOAD_PERCENT = 50


class GpuFabric(Struct, frozen=True, kw_only=True):
    """Describes how a GPU is connected to its NVLink fabric (nvmlDeviceGetGpuFabricInfoV, nvml.h nvmlGpuFabricInfo_v2_t).

    state: 0 not supported, 1 not started, 2 in progress, 3 completed. status: an nvmlReturn_t, which is valid once the state is
    completed. cluster: 32 hexadecimal digits. health: bit fields NVML_GPU_FABRIC_HEALTH_MASK_*, or Missing if the driver does
    not report them.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health: int | Missing = NOT_READ


class ClockEvents(Struct, frozen=True, kw_only=True):
    """Holds the driver's own counters of how long clocks were slowed down, in seconds since the driver was loaded.

    The sources are NVML_FI_DEV_PERF_POLICY_* (74 to 79) and NVML_FI_DEV_CLOCKS_EVENT_REASON_* (from r575 on), in nanoseconds.
    """

    sw_power_cap_seconds: float | Missing = NOT_READ
    thermal_seconds: float | Missing = NOT_READ
    sync_boost_seconds: float | Missing = NOT_READ
    board_limit_seconds: float | Missing = NOT_READ
    reliability_seconds: float | Missing = NOT_READ
    hw_thermal_slowdown_seconds: float | Missing = NOT_READ
    hw_power_brake_slowdown_seconds: float | Missing = NOT_READ


class LoadSeen(Struct, frozen=True, kw_only=True):
    """Holds sums over all sweeps since this process started: how long a GPU was loaded, and what slowed its clocks meanwhile.

    busy_seconds: the time at ``LOAD_PERCENT`` or more (in MIG mode: the time in which the GPU was not idle). reasons_seconds:
    the part of busy_seconds with each reason, in the order of ``REASONS``. watched_seconds: the time in which the reasons were
    read, loaded or not. brake_seconds: the part of watched_seconds with the power brake. free_seconds: the part of busy_seconds
    without a reason that slows clocks. free_cycles: SM clock cycles in free_seconds (mean clock = cycles / seconds).
    """

    busy_seconds: float = 0.0
    reasons_seconds: tuple[float, ...] = (0.0,) * len(REASONS)
    watched_seconds: float = 0.0
    brake_seconds: float = 0.0
    free_seconds: float = 0.0
    free_cycles: float = 0.0


class GpuLoad(Struct, frozen=True, kw_only=True):
    """Holds limits, temperatures and fabric of one GPU, and what was seen of its clocks.

    margin_celsius: nvmlDeviceGetMarginTemperature (driver r570 and later). It is the number of degrees below the nearest
    slowdown temperature, and negative above that temperature.
    """

    margin_celsius: int | Missing = NOT_READ
    slowdown_celsius: int | Missing = NOT_READ
    shutdown_celsius: int | Missing = NOT_READ
    memory_celsius: int | Missing = NOT_READ
    memory_max_celsius: int | Missing = NOT_READ
    clock_sm_max_hertz: int | Missing = NOT_READ
    power_default_watts: float | Missing = NOT_READ
    power_maximum_watts: float | Missing = NOT_READ
    fabric: GpuFabric | Missing = NOT_READ
    events: ClockEvents = ClockEvents()
    seen: LoadSeen = LoadSeen()


class ProcessOwner(Struct, frozen=True, kw_only=True):
    """Describes the owner of a process on a GPU, by its control group, which no user can choose (/proc/PID/cgroup).

    job: the id of the Slurm job, 0 if the id is not known (Slurm 26.05's SLUID without a job record), or None outside of jobs.
    unit: the systemd unit below system.slice, or the outermost group. uid: the user of a login session. gone: True if the
    process has ended although NVML lists it.
    """

    job: int | None = None
    unit: str = ""
    uid: int | None = None
    gone: bool = False


class Software(Struct, frozen=True, kw_only=True):
    """Describes the driver's software on disk and in the kernel.

    library_file: the version of the library that new processes load, which is in the name of the file that libnvidia-ml.so.1
    leads to. It is None if that name has no version. open_module: whether the open kernel modules are loaded. kernel: the Linux
    version (major, minor). peermem: whether nvidia_peermem or nv_peer_mem is loaded. imex_channels: the number of devices in
    /dev/nvidia-caps-imex-channels.
    """

    library_file: str | Missing | None = NOT_READ
    open_module: bool | Missing = NOT_READ
    kernel: tuple[int, int] | Missing = NOT_READ
    peermem: bool | Missing = NOT_READ
    imex_channels: int | Missing = NOT_READ
