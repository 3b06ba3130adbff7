"""Compute mode of the GPUs: how many processes may use one at a time.

``exclusive_process`` keeps a second process off a GPU that a job has to itself, and is what MPS daemons of jobs expect;
``default`` is right where ranks or services share a GPU. Source: NVML API reference, nvmlDeviceSetComputeMode (root; lost at
reboot and, without persistence mode, when the driver lets go of the GPU); the boot unit applies it again.
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
        Literal["default", "exclusive_process", "prohibited"], Meta(description="Who may open the GPUs at the same time.")
    ] = "default"


class Observed(Struct, frozen=True):
    """PCI address -> nvmlComputeMode_t."""

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
