"""Decides the meaning of one line from the catalogue's row of its code and from the words and numbers in the line."""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action, Service
from fairlead.xid import nvlink5
from fairlead.xid.catalogue import XidEntry, look_up, recovery
from fairlead.xid.line import XidKind, XidLine
from fairlead.xid.sxids import sxid


class Meaning(Struct, frozen=True):
    """Holds the meaning of a line.

    words: the meaning in a few words, for a drain's reason. blames: who is to blame, as in the catalogue. harmless: nobody has to
    do or to watch anything. nvlink: the row of NVIDIA's NVLink table that fits the line, or None.
    """

    words: str
    action: Action
    service: Service
    blames: str
    harmless: bool = False
    nvlink: nvlink5.NvlinkFault | None = None


def meaning(line: XidLine, driver: str = "") -> Meaning:
    """Return the meaning of a line. ``driver`` is the version of the driver that printed it, or "" if it is unknown.

    An SXid or NVLink line (144 to 150) takes a node out of service only if the line itself contains "Fatal". The action of an Xid
    154 is chosen by the action's number in the line, because the words differ between drivers.
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
    """Return the meaning of an SXid line. If the line contains "Fatal", the node is drained. Without "Fatal", a code that the
    Fabric Manager guide calls corrected or to be ignored is harmless."""
    known = sxid(line.code)
    words = known.words if known is not None else "NVSwitch error"
    if line.fatal:
        return Meaning(f"{words}, fatal", Action.CHECK_FABRIC, Service.DRAIN_NOW, "fabric")
    harmless = line.follows or (known is not None and known.harmless)
    said = "not fatal" if line.fatal is False else "severity not said"
    return Meaning(f"{words}, {said}", Action.NONE, Service.KEEP, "fabric", harmless)


def _of_nvlink(line: XidLine, entry: XidEntry, driver: str) -> Meaning:
    """Return the meaning of an NVLink line. The node leaves service if the line contains "Fatal".

    The registers in the line decide the action. There is one exception: NVIDIA says "ignore" for some reasons why a link went
    down (a reset by hand, or an action of the host). Lines with these reasons always contain "Fatal", and they do not drain. If a
    fault remains, the driver reports it with an Xid 154.
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
