"""What one line means: the catalogue's row, and what the line itself says where that wins over the code."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action, Service
from fairlead.xid.catalogue import look_up, recovery
from fairlead.xid.line import Kind, XidLine

NVLINK5 = range(144, 151)


class Meaning(Struct, frozen=True):
    """words: a few, fit for a reason. harmless: nothing to do and nothing to watch. blames: as in the catalogue."""

    words: str
    action: Action
    service: Service
    blames: str
    harmless: bool = False


def meaning(line: XidLine) -> Meaning:
    """The meaning of a line.

    An SXid or NVLink line (144 to 150) takes a node out of service only when it says Fatal itself; Xid 154 counts by the
    number of the action it changed to, not by its words, which differ between drivers.
    """
    if line.kind is Kind.SXID:
        if line.fatal:
            return Meaning("fatal NVSwitch error", Action.CHECK_FABRIC, Service.DRAIN_NOW, "fabric")
        return Meaning("NVSwitch error, not fatal", Action.NONE, Service.KEEP, "fabric", line.follows)
    entry = look_up(line.code)
    if line.code == 154 and line.recovery is not None:
        words, action, service = recovery(line.recovery)
        return Meaning(words, action, service, entry.blames, action is Action.NONE)
    if line.code in NVLINK5 and not line.fatal:
        said = "not fatal" if line.fatal is False else "severity not said"
        return Meaning(f"{entry.description}, {said}", entry.action, Service.KEEP, entry.blames)
    return Meaning(entry.description, entry.action, entry.service, entry.blames, entry.harmless)
