"""Judges PCIe links for the checks of GPUs, adapters and switches: it compares a link with what both of its ends support.

A link must have the declared width and generation. If none is declared, the expected value is the smaller one of the values that
the device and the port above it support. Sources: sysfs max_link_width, max_link_speed; PCI Express Base Specification, Link
Capabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from fairlead.model.facts import Missing, PciDevice, PcieLink
from fairlead.model.finding import Action, Finding, Level, Service, with_action


class Able(NamedTuple):
    """Holds the largest width and generation that all ends of a link support, or None if no end reports the value."""

    width: int | None
    gen: int | None


def least(*values: int | Missing | None) -> int | None:
    """Return the smallest of the known values, or None if there is none. 0 counts as unknown, because sysfs shows 0 for a link
    that it cannot read."""
    return min((v for v in values if isinstance(v, int) and v > 0), default=None)


@lru_cache(maxsize=256)  # the links are the same at every sweep
def able(*ends: PcieLink | Missing | None) -> Able:
    """Return the largest width and generation that all ends of one link support."""
    known = [end for end in ends if isinstance(end, PcieLink)]
    return Able(least(*(end.width_max for end in known)), least(*(end.gen_max for end in known)))


def port_above(device: PciDevice | None, devices: Mapping[str, PciDevice]) -> PcieLink | None:
    """Return the link of the port above a device, which is the nearest bridge on the device's path. Return None if it is not
    known."""
    above = devices.get(device.path[-2]) if device is not None and len(device.path) > 1 else None
    return above.link if above is not None and isinstance(above.link, PcieLink) else None


class Judged(Struct, frozen=True):
    """Holds a link that is judged. ``kind``: the device that the link leads to, in words. ``address``: that device's PCI
    address."""

    kind: str
    address: str

    def finding(self, level: Level, words: str, evidence: str = "") -> Finding:
        """Return the finding about a link that is worse than it should be. Somebody has to check the hardware once the job has
        ended."""
        action = Action.CHECK_HARDWARE if level is Level.DRAIN else Action.NONE
        summary = f"PCIe link of {self.kind} {self.address} {words}"
        return with_action(level, summary, action, evidence, device=self.address, service=Service.DRAIN_AFTER_JOB)

    def narrow(self, width: int, possible: int | None, declared: int | None = None, evidence: str = "") -> Iterator[Finding]:
        """Yield a finding if the link has fewer lanes than declared. If none are declared, compare with what is possible."""
        want = possible if declared is None else declared
        if want is not None and width < want:
            whose = "possible" if declared is None else "declared"
            said = evidence or f"device and slot can do x{possible}"
            yield self.finding(Level.DRAIN, f"is x{width}, x{want} {whose}", said)
