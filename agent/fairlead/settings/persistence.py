"""Sets NVIDIA persistence mode, with which the driver stays initialised on a GPU that no program uses.

Without persistence mode the driver shuts the GPU down when the last client exits. The next job then needs some seconds to start
the GPU, and fairlead reads clocks and ECC state from a GPU that has just started. Source: NVIDIA Driver Persistence,
https://docs.nvidia.com/deploy/driver-persistence/ ("Persistence Mode (Legacy)", "Persistence Daemon"). NVML sets the mode
(nvmlDeviceSetPersistenceMode). The mode is lost at reboot, and fairlead's boot unit applies it again.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.change import Nvml
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Missing, Node, Why, unreadable
from fairlead.model.setting import Setting, Want


class PersistenceWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Persistence mode is on for every GPU.")] = True


class Observed(Struct, frozen=True):
    """Holds (PCI address, mode) of each GPU that is not lost. True means that persistence mode is on. The check gpu_count reports
    a lost GPU."""

    gpus: tuple[tuple[str, bool], ...]


def observe(node: Node) -> Observed | Missing:
    if isinstance(node.gpus, Missing):
        return node.gpus
    modes: list[tuple[str, bool]] = []
    for gpu in readable_gpus(node):
        if isinstance(gpu.persistence, Missing):
            if gpu.persistence.why is Why.UNSUPPORTED:
                continue
            return unreadable(f"persistence mode of GPU {gpu.pci}: {gpu.persistence.detail}")
        modes.append((gpu.pci, gpu.persistence))
    return Observed(tuple(modes))


def plan(want: PersistenceWant, observed: Observed) -> tuple[Nvml, ...]:
    word = "on" if want.enabled else "off"
    return tuple(
        Nvml(
            setting="persistence",
            why=f"persistence mode of GPU {pci} is {'on' if mode else 'off'}, wanted {word}",
            pci=pci,
            what="persistence",
            value=int(want.enabled),
            before=int(mode),
        )
        for pci, mode in observed.gpus
        if mode != want.enabled
    )


setting = Setting(
    summary="NVIDIA persistence mode of every GPU",
    group="gpu",
    want=PersistenceWant,
    observe=observe,
    plan=plan,
    volatile=True,
    nvml=True,
)
