"""Reports each fact of a GPU that could be read earlier and cannot be read now.

After a double-bit error some drivers answer N/A to all ECC fields (nvidia-smi of 550.90.07 on such a GPU). After other faults, a
sensor, a link or the whole card can no longer be read. fairlead records for each card and driver which facts could be read
(``Past.readable``). The check therefore covers every fact without a list of facts. It leaves out the facts whose loss another
check reports. If NVML answers RESET_REQUIRED (16, nvml.h: "the GPU requires a reset before it can be used again"), the fault is
certain and the check drains.

Some values are missing for a good reason, and the check does not report them. Under MIG, NVML gives neither the utilisation of
the whole GPU nor its remapped rows (nvml.h, notes on nvmlDeviceGetUtilizationRates and nvmlDeviceGetRemappedRows). With ECC off
there are no ECC counters. After a change of the driver or the card, fairlead records anew which facts can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import newly_unreadable, not_under_mig, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.unread import unlisted

#: The checks ecc, row_remap and xid report the loss of these facts themselves.
OWN = ("ecc", "remap", "recovery_action")
SHOWN = 4
_RESET_REQUIRED = "RESET_REQUIRED (16)"


class Params(CheckParams, frozen=True, kw_only=True):
    ignore: Annotated[
        tuple[str, ...],
        Meta(description='Facts whose loss is not reported, such as ["power_draw_watts", "nvlinks"].'),
    ] = ()


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        silenced = newly_unreadable(gpu, past)
        lost = {n: why for n, why in silenced.items() if not (_excused(n, params.ignore) or not_under_mig(gpu, n, why))}
        if any(_RESET_REQUIRED in why.detail for why in (*_silent(gpu), *silenced.values())):
            yield with_action(
                Level.DRAIN,
                f"GPU {gpu.pci} must be reset before it can be used again",
                Action.RESET_GPU,
                f"NVML {_RESET_REQUIRED}",
                device=gpu.pci,
            )
        elif lost:
            yield Finding(
                level=Level.UNKNOWN,
                device=gpu.pci,
                summary=f"GPU {gpu.pci} no longer answers for {_names(lost)}",
                evidence=tuple(f"{name}: {why.detail}" for name, why in list(lost.items())[:SHOWN] if why.detail),
            )


def _silent(gpu: Gpu) -> Iterator[Missing]:
    """Yield the missing values among the top-level facts of a GPU."""
    return (value for name in gpu.__struct_fields__ if isinstance(value := getattr(gpu, name), Missing))


def _excused(name: str, ignored: tuple[str, ...]) -> bool:
    return name in OWN or name.startswith("ecc.") or any(name == i or name.startswith(f"{i}.") for i in ignored)


def _names(lost: dict[str, Missing]) -> str:
    shown = ", ".join(list(lost)[:SHOWN])
    return shown if len(lost) <= SHOWN else f"{shown} and {len(lost) - SHOWN} more"


check = Check(
    summary="Sensors, counters and links of a GPU that could be read earlier can still be read",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=60,
    slow=True,
)
