"""Reports GPU memory errors: uncorrectable errors, SRAM errors past NVIDIA's threshold, and corrected errors at a high rate.

The check reads the counters of nvmlDeviceGetTotalEccErrors and of nvmlDeviceGetSramEccErrorStatus. Volatile counters count since
the driver loaded, and aggregate counters count in the whole life of the GPU card. bThresholdExceeded of
nvmlDeviceGetSramEccErrorStatus is NVIDIA's criterion for an RMA. After an uncorrectable error since the driver loaded, the GPU
needs a reset once the job has ended. In MIG mode NVML also counts uncorrectable SRAM errors of each instance, and the finding
names the instance (nvmlDeviceGetMemoryErrorCounter). Single corrected errors are harmless, so the check judges their rate. In one
case in the field, 4,647 to 17,657 corrected errors came per second without any Xid (NVSentinel issue 1748).

After a double bit error some drivers (550.90.07) answer N/A for all these counters. The check therefore also drains if a counter
could be read earlier and cannot be read now. The hardware profile lists the counters that a kind of GPU never had as
`unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import device_of, listed_gpus, readable_gpus, was_readable
from fairlead.model.facts import Ecc, Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.mig_instances import name_of
from fairlead.model.trend import growth, series
from fairlead.model.unread import unlisted

CORRECTED = "ecc.volatile_corrected"
FIELDS = Ecc.__struct_fields__


class Params(CheckParams, frozen=True, kw_only=True):
    required: Annotated[bool, Meta(description="ECC must be switched on.")] = True
    judge_mode: Annotated[
        bool,
        Meta(description="Whether this check judges the ECC mode. fairlead sets it to false if settings.ecc_mode is declared."),
    ] = True
    volatile_uncorrected_max: Annotated[
        int, Meta(ge=0, description="This many uncorrectable errors since the driver loaded are accepted.")
    ] = 0
    aggregate_uncorrected_max: Annotated[
        int, Meta(ge=0, description="The check warns at this many uncorrectable errors in the card's life or more. 0: never.")
    ] = 64
    corrected_per_hour_max: Annotated[
        float, Meta(ge=0, description="The check warns at this many corrected errors per hour or more.")
    ] = 100000.0
    window_seconds: Annotated[int, Meta(ge=60, description="The rate is measured over this window.")] = 3600
    window_least_seconds: Annotated[int, Meta(ge=1, description="Samples that are closer together than this give no rate.")] = 300


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        if isinstance(gpu.ecc, Ecc) and gpu.ecc.mode_current is False:
            if not params.judge_mode:
                continue
            if params.required:
                pending = " until the next reset" if gpu.ecc.mode_pending is True else ""
                yield with_action(
                    Level.DRAIN,
                    f"ECC is off on GPU {gpu.pci}{pending}",
                    Action.RESET_GPU,
                    device=gpu.pci,
                    service=Service.DRAIN_AFTER_JOB,
                )
            elif gpu.ecc.mode_pending is True:
                yield with_action(Level.WARN, f"ECC of GPU {gpu.pci} goes on at the next reset", Action.PROVISION, device=gpu.pci)
            continue  # without ECC there are no counters
        yield from _unreadable(gpu, past)
        yield from _instances(gpu, params)
        if isinstance(gpu.ecc, Ecc):
            yield from _counted(gpu, gpu.ecc, params)
            yield from _rate(gpu, gpu.ecc, node, past, params)


def _unreadable(gpu: Gpu, past: Past) -> Iterator[Finding]:
    """Yield at most two findings for a GPU: one for the values that became unreadable, one for those that were never read."""
    unreadable = _unreadable_names(gpu.ecc)
    if not unreadable:
        return
    lost = [name for name in unreadable if was_readable(gpu, f"ecc.{name}", past)]
    never_read = [name for name in unreadable if name not in lost and not name.startswith("mode_")]
    if lost:
        what = "counters" if any("corrected" in name for name in lost) else "state"
        yield with_action(
            Level.DRAIN,
            f"ECC {what} of GPU {gpu.pci} cannot be read any more",
            Action.RESET_GPU,
            device=gpu.pci,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=f"gone={','.join(lost)}",
        )
    if never_read:
        yield with_action(
            Level.UNKNOWN, f"ECC of GPU {gpu.pci} cannot be read ({', '.join(never_read)})", Action.NONE, device=gpu.pci
        )


@lru_cache(maxsize=64)  # the result is usually the same for each GPU and each sweep
def _unreadable_names(ecc: Ecc | Missing) -> tuple[str, ...]:
    values = [(n, ecc if isinstance(ecc, Missing) else getattr(ecc, n)) for n in FIELDS]
    return tuple(name for name, value in values if isinstance(value, Missing) and value.why is Why.UNREADABLE)


def _counted(gpu: Gpu, ecc: Ecc, params: Params) -> Iterator[Finding]:
    if ecc.sram_threshold_exceeded is True:
        yield with_action(
            Level.DRAIN,
            f"SRAM errors of GPU {gpu.pci} are past NVIDIA's threshold (RMA)",
            Action.CONTACT_SUPPORT,
            device=gpu.pci,
        )
    recent = ecc.volatile_uncorrected
    if isinstance(recent, int) and recent > params.volatile_uncorrected_max:
        yield with_action(
            Level.DRAIN,
            f"{recent} uncorrectable ECC errors on GPU {gpu.pci} since the driver loaded",
            Action.RESET_GPU,
            device=gpu.pci,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=f"volatile_uncorrected={recent}",
        )
    life = ecc.aggregate_uncorrected
    if isinstance(life, int) and params.aggregate_uncorrected_max and life >= params.aggregate_uncorrected_max:
        yield with_action(
            Level.WARN,
            f"{life} uncorrectable ECC errors in the life of GPU {gpu.pci}",
            Action.CONTACT_SUPPORT,
            device=gpu.pci,
            evidence_id=f"aggregate_uncorrected={life}",
        )
    if params.judge_mode and ecc.mode_current is True and ecc.mode_pending is False:
        yield with_action(Level.WARN, f"ECC of GPU {gpu.pci} goes off at the next reset", Action.PROVISION, device=gpu.pci)


def _instances(gpu: Gpu, params: Params) -> Iterator[Finding]:
    """Name the MIG instances with uncorrectable SRAM errors. The counters of the whole GPU are judged in MIG mode too, so an
    instance whose counter is Missing is no finding here."""
    devices = () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices
    for gi in sorted({device.gi for device in devices}):
        parts = [device for device in devices if device.gi == gi]
        count = max((d.sram_uncorrected for d in parts if isinstance(d.sram_uncorrected, int)), default=0)
        if count > params.volatile_uncorrected_max:
            yield with_action(
                Level.DRAIN,
                f"{count} uncorrectable SRAM errors in {name_of(parts)} of GPU {gpu.pci} since the driver loaded",
                Action.RESET_GPU,
                device=gpu.pci,
                service=Service.DRAIN_AFTER_JOB,
                evidence_id=f"gi={gi} sram_uncorrected={count}",
            )


def _rate(gpu: Gpu, ecc: Ecc, node: Node, past: Past, params: Params) -> Iterator[Finding]:
    value, now = ecc.volatile_corrected, node.uptime_seconds
    if isinstance(value, Missing) or isinstance(now, Missing) or value == 0:
        return
    grown = growth(
        series(past).get((device_of(gpu), CORRECTED), ()),
        value,
        now,
        window_seconds=params.window_seconds,
        least_seconds=params.window_least_seconds,
    )
    if grown is None and not past.available:
        yield Finding(
            level=Level.OK,
            device=gpu.pci,
            summary=f"{value} corrected ECC errors on GPU {gpu.pci}: their rate needs history",
            needs_history=True,
        )
    if grown is not None and grown.per_hour >= params.corrected_per_hour_max > 0:
        yield with_action(
            Level.WARN,
            f"corrected ECC errors come too fast on GPU {gpu.pci}",
            Action.CHECK_HARDWARE,
            f"{grown.per_hour:.0f} per hour over {grown.seconds:.0f} s, {value} since the driver loaded",
            device=gpu.pci,
        )


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the counter of corrected errors of each GPU."""
    for gpu in listed_gpus(node):
        if isinstance(gpu.ecc, Ecc) and isinstance(gpu.ecc.volatile_corrected, int):
            yield device_of(gpu), CORRECTED, float(gpu.ecc.volatile_corrected)


check = Check(
    summary="GPU memory errors: uncorrectable, SRAM threshold, corrected ones as a rate, counters that became unreadable",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,  # a single failed call does not mean that the counters are lost
    confirm_of=3,
    samples=samples,
)
