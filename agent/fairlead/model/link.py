"""Judges PCIe links, for the checks of GPUs, adapters and switches: what both ends of a link can do, and what is less.

What is declared is expected; where nothing is, the smaller of what the device and the port above it can do (sysfs
max_link_width, max_link_speed; PCI Express Base Specification, Link Capabilities).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from fairlead.model.facts import Missing, PciDevice, PcieLink
from fairlead.model.finding import Action, Finding, Level, Service, with_action


class Able(NamedTuple):
    """Holds the most that all ends of a link can do; None where no end says it."""

    width: int | None
    gen: int | None


def least(*values: int | Missing | None) -> int | None:
    """Return the smallest of the values that are there. 0 counts as none: sysfs shows it for a link that it cannot read."""
    return min((v for v in values if isinstance(v, int) and v > 0), default=None)


@lru_cache(maxsize=256)  # the links are the same at every sweep
def able(*ends: PcieLink | Missing | None) -> Able:
    """Return what the ends of one link can do together."""
    known = [end for end in ends if isinstance(end, PcieLink)]
    return Able(least(*(end.width_max for end in known)), least(*(end.gen_max for end in known)))


def port_above(device: PciDevice | None, devices: Mapping[str, PciDevice]) -> PcieLink | None:
    """Return the link of the port above a device: of the nearest bridge on its path."""
    above = devices.get(device.path[-2]) if device is not None and len(device.path) > 1 else None
    return above.link if above is not None and isinstance(above.link, PcieLink) else None


class Judged(Struct, frozen=True):
    """Holds a link that is judged. ``kind``: what it leads to, in words, and the PCI address of that."""

    kind: str
    address: str

    def finding(self, level: Level, words: str, evidence: str = "") -> Finding:
        """Return the finding about a link that is worse than it should be. Somebody has to check the hardware once the job has
        ended."""
        action = Action.CHECK_HARDWARE if level is Level.DRAIN else Action.NONE
        summary = f"PCIe link of {self.kind} {self.address} {words}"
        return with_action(level, summary, action, evidence, device=self.address, service=Service.DRAIN_AFTER_JOB)

    def narrow(self, width: int, possible: int | None, declared: int | None = None, evidence: str = "") -> Iterator[Finding]:
        """Say whether a link has fewer lanes than declared, or, where nothing is declared, fewer than possible."""
        want = possible if declared is None else declared
        if want is not None and width < want:
            whose = "possible" if declared is None else "declared"
            said = evidence or f"device and slot can do x{possible}"
            yield self.finding(Level.DRAIN, f"is x{width}, x{want} {whose}", said)
