"""Sets the ECC mode of the GPUs' memory.

The GPU card stores the mode over reboots. A new mode is pending until the next reset of the GPU or the next reboot. Writing the
mode disturbs no job. Sources: NVML API reference, nvmlDeviceSetEccMode ("changes in ECC mode take effect after the next reboot")
and nvmlDeviceGetEccMode (current and pending); NVIDIA GPU memory error management guide. With ECC off, GPUs without HBM have a
few percent more memory, but memory errors give wrong results without any message.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.change import AnyChange, Disruption, Layer, Nvml, Reboot
from fairlead.model.facts import Missing, Node
from fairlead.model.gpu_values import of_gpus
from fairlead.model.setting import Setting, Want


class EccModeWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="ECC is on for every GPU that has it.")] = True


class Observed(Struct, frozen=True):
    """Holds the modes of each GPU by PCI address, as (current mode, mode after the next reset). True means that ECC is on."""

    modes: dict[str, tuple[bool, bool]]


def observe(node: Node) -> Observed | Missing:
    found = of_gpus(node, "ECC mode", "ecc.mode_current", "ecc.mode_pending")
    return found if isinstance(found, Missing) else Observed({pci: (now, then) for pci, (now, then) in found.items()})


def _word(on: bool) -> str:
    return "on" if on else "off"


def plan(want: EccModeWant, observed: Observed) -> tuple[AnyChange, ...]:
    changes: list[AnyChange] = []
    wanted = _word(want.enabled)
    for pci, (now, then) in observed.modes.items():
        if then != want.enabled:
            changes.append(
                Nvml(
                    setting="ecc_mode",
                    why=f"ECC of GPU {pci} is {_word(then)} after its next reset, wanted {wanted}",
                    layer=Layer.PERSISTED,
                    pci=pci,
                    what="ecc_mode",
                    value=int(want.enabled),
                    before=int(then),
                )
            )
        if now != want.enabled:
            changes.append(
                Reboot(
                    setting="ecc_mode",
                    why=f"ECC of GPU {pci} is {_word(now)}, wanted {wanted}: waits for a reset of the GPU or a reboot",
                    layer=Layer.PENDING_REBOOT,
                    disruption=Disruption.REBOOT,
                    what=f"ECC {wanted} on {pci}",
                )
            )
    return tuple(changes)


setting = Setting(
    summary="ECC mode of the GPUs' memory",
    group="gpu",
    want=EccModeWant,
    observe=observe,
    plan=plan,
    disruption=Disruption.REBOOT,
    nvml=True,
    instead_of={"ecc": {"judge_mode": False}},
)
