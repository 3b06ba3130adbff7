"""Defines the verdict and its one line in /run/fairlead/verdict, which the shell hooks read."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.plain_text import one_line as one_line  # noqa: PLC0414

WIRE_VERSION = "1"
TEXT_MAX = 400


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    DRAIN = "drain"
    UNKNOWN = "unknown"


class Verdict(Struct, frozen=True, kw_only=True):
    """Describes whether jobs may start on this node. ``expires``: whole seconds of CLOCK_BOOTTIME, as in /proc/uptime."""

    state: State
    expires: int
    sequence: int
    text: str = ""

    def to_line(self) -> str:
        """Return ``1<TAB>state<TAB>expires<TAB>sequence<TAB>text<LF>``. No field is empty, and the text has no control
        character."""
        text = one_line(self.text)[:TEXT_MAX] or "-"
        return f"{WIRE_VERSION}\t{self.state.value}\t{self.expires}\t{self.sequence}\t{text}\n"


def parse_line(line: str) -> Verdict:
    """Return the verdict of a line that ``to_line`` has made. Raises DataError for anything but exactly one complete line."""
    fields = line.removesuffix("\n").split("\t")
    if not line.endswith("\n") or len(fields) != 5 or fields[0] != WIRE_VERSION:
        raise DataError("verdict: not one line of five TAB separated fields")
    _, state, expires, sequence, text = fields
    # the hooks read 15 digits: no time has more, and a shell cannot compute with more
    if not all(number.isascii() and number.isdigit() and len(number) <= 15 for number in (expires, sequence)):
        raise DataError("verdict: expires and sequence must be whole numbers")
    try:
        return Verdict(state=State(state), expires=int(expires), sequence=int(sequence), text="" if text == "-" else text)
    except ValueError as e:
        raise DataError("verdict: unknown state") from e
