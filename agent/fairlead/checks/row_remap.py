"""GPU memory row remapping (nvmlDeviceGetRemappedRows, nvmlDeviceGetRowRemapperHistogram; Ampere and newer).

A bad row is replaced by a spare one at the next GPU reset. Pending: the reset is due, the job may end first. Failed: no
spare row was left where it was needed, which is NVIDIA's criterion for an RMA ("GPU Memory Error Management" guide, row
remapping). The histogram counts banks by spare rows left (max, high, partial, low, none): low and none are early signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.device import unlisted, was_readable
from fairlead.model.facts import Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.gpu_health import RetiredPages


class Params(CheckParams, frozen=True, kw_only=True):
    banks_low: Annotated[int, Meta(ge=0, description="Banks with few or no spare rows left before it warns.")] = 0
    uncorrected_rows: Annotated[
        int, Meta(ge=1, description="Rows remapped for uncorrectable errors from which it warns (a GPU can remap 512).")
    ] = 512


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted("row_remap", node)
    for gpu in () if isinstance(node.gpus, Missing) else node.gpus:
        if gpu.lost:
            continue  # gpu_count says so
        remap = gpu.remap
        if isinstance(remap, Missing):
            if remap.why is Why.UNREADABLE and not isinstance(gpu.retired, RetiredPages):  # before Ampere: retired_pages
                gone = was_readable(gpu, "remap", past)
                yield Finding(
                    check="row_remap",
                    level=Level.DRAIN if gone else Level.UNKNOWN,
                    device=gpu.pci,
                    summary=f"row remapping of GPU {gpu.pci} cannot be read{' any more: reset_gpu' if gone else ''}",
                    evidence=(remap.detail,) if remap.detail else (),
                    action=Action.RESET_GPU if gone else Action.NONE,
                    service=Service.DRAIN_AFTER_JOB if gone else Service.KEEP,
                )
            continue
        counts = f"remapped rows: {remap.corrected} corrected, {remap.uncorrected} uncorrected"
        if remap.failed:
            yield Finding(
                check="row_remap",
                level=Level.DRAIN,
                device=gpu.pci,
                summary=f"row remapping failed on GPU {gpu.pci}: contact_support (RMA)",
                evidence=(counts,),
                action=Action.CONTACT_SUPPORT,
            )
        if remap.pending:
            yield Finding(
                check="row_remap",
                level=Level.DRAIN,
                device=gpu.pci,
                summary=f"row remapping is pending on GPU {gpu.pci}: reset_gpu",
                evidence=(counts,),
                action=Action.RESET_GPU,
                service=Service.DRAIN_AFTER_JOB,
            )
        low = 0 if isinstance(remap.histogram, Missing) else sum(remap.histogram[3:])
        if low > params.banks_low:
            yield Finding(
                check="row_remap",
                level=Level.WARN,
                device=gpu.pci,
                summary=f"{low} memory banks of GPU {gpu.pci} have few or no spare rows left",
                evidence=(counts,),
                service=Service.KEEP,
            )
        if remap.uncorrected >= params.uncorrected_rows:
            yield Finding(
                check="row_remap",
                level=Level.WARN,
                device=gpu.pci,
                summary=f"{remap.uncorrected} rows of GPU {gpu.pci} were remapped for uncorrectable errors",
                evidence=(counts,),
                action=Action.CONTACT_SUPPORT,
                service=Service.KEEP,
            )


check = Check(
    summary="GPU memory rows: remapping failed or pending, spare rows running out",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
)
