"""Checks that the power limit of each GPU is not below what it should be.

The check compares nvmlDeviceGetPowerManagementLimit with the limit that the site declares. If the site declares none, it compares
with the card's default (nvmlDeviceGetPowerManagementDefaultLimit). A job with root rights can lower the limit, and the lower
limit remains after the job. It may make one GPU the slowest in a job of thousands. A limit above the declared one is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unlisted, unread

_TOLERANCE_WATTS = 0.5


class Params(CheckParams, frozen=True, kw_only=True):
    limit_watts: Annotated[
        Annotated[float, Meta(gt=0, le=5000)] | None, Meta(description="Power limit of each GPU. If unset, the card's default.")
    ] = None


def _finding(gpu: Gpu, level: Level, summary: str) -> Finding:
    return with_action(level, summary, Action.PROVISION, device=gpu.pci, service=Service.DRAIN_AFTER_JOB)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        limit = gpu.power_limit_watts
        want = params.limit_watts if params.limit_watts is not None else gpu.load.power_default_watts
        if isinstance(limit, Missing) or isinstance(want, Missing):
            missing = next(v for v in (limit, want) if isinstance(v, Missing))
            if missing.why is Why.UNREADABLE:
                yield unread(f"the power limit of GPU {gpu.pci}", missing, gpu.pci)
        elif limit < want - _TOLERANCE_WATTS:
            yield _finding(gpu, Level.DRAIN, f"the power limit of GPU {gpu.pci} is {limit:.0f} W, {want:.0f} W expected")
        elif params.limit_watts is not None and limit > want + _TOLERANCE_WATTS:
            yield _finding(gpu, Level.WARN, f"the power limit of GPU {gpu.pci} is {limit:.0f} W, {want:.0f} W declared")


check = Check(
    summary="The power limit of each GPU is the card's default or the declared one",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    recover=1,
    slow=True,
)
