"""Holds facts beside ``Gpu`` and ``Driver``: how a GPU behaves under load, and which driver software is there.

They are plain frozen values as in ``facts``, with units in the names.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.missing import Missing, unreadable

NOT_READ = unreadable("not read")

#: nvml.h, nvmlClocksEventReason* (nvmlClocksThrottleReason* before r535): bit, name.
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
    """Says how a GPU is connected to its NVLink fabric (nvmlDeviceGetGpuFabricInfoV, nvml.h nvmlGpuFabricInfo_v2_t).

    state: 0 not supported, 1 not started, 2 in progress, 3 completed. status: an nvmlReturn_t, which counts once the state is
    completed. cluster: 32 hexadecimal digits. health: bit fields NVML_GPU_FABRIC_HEALTH_MASK_*; Missing where the driver has
    none.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health: int | Missing = NOT_READ


class ClockEvents(Struct, frozen=True, kw_only=True):
    """Holds the driver's own counters of how long clocks were slowed down, in seconds since it loaded.

    NVML_FI_DEV_PERF_POLICY_* (74 to 79) and NVML_FI_DEV_CLOCKS_EVENT_REASON_* (from r575 on) are both in nanoseconds.
    """

    sw_power_cap_seconds: float | Missing = NOT_READ
    thermal_seconds: float | Missing = NOT_READ
    sync_boost_seconds: float | Missing = NOT_READ
    board_limit_seconds: float | Missing = NOT_READ
    reliability_seconds: float | Missing = NOT_READ
    hw_thermal_slowdown_seconds: float | Missing = NOT_READ
    hw_power_brake_slowdown_seconds: float | Missing = NOT_READ


class LoadSeen(Struct, frozen=True, kw_only=True):
    """Holds sums over the sweeps of one process, which grow from 0: how long a GPU was loaded, and what slowed its clocks
    meanwhile.

    busy_seconds: at ``LOAD_PERCENT`` or more (in MIG mode: not idle). reasons_seconds: seconds of these with each of
    ``REASONS``, in its order. brake_seconds: with the power brake, loaded or not. free_seconds: loaded without any reason.
    free_cycles: SM clock cycles in free_seconds (mean clock = cycles / seconds).
    """

    busy_seconds: float = 0.0
    reasons_seconds: tuple[float, ...] = (0.0,) * len(REASONS)
    watched_seconds: float = 0.0
    brake_seconds: float = 0.0
    free_seconds: float = 0.0
    free_cycles: float = 0.0


class GpuLoad(Struct, frozen=True, kw_only=True):
    """Holds limits, temperatures and fabric of one GPU, and what was seen of its clocks.

    margin_celsius: nvmlDeviceGetMarginTemperature (driver r570 and later): degrees to the nearest slowdown, below 0 past it.
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
    """Says to whom a process on a GPU belongs, by its control group, which no user can choose (/proc/PID/cgroup).

    job: the Slurm job; 0 for a job that cannot be named (Slurm 26.05's SLUID without a record). unit: the systemd unit below
    system.slice, or the outermost group. uid: of a login session. gone: there is no such process, although NVML lists it.
    """

    job: int | None = None
    unit: str = ""
    uid: int | None = None
    gone: bool = False


class Software(Struct, frozen=True, kw_only=True):
    """Describes the driver's software on disk and in the kernel.

    library_file: the version that libnvidia-ml.so.1 leads to, which processes started from now on load; None: its name holds
    no version. open_module: the open kernel modules are loaded. kernel: (major, minor). peermem: nvidia_peermem or nv_peer_mem
    is loaded. imex_channels: devices in /dev/nvidia-caps-imex-channels.
    """

    library_file: str | Missing | None = NOT_READ
    open_module: bool | Missing = NOT_READ
    kernel: tuple[int, int] | Missing = NOT_READ
    peermem: bool | Missing = NOT_READ
    imex_channels: int | Missing = NOT_READ
