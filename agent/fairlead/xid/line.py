"""Parses Xid, SXid and "fallen off the bus" records. Any text gives an XidLine or None, and never an error.

A pattern matches only from the start of a record, and the text that it matches before the code is longer than a task's name. Text
that a user may choose (a process name) comes later in the line. So a user can never write a record that this module recognises.
The address in a record has three forms: a PCI address alone, with ``GPU-I:05``, or with ``GPU-I:05 GPU-CI:01``. New drivers print
pid and name together or not at all. A name may contain commas, colons and brackets. The message may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from fairlead.xid import nvlink5

NAME_MAX = 15  # TASK_COMM_LEN - 1, include/linux/sched.h
SPLIT_PENDING = 64  # at most this many GPUs may have a message that has begun and not ended
SPLIT_REACH = 8  # the parts of a message are searched within this many records


class XidKind(StrEnum):
    XID = "xid"
    SXID = "sxid"
    BUS_LOST = "bus_lost"


class XidLine(Struct, frozen=True, kw_only=True):
    """Describes one recognised record.

    pci: the PCI address, such as ``0000:4e:00.0``, or "" if the line has none. gi, ci: the MIG GPU instance and compute instance.
    pid, process: the process id and name as printed. A user may choose the name. text: the message. caused_by: the number in
    "caused by previous Xid N". fatal: whether an NVLink line (144 to 150) or an SXid line contains "Fatal", or None for a line
    without a severity. unit, link, registers: the fields of NVLink lines. recovery: the number of the new recovery action in an
    Xid 154 line.
    """

    kind: XidKind
    code: int
    pci: str
    gi: int | None = None
    ci: int | None = None
    pid: int | None = None
    process: str | None = None
    text: str = ""
    caused_by: int | None = None
    fatal: bool | None = None
    unit: str = ""
    link: int | None = None
    registers: nvlink5.Registers | None = None
    recovery: int | None = None
    follows: bool = False  # the line continues an SXid: "Data {...}" and "Severity ..."

    @property
    def public_text(self) -> str:
        """Return the message if no process name comes before it, else "". A name may contain commas, so a part of the name could
        look like the message."""
        return self.text if self.process is None else ""


_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_WHERE = r"\((PCI:[0-9A-Fa-f:.]*|[0-9A-Fa-f:.]{5,16})(?: +GPU-I:(\d{1,4}))?(?: +GPU-CI:(\d{1,4}))?\)"
_XID = re.compile(rf"NVRM: Xid {_WHERE}: (\d{{1,5}})(?![\w.])(?:, ?)?(.*)", re.DOTALL)
_SXID = re.compile(rf"nvidia-nvswitch\d{{1,3}}: SXid {_WHERE}: (\d{{1,7}})(?![\w.])(?:, ?)?(.*)", re.DOTALL)
_LOST = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{7,16}?):? (?:GPU )?has fallen off the bus\b(.*)", re.DOTALL)
_SPLIT_FIRST = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{7,16})\s*(.*)", re.DOTALL)
# The last part of a message in several records: the form in nv-pci.c of the open kernel modules, and two older forms.
_SPLIT_LAST = re.compile(r"(?:NVRM: )?(?:installed in this )?(?:system has )?fallen off the bus and is not\b")
# Another message that begins in the same way, such as "is not supported".
_SPLIT_OTHER = re.compile(r"NVRM: (?:\(PCI ID: [^)]{1,20}\) )?installed in this system (?!has\b)")
_PID = re.compile(r"pid=(?:'?<unknown>'?|(\d{1,10}))")
_CAUSED = re.compile(r"caused by previous Xid (\d{1,5})\.?\s*\Z")
_NVLINK = re.compile(
    r"([A-Z][A-Z0-9_/]{1,63})\s+(Fatal|Nonfatal)\s+XC\d{1,3}\s+i(\d{1,3})\s+Link\s+(-?\d{1,3})\b"
    r"(?:\s+\(0x([0-9a-fA-F]{1,8})\s+0x([0-9a-fA-F]{1,8})\b)?",
    re.ASCII,
)
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]{1,8})\b")
_SEVERITY = re.compile(r"(Fatal|Non-fatal)\b")
_LINK = re.compile(r"\bLink (-?\d{1,3})\b")
_OPENINGS = (
    "Ch ",
    "channel ",
    "Channel ",
    "intr ",
    "Graphics ",
    "Timeout ",
    "Row Remapper",
    "Contained",
    "Uncontained",
    "An uncorrectable",
    "GPU ",
    "GSP ",
    "NVLink",
    "caused by ",
    "errorString",
    "MMU Fault",
)


def address(text: str) -> str:
    """Return a PCI address as ``0000:1b:00.0``, or "" for any other text. The text may have any form that the driver prints: with
    or without "PCI:", with a domain of 4 or 8 digits or none, and with or without a function.
    """
    match = _ADDRESS.fullmatch(text.removeprefix("PCI:"))
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def _name_and_text(rest: str) -> tuple[str, str]:
    """Split ``NAME, MESSAGE`` into the name and the message.

    The name may contain commas. So the split is at the first comma within a name's length that a known beginning of a message
    follows. If the text of a message decides the action (NVLink, 154), it is too long to be part of a name. So a split before
    such a message is tried first.
    """
    cuts = [m.start() for m in re.finditer(",(?= |$)", rest[: NAME_MAX + 2])]
    for decides in (True, False):
        for cut in cuts:
            text = rest[cut + 1 :].lstrip()
            if (_NVLINK.match(text) or _RECOVERY.match(text)) if decides else text.startswith(_OPENINGS):
                return rest[:cut], text
    if cuts:
        return rest[: cuts[0]], rest[cuts[0] + 1 :].lstrip()
    far = rest.find(", ")  # the name is too long for a task: a quoted line or an unusual driver
    return (rest, "") if far < 0 else (rest[:far], rest[far + 2 :])


def _tail(rest: str) -> tuple[int | None, str | None, str]:
    """Split ``pid=.., name=.., message`` into (pid, process, message)."""
    match = _PID.match(rest)
    if match is None:
        return None, None, rest
    pid = int(match[1]) if match[1] else None
    after = rest[match.end() :]
    if not after.startswith(","):
        return pid, None, after.strip()
    after = after[1:].lstrip()
    if not after.startswith("name="):
        return pid, None, after
    name, text = _name_and_text(after.removeprefix("name="))
    # Without a process, the driver prints neither a pid nor a name. If there is a pid, a user has given a process the name
    # "<unknown>".
    return pid, None if pid is None and name in {"<unknown>", "'<unknown>'", ""} else name, text


def is_part(text: str) -> bool:
    """Return whether a record may be one of the three parts of a message that ``read`` joins."""
    return any(pattern.match(text) for pattern in (_SPLIT_FIRST, _SPLIT_LAST, _SPLIT_OTHER))


@lru_cache(maxsize=1024)  # the records of this boot are judged again in every sweep
def parse(text: str) -> XidLine | None:
    """Return the fault in one kernel record (without time stamp or priority). Return None for any other record."""
    if text.startswith("NVRM: Xid "):
        return _parse_xid(text)
    if text.startswith("nvidia-nvswitch"):
        return _parse_sxid(text)
    if text.startswith("NVRM: GPU "):
        match = _LOST.match(text)
        if match and (pci := address(match[1])):
            return XidLine(kind=XidKind.BUS_LOST, code=79, pci=pci, text="GPU has fallen off the bus")
    if text.startswith("NVRM: The NVIDIA GPU ") and (first := _SPLIT_FIRST.match(text)):
        flat = first[2].replace("\\x0a", " ").replace("NVRM: ", "")
        if "installed in this system has" in flat and "fallen off the bus" in flat and (pci := address(first[1])):
            return XidLine(kind=XidKind.BUS_LOST, code=79, pci=pci, text="GPU has fallen off the bus")
    return None


def _parse_xid(text: str) -> XidLine | None:
    match = _XID.match(text)
    if match is None:
        return None
    where, gi, ci, code, rest = match.groups()
    pid, process, message = _tail(rest.rstrip())
    caused = _CAUSED.search(message)
    nvlink = _NVLINK.match(message) if int(code) in nvlink5.CODES else None
    recovery = _RECOVERY.match(message) if int(code) == 154 else None
    return XidLine(
        kind=XidKind.XID,
        code=int(code),
        pci=address(where),
        gi=int(gi) if gi else None,
        ci=int(ci) if ci else None,
        pid=pid,
        process=process,
        text=message,
        caused_by=int(caused[1]) if caused else None,
        fatal=nvlink[2] == "Fatal" if nvlink else None,
        unit=nvlink[1] if nvlink else "",
        link=int(nvlink[4]) if nvlink else None,
        registers=_registers(nvlink) if nvlink and nvlink[5] else None,
        recovery=int(recovery[1], 16) if recovery else None,
    )


def _registers(nvlink: re.Match[str]) -> nvlink5.Registers:
    return nvlink5.Registers(int(nvlink[5], 16), int(nvlink[6], 16), injected=int(nvlink[3]) != 0)


def _parse_sxid(text: str) -> XidLine | None:
    match = _SXID.match(text)
    if match is None:
        return None
    where, _, _, code, rest = match.groups()
    message = rest.strip()
    severity = _SEVERITY.match(message)
    link = _LINK.search(message) if severity else None
    return XidLine(
        kind=XidKind.SXID,
        code=int(code),
        pci=address(where),
        text=message,
        fatal=severity[1] == "Fatal" if severity else None,
        link=int(link[1]) if link else None,
        follows=message.startswith(("Data {", "Severity ")),
    )


def read(texts: Iterable[str]) -> Iterator[tuple[int, XidLine]]:
    """Yield all recognised records of a log in order, each with its position (from 0).

    The driver prints one message as three records: "The NVIDIA GPU X", "(PCI ID: ..) installed in this system has", and "fallen
    off the bus and is not responding" (NVSentinel issue 155, gpud issue 1209). Older drivers split it at other words. This
    function joins the parts and yields the position of the last part. Other records may come between the parts, also parts of
    another GPU's message. Harmless messages ("is not supported by") begin with the same first records.
    """
    pending: list[tuple[str, int]] = []
    for index, text in enumerate(texts):
        line = parse(text)
        if line is not None:
            yield index, line
            continue
        first = _SPLIT_FIRST.match(text)
        if first is not None:
            pending = [*pending[-SPLIT_PENDING:], (address(first[1]), index)]
        elif pending and _SPLIT_OTHER.match(text):
            pending.pop()
        elif pending and _SPLIT_LAST.match(text):
            pending = [(pci, since) for pci, since in pending if pci and index - since <= SPLIT_REACH]
            if pending:
                pci, _ = pending.pop(0)
                yield index, XidLine(kind=XidKind.BUS_LOST, code=79, pci=pci, text="GPU has fallen off the bus")
