"""Judges how far each GPU and its memory are from being too hot.

nvmlDeviceGetMarginTemperature (driver r570 and later) gives the degrees that are left until the GPU slows down. nvidia-smi calls
this margin T.Limit. A GPU that is hotter than its slowdown temperature has a margin below 0 (nvidia-smi on H100: slowdown by
hardware from -2, shutdown at -8). Older drivers give the GPU's temperature and NVML_TEMPERATURE_THRESHOLD_SLOWDOWN. The slowdown
temperatures of cards differ, so this check has no fixed limit for the GPU's temperature. The check compares the memory
temperature with the limit that the site declares. Without a declared limit it uses NVML_TEMPERATURE_THRESHOLD_MEM_MAX, if the
driver gives it. `gpu_throttle` judges how much the heat lowers the clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import names_of, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unlisted, unread


class Params(CheckParams, frozen=True, kw_only=True):
    margin_warn_celsius: Annotated[
        int, Meta(ge=-20, le=60, description="The check warns when this many degrees or fewer are left until the slowdown.")
    ] = 5
    margin_drain_celsius: Annotated[
        int, Meta(ge=-20, le=60, description="The check drains when this many degrees or fewer are left until the slowdown.")
    ] = 0
    memory_max_celsius: Annotated[
        Annotated[int, Meta(ge=40, le=130)] | None,
        Meta(description="The check drains at this memory temperature or above. If unset, the driver's limit, if any."),
    ] = None


def _finding(gpu: Gpu, level: Level, summary: str, evidence: str) -> Finding:
    return with_action(level, summary, Action.CHECK_HARDWARE, evidence, device=gpu.pci, service=Service.DRAIN_AFTER_JOB)


def margin_of(gpu: Gpu) -> int | Missing:
    """Return the degrees to the slowdown, as the driver gives them or as computed from its threshold."""
    load = gpu.load
    if isinstance(load.margin_celsius, int):
        return load.margin_celsius
    if isinstance(load.slowdown_celsius, int) and isinstance(gpu.temperature_celsius, int):
        return load.slowdown_celsius - gpu.temperature_celsius
    excused = load.margin_celsius.why is Why.UNSUPPORTED and isinstance(load.slowdown_celsius, Missing)
    if not excused and isinstance(gpu.temperature_celsius, Missing):
        return gpu.temperature_celsius
    return load.margin_celsius


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        margin = margin_of(gpu)
        if isinstance(margin, Missing):
            if margin.why is Why.UNREADABLE:
                yield unread(f"how hot GPU {gpu.pci} is", margin, gpu.pci)
        elif margin <= params.margin_warn_celsius:
            drain = margin <= params.margin_drain_celsius
            said = f"{gpu.temperature_celsius} C" if isinstance(gpu.temperature_celsius, int) else ""
            where = f"{margin} C from its slowdown" if margin > 0 else f"{-margin} C past its slowdown"
            words = f"GPU {gpu.pci} is too hot" if drain else f"GPU {gpu.pci} is nearly too hot"
            yield _finding(gpu, Level.DRAIN if drain else Level.WARN, words, f"{where}, {said}".rstrip(", "))
        yield from _memory(gpu, past, params)


def _memory(gpu: Gpu, past: Past, params: Params) -> Iterator[Finding]:
    now = gpu.load.memory_celsius
    if isinstance(now, Missing):
        if now.why is Why.UNREADABLE and any(f"{name}/load.memory_celsius" in past.readable for name in names_of(gpu)):
            words = f"the memory temperature of GPU {gpu.pci} cannot be read any more"
            yield Finding(level=Level.UNKNOWN, device=gpu.pci, summary=words, evidence=(now.detail,))
        return
    most = params.memory_max_celsius if params.memory_max_celsius is not None else gpu.load.memory_max_celsius
    if isinstance(most, int) and now >= most:
        yield _finding(gpu, Level.DRAIN, f"the memory of GPU {gpu.pci} is too hot", f"{now} C, {most} C at most")


check = Check(
    summary="GPU temperature by its margin to the slowdown; memory temperature",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=3,
    confirm_of=4,
    recover=4,
    slow=True,
)
