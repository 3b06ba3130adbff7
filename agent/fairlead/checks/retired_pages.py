"""Reports memory pages that a GPU before Ampere has retired. Newer GPUs remap rows (see `row_remap`).

The counts are NVML_FI_DEV_RETIRED_SBE, _DBE and _PENDING. nvmlDeviceGetRetiredPages and nvmlDeviceGetRetiredPagesPendingStatus
give the same counts. A pending page is retired when the driver is loaded again or the GPU is reset (NVIDIA "Dynamic Page
Retirement"). A GPU can retire 64 pages. DCGM fails a GPU with more than 63 retired pages, and warns from 15 pages that were
retired for double-bit errors (dcgm_gpu_hardware_limits.h: DCGM_LIMIT_MAX_RETIRED_PAGES, _SOFT_LIMIT).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import listed_gpus
from fairlead.model.facts import Gpu, Missing, Node, RowRemap, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.gpu_health import RetiredPages
from fairlead.model.unread import unlisted, unread


class Params(CheckParams, frozen=True, kw_only=True):
    pages_max: Annotated[int, Meta(ge=0, description="This many retired pages are accepted. A GPU can retire 64 pages.")] = 63
    double_bit_pages: Annotated[
        int, Meta(ge=0, description="The check warns at this many or more pages retired for double-bit errors. 0: never.")
    ] = 15


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in listed_gpus(node):
        if gpu.lost or isinstance(gpu.remap, RowRemap):
            continue  # such a GPU remaps rows instead, and NVML answers NOT_SUPPORTED for retired pages
        pages = gpu.retired
        if isinstance(pages, Missing):
            if pages.why is Why.UNREADABLE and isinstance(gpu.remap, Missing) and gpu.remap.why is Why.UNSUPPORTED:
                yield unread(f"retired pages of GPU {gpu.pci}", pages, gpu.pci)
            continue
        yield from _counted(gpu, pages, params)


def _counted(gpu: Gpu, pages: RetiredPages, params: Params) -> Iterator[Finding]:
    counts = f"{_number(pages.single_bit)} for single-bit, {_number(pages.double_bit)} for double-bit errors"
    total = sum(v for v in (pages.single_bit, pages.double_bit) if isinstance(v, int))
    if total > params.pages_max:
        words = f"{total} memory pages of GPU {gpu.pci} are retired (RMA)"
        yield with_action(Level.DRAIN, words, Action.CONTACT_SUPPORT, counts, device=gpu.pci)
    elif isinstance(pages.double_bit, int) and 0 < params.double_bit_pages <= pages.double_bit:
        words = f"{pages.double_bit} memory pages of GPU {gpu.pci} are retired for double-bit errors"
        yield with_action(Level.WARN, words, Action.CONTACT_SUPPORT, counts, device=gpu.pci)
    if pages.pending is True:
        words = f"retirement of memory pages is pending on GPU {gpu.pci}"
        yield with_action(Level.DRAIN, words, Action.RESET_GPU, counts, device=gpu.pci, service=Service.DRAIN_AFTER_JOB)
    unread_names = [n for n in pages.__struct_fields__ if _unreadable(getattr(pages, n))]
    if unread_names:
        words = f"retired pages of GPU {gpu.pci} cannot be read ({', '.join(unread_names)})"
        yield Finding(level=Level.UNKNOWN, device=gpu.pci, summary=words)


def _unreadable(value: object) -> bool:
    return isinstance(value, Missing) and value.why is Why.UNREADABLE


def _number(value: int | Missing) -> str:
    return "?" if isinstance(value, Missing) else str(value)


check = Check(
    summary="Memory pages retired by GPUs before Ampere: too many, or pending",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
)
