"""Reports GPUs whose clocks are slowed by heat or by hardware for too large a fraction of their time under load.

The check reads the mask of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*) at every sweep and adds up the
time of each reason while the GPU is loaded. A single reading is not enough: nvml.h says that HwSlowdown "may be also reported
during PState or clock change". A system that drains after a single reading drains and resumes the same nodes again and again.

The software power cap keeps a GPU within its power limit. This is normal under full load, so the check does not judge it by
default. HwSlowdown comes together with HwThermalSlowdown or HwPowerBrakeSlowdown (which `gpu_power_brake` judges). HwSlowdown
without these two is the fast reaction of the hardware to too much power. From r575 on, the driver counts the time of thermal
slowdown itself, in nanoseconds (NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN). The time between sweeps then counts, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import device_of, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.load_window import BUSY, Window, blind, is_busy, reason_seconds, sums
from fairlead.model.unread import unlisted

Fraction = Annotated[float, Meta(ge=0, le=1)]
HW, HW_THERMAL, HW_BRAKE = "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"
SW_THERMAL, SW_POWER = "sw_thermal_slowdown", "sw_power_cap"
SAMPLES = (BUSY, *(f"load.{reason}" for reason in (HW, HW_THERMAL, HW_BRAKE, SW_THERMAL, SW_POWER)))
COUNTED = "events.hw_thermal_slowdown"
_BAD = 0x008 | 0x020 | 0x040  # the reasons that are reported after a single sweep


class Params(CheckParams, frozen=True, kw_only=True):
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="The fractions are measured over this window.")] = 1800
    load_least_seconds: Annotated[int, Meta(ge=10, description="With less time under load, no fraction is computed.")] = 180
    hw_thermal_share_max: Annotated[
        Fraction, Meta(description="Hardware thermal slowdown may take this fraction of the time under load.")
    ] = 0.02
    hw_slowdown_share_max: Annotated[
        Fraction, Meta(description="The same limit for hardware slowdown without heat and without the power brake.")
    ] = 0.05
    sw_thermal_share_max: Annotated[
        Fraction, Meta(description="The same limit for software thermal slowdown. More is a warning.")
    ] = 0.25
    sw_power_cap_share_max: Annotated[
        Fraction, Meta(description="The same limit for the software power cap. More is a warning. 1 means never.")
    ] = 1.0


def _finding(gpu: Gpu, level: Level, words: str, fraction: float, loaded: float) -> Finding:
    summary, said = f"GPU {gpu.pci} {words}", f"{100 * fraction:.0f} % of {loaded:.0f} s under load"
    service = Service.DRAIN_AFTER_JOB
    return with_action(level, summary, Action.CHECK_HARDWARE, said, device=gpu.pci, service=service, fault=words)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        yield from blind(gpu)
        if past.available and isinstance(node.uptime_seconds, float):
            window = Window(past, gpu, node.uptime_seconds, params.window_seconds, params.load_least_seconds / 2)
            yield from _fractions(gpu, window, params)
        elif is_busy(gpu) and isinstance(gpu.throttle_reasons, int) and gpu.throttle_reasons & _BAD:
            yield Finding(
                level=Level.OK,
                device=gpu.pci,
                summary=f"GPU {gpu.pci} is slowed now (reasons {gpu.throttle_reasons:#x}): its fraction needs history",
                needs_history=True,
            )


def _fractions(gpu: Gpu, window: Window, params: Params) -> Iterator[Finding]:
    seen = gpu.load.seen
    loaded = window.grown(BUSY, seen.busy_seconds)
    if loaded is None or loaded < params.load_least_seconds:
        return
    fraction = {}
    for reason in (HW, HW_THERMAL, HW_BRAKE, SW_THERMAL, SW_POWER):
        fraction[reason] = (window.grown(f"load.{reason}", reason_seconds(seen, reason)) or 0.0) / loaded
    counted = window.grown(COUNTED, gpu.load.events.hw_thermal_slowdown_seconds) or 0.0
    fraction[HW_THERMAL] = max(fraction[HW_THERMAL], min(1.0, counted / loaded))
    other = fraction[HW] - fraction[HW_THERMAL] - fraction[HW_BRAKE]
    if fraction[HW_THERMAL] > params.hw_thermal_share_max:
        yield _finding(gpu, Level.DRAIN, "is slowed by heat (hardware)", fraction[HW_THERMAL], loaded)
    if other > params.hw_slowdown_share_max:
        yield _finding(gpu, Level.DRAIN, "is slowed by its hardware", other, loaded)
    if fraction[SW_THERMAL] > params.sw_thermal_share_max:
        yield _finding(gpu, Level.WARN, "is slowed by heat (software)", fraction[SW_THERMAL], loaded)
    if fraction[SW_POWER] > params.sw_power_cap_share_max:
        yield _finding(gpu, Level.WARN, "is held at its power cap", fraction[SW_POWER], loaded)


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the time sums of the GPUs that are loaded now, and the driver's own counter of slowdown time."""
    for gpu in readable_gpus(node):
        if is_busy(gpu):
            yield from sums(gpu, SAMPLES)
            counted = gpu.load.events.hw_thermal_slowdown_seconds
            if not isinstance(counted, Missing):
                yield device_of(gpu), COUNTED, counted


check = Check(
    summary="GPU clocks slowed by heat or hardware, as fractions of the time under load",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    samples=samples,
    slow=True,
)
