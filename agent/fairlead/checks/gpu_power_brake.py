"""Reports GPUs that are slowed by the power brake. This signal comes from outside the GPU, such as from a failing power supply.

nvml.h says of nvmlClocksEventReasonHwPowerBrakeSlowdown: "External Power Brake Assertion is triggered (e.g. by the system power
supply)". The clocks fall by a factor of two or more. The check judges for which fraction of the watched time the power brake was
on, whether the GPU was loaded or not. A fraction is needed because some baseboards assert the power brake briefly when the load
changes suddenly. From r575 on, the driver counts this time itself, in nanoseconds
(NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN). The time between sweeps then counts, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import device_of, readable_gpus
from fairlead.model.facts import Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.load_window import Window
from fairlead.model.unread import unlisted, unread

BRAKE = 0x080
WATCHED, SEEN, COUNTED = "load.watched_seconds", "load.brake_seconds", "events.hw_power_brake_slowdown"


class Params(CheckParams, frozen=True, kw_only=True):
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="The fraction is measured over this window.")] = 900
    window_least_seconds: Annotated[
        int, Meta(ge=10, description="With less watched time than this, no fraction is computed.")
    ] = 60
    share_max: Annotated[float, Meta(ge=0, le=1, description="The power brake may be on for this fraction of the time.")] = 0.02


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        mask, load = gpu.throttle_reasons, gpu.load
        if isinstance(mask, Missing):
            if mask.why is Why.UNREADABLE:
                yield unread(f"the power brake of GPU {gpu.pci}", mask, gpu.pci)
            continue
        if not past.available or not isinstance(node.uptime_seconds, float):
            if mask & BRAKE:
                words = f"the power brake of GPU {gpu.pci} is on now: its fraction of the time needs history"
                yield Finding(level=Level.OK, device=gpu.pci, summary=words, needs_history=True)
            continue
        window = Window(past, gpu, node.uptime_seconds, params.window_seconds, params.window_least_seconds)
        watched = window.grown(WATCHED, load.seen.watched_seconds)
        if watched is None or watched < params.window_least_seconds:
            continue
        on = window.grown(SEEN, load.seen.brake_seconds) or 0.0
        counted = window.grown(COUNTED, load.events.hw_power_brake_slowdown_seconds) or 0.0
        fraction = min(1.0, max(on, counted) / watched)
        if fraction > params.share_max:
            said = f"{100 * fraction:.0f} % of {watched:.0f} s"
            action, service = Action.CHECK_HARDWARE, Service.DRAIN_AFTER_JOB
            words = f"the power brake slows GPU {gpu.pci}"
            yield with_action(Level.DRAIN, words, action, said, device=gpu.pci, service=service)


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the sums for all GPUs. Idle GPUs are included, because the power brake can also be on without load."""
    for gpu in readable_gpus(node):
        device, load = device_of(gpu), gpu.load
        yield device, WATCHED, load.seen.watched_seconds
        yield device, SEEN, load.seen.brake_seconds
        counted = load.events.hw_power_brake_slowdown_seconds
        if not isinstance(counted, Missing):
            yield device, COUNTED, counted


check = Check(
    summary="GPUs slowed by the power brake, a signal of the machine's power supply",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    samples=samples,
    slow=True,
)
