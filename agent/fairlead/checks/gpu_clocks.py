"""Reports SM clocks that stay low under load without a reason.

A GPU under load runs near its highest clock (nvmlDeviceGetMaxClockInfo), unless nvmlDeviceGetCurrentClocksEventReasons gives a
reason: the power cap, heat, or a clock that somebody set. If a loaded GPU runs slowly without such a reason, it makes the whole
job slow, and no error counter grows. The check computes the mean clock in a window (nvmlDeviceGetClockInfo, NVML_CLOCK_SM). It
uses only the time in which the GPU was loaded and NVML gave no reason. An idle GPU lowers its clocks to save power, so its clocks
are not judged.

A clock that somebody set is itself a reason ("applications_clocks_setting"), and this clock remains after the job that set it.
The check therefore reports an application clock below the card's default separately (nvmlDeviceGetApplicationsClock,
nvmlDeviceGetDefaultApplicationsClock), as `gpu_power_limit` reports a lowered power limit. A locked clock cannot be read back,
because NVML has no call for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import device_of, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.load_window import Window, blind, is_busy
from fairlead.model.unread import unlisted, unread

SECONDS, CYCLES = "load.free_seconds", "load.free_cycles"


class Params(CheckParams, frozen=True, kw_only=True):
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="The mean clock is taken over this window.")] = 1800
    load_least_seconds: Annotated[int, Meta(ge=10, description="With less time under load than this, no mean is computed.")] = 180
    full_hertz: Annotated[
        Annotated[int, Meta(ge=100_000_000)] | None,
        Meta(description="SM clock under load, for a site that locks clocks. If unset, the GPU's highest clock."),
    ] = None
    judge_application: Annotated[
        bool,
        Meta(
            description="Whether this check judges application clocks. fairlead sets it to false if settings.clocks is declared."
        ),
    ] = True
    share_min: Annotated[float, Meta(gt=0, le=1, description="A mean below this fraction of `full_hertz` is too slow.")] = 0.6


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        yield from blind(gpu)
        if params.judge_application:
            yield from _application(gpu)
        full = params.full_hertz if params.full_hertz is not None else gpu.load.clock_sm_max_hertz
        if isinstance(full, Missing) or isinstance(gpu.clock_sm_hertz, Missing):
            missing = next(v for v in (full, gpu.clock_sm_hertz) if isinstance(v, Missing))
            if missing.why is Why.UNREADABLE:
                yield unread(f"the SM clock of GPU {gpu.pci}", missing, gpu.pci)
            continue
        least = params.share_min * full
        if past.available and isinstance(node.uptime_seconds, float):
            window = Window(past, gpu, node.uptime_seconds, params.window_seconds, params.load_least_seconds / 2)
            yield from _mean(gpu, window, params, least, full)
        elif is_busy(gpu) and gpu.throttle_reasons == 0 and gpu.clock_sm_hertz < least:
            yield Finding(
                level=Level.OK,
                device=gpu.pci,
                summary=f"GPU {gpu.pci} is loaded and runs at {gpu.clock_sm_hertz / 1e6:.0f} MHz: its mean needs history",
                needs_history=True,
            )


def _application(gpu: Gpu) -> Iterator[Finding]:
    """Yield a finding for each application clock that somebody lowered. Yield nothing if the driver has no application clocks.
    If they can no longer be read, the check gpu_readings reports this."""
    state = gpu.state
    for name, now, usual in (
        ("SM", state.application_sm_hertz, state.application_default_sm_hertz),
        ("memory", state.application_memory_hertz, state.application_default_memory_hertz),
    ):
        if isinstance(now, int) and isinstance(usual, int) and now < usual:
            yield with_action(
                Level.DRAIN,
                f"{name} application clock of GPU {gpu.pci} is {now / 1e6:.0f} MHz, not {usual / 1e6:.0f}",
                Action.PROVISION,
                "nvidia-smi -rac sets them back",
                device=gpu.pci,
                service=Service.DRAIN_AFTER_JOB,
                fault=f"application {name}",
            )


def _mean(gpu: Gpu, window: Window, params: Params, least: float, full: float) -> Iterator[Finding]:
    seen = gpu.load.seen
    seconds, cycles = window.grown(SECONDS, seen.free_seconds), window.grown(CYCLES, seen.free_cycles)
    if seconds is None or cycles is None or seconds < params.load_least_seconds or cycles >= least * seconds:
        return
    yield with_action(
        Level.DRAIN,
        f"GPU {gpu.pci} runs slowly under load and nothing says why",
        Action.RESET_GPU,
        f"mean {cycles / seconds / 1e6:.0f} of {full / 1e6:.0f} MHz over {seconds:.0f} s under load",
        device=gpu.pci,
        service=Service.DRAIN_AFTER_JOB,
    )


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the time under load and the clock cycles so far, as sums, for each GPU that is loaded now."""
    for gpu in readable_gpus(node):
        if is_busy(gpu):
            yield device_of(gpu), SECONDS, gpu.load.seen.free_seconds
            yield device_of(gpu), CYCLES, gpu.load.seen.free_cycles


check = Check(
    summary="SM clocks that stay low under load without a reason, application clocks that somebody lowered",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    samples=samples,
    slow=True,
)
