"""Finds the PCI Express and ACS capabilities in PCI configuration space, and reads their registers.

Layout: include/uapi/linux/pci_regs.h (PCI_CAPABILITY_LIST, PCI_EXP_FLAGS, PCI_EXT_CAP_ID_ACS). The walk through a
capability list always ends, although the list may loop, point anywhere, or end early for a reader without privilege.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from fairlead.model.facts import Missing, unreadable

Read = Callable[[int, int], bytes]  # arguments: offset, length; at the end of the space it returns fewer bytes

STATUS = 0x06
STATUS_CAP_LIST = 0x10
HEADER_TYPE = 0x0E
CAP_ID_EXP = 0x10
EXT_CAP_ID_DSN = 0x03
EXT_CAP_ID_ACS = 0x0D
DEVICE_CONTROL = 0x08  # within the PCI Express capability; link control is at 0x10
_PORT_TYPES = {4: "root_port", 5: "switch_upstream", 6: "switch_downstream"}  # PCI_EXP_TYPE_*
_CAPS_MAX = 48  # (256 - 64) / 4
_EXT_CAPS_MAX = 480  # (4096 - 256) / 8


class Capabilities(Struct, frozen=True, kw_only=True):
    """Holds what a walk has found. ``role``: the port type of a PCIe port, or "". ``acs_offset``: None when the device has no
    ACS capability, Missing when the capabilities could not be read."""

    role: str = ""
    acs_offset: int | Missing | None = None
    express_offset: int | None = None


def walk(read: Read) -> Capabilities:
    """Walk both capability lists and return what was found. Never raises, whatever the content is."""
    header = read(0, 64)
    if len(header) < 64:
        return Capabilities(acs_offset=unreadable(f"config space gives {len(header)} bytes"))
    if header.count(0xFF) == 64:
        return Capabilities(acs_offset=unreadable("config space reads all ones: the device does not answer"))
    if not header[STATUS] & STATUS_CAP_LIST:
        return Capabilities()
    if not read(64, 1):
        return Capabilities(acs_offset=unreadable("config space ends after 64 bytes: reading more needs root"))
    express = _express(read, header)
    if express is None:
        return Capabilities()  # conventional PCI has no extended space, so no ACS
    if isinstance(express, Missing):
        return Capabilities(acs_offset=express)
    flags = _word(read, express + 2)
    role = "" if flags is None else _PORT_TYPES.get(flags >> 4 & 0xF, "")
    return Capabilities(role=role, acs_offset=find_extended(read, EXT_CAP_ID_ACS), express_offset=express)


def acs_words(read: Read, offset: int) -> tuple[int, int] | Missing:
    """Return (ACSCap, ACSCtl), 16 bits each, of the ACS capability at ``offset``."""
    data = read(offset + 4, 4)
    if len(data) < 4:
        return unreadable(f"config space ends before the ACS capability at {offset:#x}")
    if data == b"\xff\xff\xff\xff":
        return unreadable("config space reads all ones: the device does not answer")
    return int.from_bytes(data[:2], "little"), int.from_bytes(data[2:], "little")


def control_words(read: Read, express: int) -> tuple[int, int] | Missing:
    """Return (Device Control, Link Control) of the PCI Express capability at ``express``: PCI_EXP_DEVCTL, PCI_EXP_LNKCTL."""
    data = read(express + DEVICE_CONTROL, 10)
    if len(data) < 10:
        return unreadable(f"config space ends before the PCI Express capability at {express:#x}")
    if data == b"\xff" * 10:
        return unreadable("config space reads all ones: the device does not answer")
    return int.from_bytes(data[:2], "little"), int.from_bytes(data[8:], "little")


def _express(read: Read, header: bytes) -> int | Missing | None:
    """Return the offset of the PCI Express capability, or None when the list ends without it."""
    pointer = header[0x14 if header[HEADER_TYPE] & 0x7F == 2 else 0x34] & 0xFC
    seen: set[int] = set()
    while pointer >= 0x40 and pointer not in seen and len(seen) < _CAPS_MAX:
        seen.add(pointer)
        word = _word(read, pointer)
        if word is None:
            return unreadable(f"config space ends before the capability at {pointer:#x}")
        if word & 0xFF == CAP_ID_EXP:
            return pointer
        if word & 0xFF == 0xFF:
            return unreadable(f"the capability at {pointer:#x} reads all ones")
        pointer = word >> 8 & 0xFC
    return unreadable(f"the capability list loops at {pointer:#x}") if pointer in seen else None


def find_extended(read: Read, capability: int) -> int | Missing | None:
    """Return the offset of an extended capability (PCI_EXT_CAP_ID_*), or None when the list ends without it."""
    pointer = 0x100
    seen: set[int] = set()
    while pointer >= 0x100 and pointer not in seen and len(seen) < _EXT_CAPS_MAX:
        seen.add(pointer)
        data = read(pointer, 4)
        if len(data) < 4:
            return unreadable(f"config space ends before {pointer + 4:#x}: extended capabilities cannot be read")
        dword = int.from_bytes(data, "little")
        if dword == 0xFFFFFFFF:
            return unreadable(f"the extended capability at {pointer:#x} reads all ones")
        if dword == 0:
            return None
        if dword & 0xFFFF == capability:
            return pointer
        pointer = dword >> 20 & 0xFFC
    return unreadable(f"the extended capability list loops at {pointer:#x}") if pointer in seen else None


def _word(read: Read, offset: int) -> int | None:
    data = read(offset, 2)
    return int.from_bytes(data, "little") if len(data) == 2 else None
