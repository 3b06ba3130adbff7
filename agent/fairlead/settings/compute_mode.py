"""Sets the compute mode of the GPUs, which decides how many processes may use one GPU at a time.

With ``exclusive_process`` only one process at a time can use a GPU. MPS daemons of jobs expect this mode. ``default`` is right if
several ranks or services use one GPU together. Source: NVML API reference, nvmlDeviceSetComputeMode (root; lost at reboot and,
without persistence mode, when the driver releases the GPU). fairlead's boot unit applies the setting again.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.model.change import Disruption, Nvml
from fairlead.model.facts import Missing, Node
from fairlead.model.gpu_values import of_gpus
from fairlead.model.setting import Setting, Want

NUMBERS = {"default": 0, "prohibited": 2, "exclusive_process": 3}  # nvml.h, nvmlComputeMode_t; 1 is deprecated
NAMES = {**{number: name for name, number in NUMBERS.items()}, 1: "exclusive_thread"}


class ComputeModeWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    compute: Annotated[
        Literal["default", "exclusive_process", "prohibited"],
        Meta(description="Compute mode: many processes (default), one (exclusive_process), or none (prohibited)."),
    ] = "default"


class Observed(Struct, frozen=True):
    """Holds the nvmlComputeMode_t of each GPU by PCI address."""

    modes: dict[str, int]


def observe(node: Node) -> Observed | Missing:
    found = of_gpus(node, "compute mode", "details.compute_mode")
    return found if isinstance(found, Missing) else Observed({pci: mode for pci, (mode,) in found.items()})


def plan(want: ComputeModeWant, observed: Observed) -> tuple[Nvml, ...]:
    wanted = NUMBERS[want.compute]
    return tuple(
        Nvml(
            setting="compute_mode",
            why=f"compute mode of GPU {pci} is {NAMES.get(mode, mode)}, wanted {want.compute}",
            disruption=Disruption.IDLE,
            pci=pci,
            what="compute_mode",
            value=wanted,
            before=mode,
        )
        for pci, mode in observed.modes.items()
        if mode != wanted
    )


setting = Setting(
    summary="Compute mode of the GPUs",
    group="gpu",
    want=ComputeModeWant,
    observe=observe,
    plan=plan,
    disruption=Disruption.IDLE,
    volatile=True,
    nvml=True,
)
