"""Counts the Xids and SXids of one boot by device and code, with limited memory.

Each record of the kernel log counts, even if hundreds of records belong to one fault. A GPU that has fallen off the bus without
an Xid counts under ``bus_lost``. At most ``DEVICES_MAX`` addresses, and at most ``CODES_MAX`` codes of each address, are counted
separately. Further addresses and codes count under ``other``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.xid import XidKind, XidLine, read
from fairlead.xid.line import is_part

DEVICES_MAX = 64
CODES_MAX = 40
OTHER = "other"
BUS_LOST = "bus_lost"
_PARTS_KEPT = 24  # how many parts of messages are kept, because the message may end in the next reading

Code = tuple[str, str, str]  # xid or sxid, the PCI address ("" if the record has none), the code


class XidCounts:
    """Holds the counts of one boot. ``counts``: the number of records by kind, address and code."""

    def __init__(self) -> None:
        self.counts: dict[Code, int] = {}
        self._codes: dict[tuple[str, str], int] = {}  # how many codes are counted separately, by kind and address
        self._addresses: set[str] = set()
        self._parts: list[str] = []

    def add(self, texts: Iterable[str]) -> bool:
        """Count the Xids among the next records of the log; return whether there was one."""
        texts = tuple(texts)
        earlier = len(self._parts)
        lines = [line for at, line in read([*self._parts, *texts]) if at >= earlier and not line.follows]
        self._parts = [text for text in (*self._parts, *texts) if is_part(text)][-_PARTS_KEPT:]
        for line in lines:
            self._count(_code(line), 1)
        return bool(lines)

    def merge(self, counts: Mapping[Code, int]) -> None:
        """Take in the counts of an earlier run of the agent in this boot.

        If this run has counted too, it has read the log again from its oldest record, because it did not know how far the earlier
        run had read. So the higher of the two numbers is used.
        """
        for code, number in counts.items():
            self._count(code, max(0, number - self.counts.get(code, 0)))

    def _count(self, wanted: Code, number: int) -> None:
        kind, address, code = wanted
        if wanted not in self.counts:
            if address not in self._addresses and len(self._addresses - {OTHER}) >= DEVICES_MAX:
                address = OTHER
            if (kind, address, code) not in self.counts and self._codes.get((kind, address), 0) >= CODES_MAX:
                code = OTHER
        key = (kind, address, code)
        if key not in self.counts:
            self._addresses.add(address)
            self._codes[kind, address] = self._codes.get((kind, address), 0) + (code != OTHER)
        self.counts[key] = self.counts.get(key, 0) + number


def _code(line: XidLine) -> Code:
    if line.kind is XidKind.BUS_LOST:
        return ("xid", line.pci, BUS_LOST)
    return (line.kind.value, line.pci, str(line.code))
