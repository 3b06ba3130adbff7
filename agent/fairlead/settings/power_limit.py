"""Sets the power limit of the GPUs.

A limit below the card's default makes every GPU slower and cooler. The limit must be the same on all nodes, because the slowest
GPU of a job slows all others. A job with root rights may also change the limit of one GPU and not restore it. The card gives the
range of limits that it accepts. fairlead refuses a value outside this range and names the range. Source: NVML API reference,
nvmlDeviceSetPowerManagementLimit and ...LimitConstraints (milliwatts; lost at reboot and, without persistence mode, when the
driver releases the GPU). fairlead's boot unit applies the setting again.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, Nvml
from fairlead.model.facts import Missing, Node
from fairlead.model.gpu_values import of_gpus
from fairlead.model.setting import Setting, Want

_TOLERANCE_WATTS = 0.5


class PowerLimitWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    watts: Annotated[
        Annotated[int, Meta(ge=1, le=5000)] | None, Meta(description="Limit of each GPU in watts. If unset, the card's default.")
    ] = None


class Limits(Struct, frozen=True):
    """Holds the current and the default limit of one GPU, and the range of limits that it accepts, all in watts."""

    now: float
    default: float
    least: float
    most: float


class Observed(Struct, frozen=True):
    """Holds the limits of each GPU by PCI address."""

    gpus: dict[str, Limits]


def observe(node: Node) -> Observed | Missing:
    names = ("power_limit_watts", "load.power_default_watts", "state.power_minimum_watts", "load.power_maximum_watts")
    found = of_gpus(node, "power limit", *names)
    return found if isinstance(found, Missing) else Observed({pci: Limits(*values) for pci, values in found.items()})


def plan(want: PowerLimitWant, observed: Observed) -> tuple[Nvml, ...]:
    changes = []
    for pci, limits in observed.gpus.items():
        wanted = limits.default if want.watts is None else float(want.watts)
        if not limits.least <= wanted <= limits.most:
            raise ConfigError(
                "node.json",
                "settings.power_limit.watts",
                f"GPU {pci} takes {limits.least:.0f} to {limits.most:.0f} W, wanted {wanted:.0f}",
                hint="declare a value in this range, or leave it out for the card's default",
            )
        if abs(limits.now - wanted) > _TOLERANCE_WATTS:
            changes.append(
                Nvml(
                    setting="power_limit",
                    why=f"power limit of GPU {pci} is {limits.now:.0f} W, wanted {wanted:.0f}",
                    disruption=Disruption.IDLE,
                    pci=pci,
                    what="power_limit_milliwatts",
                    value=round(wanted * 1000),
                    before=round(limits.now * 1000),
                )
            )
    return tuple(changes)


setting = Setting(
    summary="Power limit of the GPUs",
    group="gpu",
    want=PowerLimitWant,
    observe=observe,
    plan=plan,
    disruption=Disruption.IDLE,
    volatile=True,
    nvml=True,
    instead_of={"gpu_power_limit": {"enabled": False}},
)
