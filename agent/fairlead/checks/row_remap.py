"""Reports GPU memory rows whose remapping failed or is pending, and spare rows that run out (Ampere and newer).

The check reads nvmlDeviceGetRemappedRows and nvmlDeviceGetRowRemapperHistogram. The GPU replaces a bad row by a spare one at its
next reset. If a remap is pending, the GPU needs this reset, and the running job may end before the reset. If a remap failed, the
bank had no spare row left. This is NVIDIA's criterion for an RMA ("GPU Memory Error Management" guide, row remapping). The
histogram counts banks by the spare rows they have left (max, high, partial, low, none). Banks at low or none are an early sign of
a failing GPU. The agent records remapped rows and used spare rows each day by the card's serial number, over all boots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Daily, Past
from fairlead.model.device import device_of, listed_gpus, not_under_mig, readable_gpus, was_readable
from fairlead.model.facts import Gpu, Missing, Node, RowRemap, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.gpu_health import RetiredPages
from fairlead.model.trend import counters
from fairlead.model.unread import unlisted

MONTH_DAYS = 30
UNCORRECTED, USED_SPARE_ROWS = "remap.uncorrected", "remap.worn_banks"


class Params(CheckParams, frozen=True, kw_only=True):
    banks_low: Annotated[
        int, Meta(ge=0, description="This many banks with few or no spare rows are accepted. More are a warning.")
    ] = 0
    uncorrected_rows: Annotated[
        int,
        Meta(
            ge=1, description="The check warns at this many or more rows remapped for uncorrectable errors (a GPU can remap 512)."
        ),
    ] = 512
    rows_per_month: Annotated[
        int, Meta(ge=0, description="The check warns at this many or more such rows within 30 days. 0: never.")
    ] = 8
    banks_per_month: Annotated[
        int,
        Meta(
            ge=0,
            description="The check warns at this many or more banks that began to use up spare rows within 30 days. 0: never.",
        ),
    ] = 4


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        if isinstance(gpu.remap, Missing):
            yield from _unread(gpu, gpu.remap, past)
        else:
            yield from _trend(gpu, gpu.remap, past, params)
            yield from _now(gpu, gpu.remap, params)


def _unread(gpu: Gpu, remap: Missing, past: Past) -> Iterator[Finding]:
    """Yield a finding if the remapped rows cannot be read. Yield none for a GPU before Ampere, because it retires pages instead.
    Yield none under MIG, because NVML still gives the recovery action of the GPU."""
    lost = was_readable(gpu, "remap", past)
    if (isinstance(gpu.retired, RetiredPages) and not lost) or not_under_mig(gpu, "remap", remap):
        return
    if remap.why is Why.UNREADABLE:
        yield Finding(
            level=Level.DRAIN if lost else Level.UNKNOWN,
            device=gpu.pci,
            summary=f"row remapping of GPU {gpu.pci} cannot be read{' any more: reset_gpu' if lost else ''}",
            evidence=(remap.detail,) if remap.detail else (),
            action=Action.RESET_GPU if lost else Action.NONE,
            service=Service.DRAIN_AFTER_JOB if lost else Service.KEEP,
        )


def _now(gpu: Gpu, remap: RowRemap, params: Params) -> Iterator[Finding]:
    """Yield the findings that one reading alone gives."""
    counts = f"remapped rows: {remap.corrected} corrected, {remap.uncorrected} uncorrected"
    if remap.failed:
        yield Finding(
            level=Level.DRAIN,
            device=gpu.pci,
            summary=f"row remapping failed on GPU {gpu.pci}: contact_support (RMA)",
            evidence=(counts,),
            action=Action.CONTACT_SUPPORT,
        )
    if remap.pending:
        yield with_action(
            Level.DRAIN,
            f"row remapping is pending on GPU {gpu.pci}",
            Action.RESET_GPU,
            counts,
            device=gpu.pci,
            service=Service.DRAIN_AFTER_JOB,
        )
    low = 0 if isinstance(remap.histogram, Missing) else sum(remap.histogram[3:])
    if low > params.banks_low:
        yield Finding(
            level=Level.WARN,
            device=gpu.pci,
            summary=f"{low} memory banks of GPU {gpu.pci} have few or no spare rows left",
            evidence=(counts,),
        )
    if remap.uncorrected >= params.uncorrected_rows:
        yield Finding(
            level=Level.WARN,
            device=gpu.pci,
            summary=f"{remap.uncorrected} rows of GPU {gpu.pci} were remapped for uncorrectable errors",
            evidence=(counts,),
            action=Action.CONTACT_SUPPORT,
        )


def used_spare_rows(remap: RowRemap) -> int | None:
    """Return the number of banks that have used up some spare rows (partial, low, none). Return None without a histogram."""
    return None if isinstance(remap.histogram, Missing) else sum(remap.histogram[2:])


def _a_month_ago(known: list[Daily]) -> Daily | None:
    """Return the value of a month ago. If it is not certain, return the first value within the month, or None without any
    value."""
    older = [d for d in known if d.days_ago >= MONTH_DAYS]
    later = [d for d in known if d.days_ago < MONTH_DAYS]
    if older and (not later or later[0].value == older[-1].value or older[-1].days_ago <= MONTH_DAYS + 1):
        return older[-1]
    return later[0] if later else None


def _trend(gpu: Gpu, remap: RowRemap, past: Past, params: Params) -> Iterator[Finding]:
    """Yield findings for spare rows that run out. They are counted for this card over a month, across boots."""
    device = device_of(gpu)
    for name, now, limit, words in (
        (UNCORRECTED, remap.uncorrected, params.rows_per_month, "rows of GPU {} were remapped for uncorrectable errors"),
        (
            USED_SPARE_ROWS,
            used_spare_rows(remap),
            params.banks_per_month,
            "memory banks of GPU {} have begun to run out of spare rows",
        ),
    ):
        if now is None or limit == 0 or now < limit:  # the value cannot have grown by the limit, as it is smaller than the limit
            continue
        known = [d for d in past.daily if d.device == device and d.name == name]
        before = _a_month_ago(known)
        if before is None or now - before.value < limit:
            continue
        yield Finding(
            level=Level.WARN,
            device=gpu.pci,
            summary=f"{now - before.value:.0f} {words.format(gpu.pci)} within {min(max(before.days_ago, 1), MONTH_DAYS)} days",
            evidence=(f"{before.value:.0f} {before.days_ago} days ago, {now} now",),
            action=Action.CHECK_HARDWARE,
        )


def daily(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the number of rows remapped for uncorrectable errors, and the number of banks that have used up spare rows."""
    for gpu in listed_gpus(node):
        if isinstance(gpu.remap, RowRemap):
            yield from counters(
                [
                    (device_of(gpu), UNCORRECTED, gpu.remap.uncorrected),
                    (device_of(gpu), USED_SPARE_ROWS, used_spare_rows(gpu.remap)),
                ]
            )


check = Check(
    summary="GPU memory rows: remapping failed or pending, spare rows running out",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    confirm=2,  # a single failed call does not mean that the value is lost
    confirm_of=3,
    daily=daily,
)
