"""Computes how a GPU was loaded in a time window, from the sums in the GPU's facts (``LoadSeen``) and the samples of these
sums."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.model.check_definition import Past
from fairlead.model.device import device_of
from fairlead.model.facts import Gpu, Missing
from fairlead.model.finding import Finding
from fairlead.model.gpu_load import LOAD_PERCENT, REASONS, LoadSeen
from fairlead.model.trend import growth, series
from fairlead.model.unread import unread

BUSY = "load.busy_seconds"
_IDLE = 0x001
_INDEX = {name: index for index, (_, name) in enumerate(REASONS)}


def reason_seconds(seen: LoadSeen, reason: str) -> float:
    """Return for how many seconds the GPU was loaded and this reason of ``REASONS`` was set."""
    return seen.reasons_seconds[_INDEX[reason]]


def is_busy(gpu: Gpu, percent: int = LOAD_PERCENT) -> bool:
    """Return whether a GPU is loaded now. Its sums need to be remembered only in that case.

    In MIG mode NVML gives no utilisation of the whole GPU. The GPU then counts as loaded while its clocks are not idle (nvml.h,
    nvmlClocksEventReasonGpuIdle: "Nothing is running on the GPU and the clocks are dropping to Idle state").
    """
    if isinstance(gpu.utilization_percent, int):
        return gpu.utilization_percent >= percent
    return gpu.mig_current is True and isinstance(gpu.throttle_reasons, int) and not gpu.throttle_reasons & _IDLE


class Window:
    """Describes one GPU over the last ``seconds`` before ``now`` (CLOCK_BOOTTIME)."""

    def __init__(self, past: Past, gpu: Gpu, now: float, seconds: float, least_seconds: float) -> None:
        self._series = series(past)
        self._device = device_of(gpu)
        self._now = now
        self._seconds = seconds
        self._least = least_seconds

    def grown(self, name: str, value: float | Missing) -> float | None:
        """Return by how much the sum ``name`` has grown to ``value`` in the window. Return None if no sample is old enough or the
        value is missing."""
        if isinstance(value, Missing):
            return None
        known = self._series.get((self._device, name), ())
        found = growth(known, value, self._now, window_seconds=self._seconds, least_seconds=self._least)
        return None if found is None else found.amount


def sums(gpu: Gpu, names: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
    """Yield the sums of these names as samples. Each name is ``BUSY`` or ``load.REASON``."""
    seen, device = gpu.load.seen, device_of(gpu)
    for name in names:
        value = seen.busy_seconds if name == BUSY else reason_seconds(seen, name.removeprefix("load."))
        yield device, name, value


def blind(gpu: Gpu) -> Iterator[Finding]:
    """Yield an UNKNOWN finding if the clock event reasons or the utilisation cannot be read. In MIG mode the utilisation is not
    needed, because the driver gives none for the whole GPU."""
    mig = gpu.mig_current is True
    values = [gpu.throttle_reasons] if mig else [gpu.throttle_reasons, gpu.utilization_percent]
    missing = next((v for v in values if isinstance(v, Missing) and v.why.value == "unreadable"), None)
    if missing is not None:
        yield unread(f"what GPU {gpu.pci} does under load", missing, gpu.pci)
