"""Reads ``GpuLoad`` from a GPU's part of nvml.json, and adds up over sweeps for how long the GPU was busy or throttled.

Only ``LoadSums`` has a state.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Gpu
from fairlead.model.gpu_load import REASONS, ClockEvents, GpuFabric, GpuLoad, LoadSeen
from fairlead.model.load_window import is_busy
from fairlead.model.missing import Missing

#: ``load`` is made of these parts of nvml.json. They do not change from one second to the next.
PARTS = (
    "temperature.margin_celsius", "temperature.slowdown_celsius", "temperature.shutdown_celsius", "temperature.memory_celsius",
    "temperature.memory_max_celsius", "clocks.sm_max_hertz", "power.default_limit_milliwatts", "power.maximum_limit_milliwatts",
    "fabric", "clock_events",
)  # fmt: skip
GAP_SECONDS = 60.0  # a longer gap is not counted: nobody knows what the clocks did in it
_IDLE = 0x001
_BRAKE = 0x080


def load(read: GpuReader) -> GpuLoad:
    """Return limits, temperatures, fabric state and clock event counters. ``LoadSums`` adds the sums over sweeps."""
    return GpuLoad(
        margin_celsius=read.number("temperature.margin_celsius", "load.margin_celsius"),
        slowdown_celsius=read.number("temperature.slowdown_celsius", "load.slowdown_celsius"),
        shutdown_celsius=read.number("temperature.shutdown_celsius", "load.shutdown_celsius"),
        memory_celsius=read.number("temperature.memory_celsius", "load.memory_celsius"),
        memory_max_celsius=read.number("temperature.memory_max_celsius", "load.memory_max_celsius"),
        clock_sm_max_hertz=read.number("clocks.sm_max_hertz", "load.clock_sm_max_hertz"),
        power_default_watts=read.watts("power.default_limit_milliwatts", "load.power_default_watts"),
        power_maximum_watts=read.watts("power.maximum_limit_milliwatts", "load.power_maximum_watts"),
        fabric=_fabric(read),
        events=_events(read),
    )


def _fabric(read: GpuReader) -> GpuFabric | Missing:
    state = read.number("fabric.state", "load.fabric")
    status = read.number("fabric.status", "load.fabric")
    clique = read.number("fabric.clique_id", "load.fabric")
    cluster = read.text("fabric.cluster_uuid", "load.fabric")
    if isinstance(state, Missing):
        return state
    if isinstance(status, Missing) or isinstance(clique, Missing) or isinstance(cluster, Missing):
        return next(v for v in (status, clique, cluster) if isinstance(v, Missing))
    health = read.number("fabric.health_mask", "load.fabric.health")
    return GpuFabric(state=state, status=status, clique=clique, cluster=cluster, health=health)


def _events(read: GpuReader) -> ClockEvents:
    names = [name.removesuffix("_seconds") for name in ClockEvents.__struct_fields__]
    values = {n: read.number(f"clock_events.{n}_nanoseconds", f"load.events.{n}_seconds") for n in names}
    return ClockEvents(**{f"{n}_seconds": v if isinstance(v, Missing) else v / 1e9 for n, v in values.items()})


class LoadSums:
    """Adds up from sweep to sweep for how many seconds each GPU was busy or throttled, by PCI address."""

    def __init__(self) -> None:
        self._sums: dict[str, LoadSeen] = {}
        self._last: float | None = None

    def add(self, gpus: tuple[Gpu, ...], now: float) -> tuple[Gpu, ...]:
        """Return the GPUs with their sums up to now. ``now``: seconds of a clock that does not jump."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        if not 0 < passed <= GAP_SECONDS:
            passed = 0.0
        return tuple(self._with_sums(gpu, passed) for gpu in gpus)

    def _with_sums(self, gpu: Gpu, passed: float) -> Gpu:
        sums = self._sums.get(gpu.pci)
        mask = gpu.throttle_reasons
        if passed and isinstance(mask, int) and not gpu.lost:
            sums = self._sums[gpu.pci] = _accumulated(sums or LoadSeen(), gpu, mask, passed)
        return gpu if sums is None else replace(gpu, load=replace(gpu.load, seen=sums))


def _accumulated(sums: LoadSeen, gpu: Gpu, mask: int, passed: float) -> LoadSeen:
    watched = sums.watched_seconds + passed
    brake = sums.brake_seconds + (passed if mask & _BRAKE else 0.0)
    if not is_busy(gpu):
        return replace(sums, watched_seconds=watched, brake_seconds=brake)
    free = passed if not mask & ~_IDLE and isinstance(gpu.clock_sm_hertz, int) else 0.0
    clock = gpu.clock_sm_hertz if isinstance(gpu.clock_sm_hertz, int) else 0
    return LoadSeen(
        busy_seconds=sums.busy_seconds + passed,
        reasons_seconds=tuple(s + passed if mask & bit else s for s, (bit, _) in zip(sums.reasons_seconds, REASONS, strict=True)),
        watched_seconds=watched,
        brake_seconds=brake,
        free_seconds=sums.free_seconds + free,
        free_cycles=sums.free_cycles + free * clock,
    )
