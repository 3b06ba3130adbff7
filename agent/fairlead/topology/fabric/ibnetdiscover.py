"""Reads the output of ibnetdiscover about an InfiniBand fabric, with and without ``-p`` (rdma-core, infiniband-diags).

Without -p, ibnetdiscover prints a block for each switch, adapter ("Ca") and router ("Rt"), with a line for each port that has a
link. With -p it prints one line for each port, with or without a link. Both formats have every link twice, once from each end. If
one end of a link is missing, the dump was cut off.
"""

from __future__ import annotations

import re

from fairlead.errors import DataError
from fairlead.topology.fabric.switch_fabric import End, SwitchFabric, is_aggregation

_HINT = "take a whole dump again: ibnetdiscover > FILE"
_SKIPPED = re.compile(
    r"#.*|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x[0-9a-f]+.*|Chassis [0-9]+.*|Non-Chassis Nodes|Hostname: .*"
)
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]+\s+"[SHR]-([0-9a-f]{16})"\s+#\s+"(.*)".*')
_PORT = re.compile(
    r'\[([0-9]+)\](?:\[ext [0-9]+\])?(?:\([0-9a-f]+\))?\s+"([SHR])-([0-9a-f]{16})"\[([0-9]+)\]'
    r'(?:\[ext [0-9]+\])?\s*(?:\([0-9a-f]+\))?\s+#(.*)"(.*)"( lid [0-9]+ (?:[0-9]+x|\?\?)\S+.*)'
)
_LINKED = re.compile(
    r"(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x([0-9a-f]{16})\s+\S+\s+\S+\s+-\s+(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x([0-9a-f]{16})"
    r"\s+\( '(.*)' - '(.*)' \)"
)
_UNLINKED = re.compile(r"(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x([0-9a-f]{16})\s+\S+\s+\S+\s+(?:'(.*)'|([^'(-].*))")
_SWITCHES = frozenset({"Switch", "SW", "S"})


def parse(text: str, source: str = "ibnetdiscover") -> SwitchFabric:
    """Return the fabric of a dump in either format. Ids are GUIDs in 16 hex digits. Raise DataError for other text.

    Links that only one end reports are in ``one_sided``. This function does not refuse them, but `refuse_cut` does.
    """
    if text and not text.endswith("\n"):
        raise DataError(f"{source}: cut off in its last line", hint=_HINT)
    reader = _Reader(source)
    for number, line in enumerate(text.splitlines(), 1):
        reader.read_line(number, line.rstrip())
    return reader.fabric()


def refuse_cut(fabric: SwitchFabric, source: str = "ibnetdiscover") -> None:
    """Raise DataError for an incomplete dump, which has no switch or no link, or has links from one end only."""
    if not fabric.switches:
        raise DataError(f"{source}: it has no switch", hint=_HINT)
    sharp = {guid for guid, words in fabric.adapters.items() if is_aggregation(words)}
    if all(a in sharp or b in sharp for (a, _), (b, _) in fabric.links):
        raise DataError(f"{source}: it has no link", hint=_HINT)
    if fabric.one_sided:
        count = len(fabric.one_sided)
        raise DataError(
            f"{source}: cut off or not whole: {count} link{'s are' if count > 1 else ' is'} reported by one end only,"
            f" such as {fabric.one_sided[0]}",
            hint=_HINT,
        )


class _Reader:
    """Collects switches, adapters and links line by line. ``_here`` is the block to which the present port lines belong."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._switches: dict[str, str] = {}
        self._adapters: dict[str, str] = {}
        self._ends: set[tuple[End, End]] = set()
        self._here = ""

    def read_line(self, number: int, line: str) -> None:
        if not line or _SKIPPED.fullmatch(line):
            return
        if match := _HEAD.fullmatch(line):
            self._here = match[2]
            self._see(match[1], match[2], match[3])
        elif match := _PORT.fullmatch(line):
            if not self._here:
                raise self._wrong(number, line)
            self._see(match[2], match[3], match[6])
            self._ends.add(((self._here, int(match[1])), (match[3], int(match[4]))))
        elif match := _LINKED.fullmatch(line):
            self._see(match[1], match[3], match[7])
            self._see(match[4], match[6], match[8])
            self._ends.add(((match[3], int(match[2])), (match[6], int(match[5]))))
        elif match := _UNLINKED.fullmatch(line):
            self._see(match[1], match[3], match[4] if match[4] is not None else match[5])
        else:
            raise self._wrong(number, line)

    def _see(self, kind: str, guid: str, description: str) -> None:
        (self._switches if kind in _SWITCHES else self._adapters)[guid] = description

    def _wrong(self, number: int, line: str) -> DataError:
        return DataError(f"{self._source}: line {number} is not from ibnetdiscover: {line[:60]!r}", hint=_HINT)

    def fabric(self) -> SwitchFabric:
        both = self._switches.keys() & self._adapters.keys()
        if both:
            raise DataError(f"{self._source}: {min(both)} is both a switch and an adapter", hint=_HINT)
        one_sided = sorted((a, b) for a, b in self._ends if (b, a) not in self._ends and not self._of_sharp(a, b))
        return SwitchFabric(
            switches=dict(sorted(self._switches.items())),
            adapters=dict(sorted(self._adapters.items())),
            links=frozenset((min(pair), max(pair)) for pair in self._ends),
            one_sided=tuple(f"{self._words(a)} to {self._words(b)}" for a, b in one_sided),
        )

    def _of_sharp(self, *ends: End) -> bool:
        """Say whether a link leads to a switch's own SHARP adapter. No host is connected to such an adapter, so its block may be
        missing."""
        return any(is_aggregation(self._adapters.get(guid, "")) for guid, _ in ends)

    def _words(self, end: End) -> str:
        guid, port = end
        return f"{self._switches.get(guid) or self._adapters.get(guid) or guid!r} port {port}"
