"""Says what one line means: the catalogue's row, and what the line itself says where that counts more than the code."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action, Service
from fairlead.xid import nvlink5
from fairlead.xid.catalogue import XidEntry, look_up, recovery
from fairlead.xid.line import XidKind, XidLine
from fairlead.xid.sxids import sxid


class Meaning(Struct, frozen=True):
    """Holds the meaning. words: a few, for a reason. harmless: there is nothing to do and nothing to watch. blames: as in the
    catalogue.

    nvlink: the row of NVIDIA's NVLink table that the line fits.
    """

    words: str
    action: Action
    service: Service
    blames: str
    harmless: bool = False
    nvlink: nvlink5.NvlinkFault | None = None


def meaning(line: XidLine, driver: str = "") -> Meaning:
    """Return the meaning of a line. ``driver``: the version of the driver that printed it, "" where it is not known.

    An SXid or NVLink line (144 to 150) takes a node out of service only when it says Fatal itself. Xid 154 counts by the
    number of the action that it names, not by its words, which differ between drivers.
    """
    if line.kind is XidKind.SXID:
        return _of_sxid(line)
    entry = look_up(line.code, driver)
    if line.code == 154 and line.recovery is not None:
        words, action, service = recovery(line.recovery)
        return Meaning(words, action, service, entry.blames, action is Action.NONE)
    if line.code in nvlink5.CODES and entry.action is Action.CHECK_FABRIC:
        return _of_nvlink(line, entry, driver)
    return Meaning(entry.description, entry.action, entry.service, entry.blames, entry.harmless)


def _of_sxid(line: XidLine) -> Meaning:
    """Return the meaning of an SXid line. The line's own word Fatal counts. Without it, a code that the Fabric Manager guide
    calls corrected or to be ignored has no finding."""
    known = sxid(line.code)
    words = known.words if known is not None else "NVSwitch error"
    if line.fatal:
        return Meaning(f"{words}, fatal", Action.CHECK_FABRIC, Service.DRAIN_NOW, "fabric")
    harmless = line.follows or (known is not None and known.harmless)
    said = "not fatal" if line.fatal is False else "severity not said"
    return Meaning(f"{words}, {said}", Action.NONE, Service.KEEP, "fabric", harmless)


def _of_nvlink(line: XidLine, entry: XidEntry, driver: str) -> Meaning:
    """Return the meaning of an NVLink line. The line's own Fatal or Nonfatal says whether the node leaves service; the
    registers say what NVIDIA asks for.

    There is one exception: a link that went down for a reason of which NVIDIA says "ignore" (a reset by hand, or the host did
    it) is Fatal in the line each time, and is no reason to drain. If something stays broken, the driver says so by 154.
    """
    service = Service.DRAIN_NOW if line.fatal else Service.KEEP
    said = "" if line.fatal else ", not fatal" if line.fatal is False else ", severity not said"
    row = nvlink5.fault(line.code, line.unit, line.registers, driver) if line.registers is not None else None
    if row is None:
        return Meaning(f"{entry.description}{said}", entry.action, service, entry.blames)
    part = f"{row.part}, {row.reason}" if row.reason else row.part
    if row.reason and row.action is Action.NONE:
        return Meaning(f"NVLink {part}", row.action, Service.KEEP, entry.blames, False, row)
    action = entry.action if line.fatal and row.action in (Action.NONE, Action.RESTART_APP) else row.action
    harmless = row.corrected and line.fatal is False
    return Meaning(f"NVLink {part}{said}", action, service, entry.blames, harmless, row)
