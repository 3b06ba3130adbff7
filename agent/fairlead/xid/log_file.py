"""Reads kernel messages from log files: it takes off the stamp and prefix of each common form and leaves the message.

A program has written a record of /dev/kmsg or dmesg that names a facility other than the kernel. Such a record is no message
of the kernel's. In a syslog file the word ``kernel:`` is the only sign of the kernel, and any user can write it (logger -t).
Records that begin with a task's name, and fragments, are dropped as in the agent (``model.kernel_text``). That does not work
for the text that dmesg and journalctl print: a line break in a name begins a line there, and nothing distinguishes such a line
from a record. The agent reads /dev/kmsg, where line breaks are escaped.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.model.json_text import NOT_JSON
from fairlead.model.kernel_text import begins_with_a_name, is_whole

_ISO = r"\d{4}-\d\d-\d\dT[0-9:,.]+(?:[+-]\d\d:?\d\d|Z)"
_STAMP = r"\[ *\d+\.\d+(?: < *\d+\.\d+>)?\](?:\[ *[TC]\d+\])? "
_CTIME = r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\] "
_KERNEL = rf"kernel(?:\[\d{{1,10}}\])?: ?(?:{_STAMP})?"  # the tag of a syslog daemon or the journal; some add a process number
_FORMS = tuple(
    re.compile(form)
    for form in (
        r"(?P<priority>\d{1,6}),\d{1,20},\d{1,20}(?P<escaped>(?:,[^;]{0,80})?;)",  # /dev/kmsg
        r"<(?P<priority>\d{1,6})>1 \S{1,64} \S{1,255} kernel \S{1,128} \S{1,32} (?:-|(?:\[[^\]]{0,1024}\])+) "
        rf"(?:\ufeff)?(?:{_STAMP})?",  # RFC 5424, section 6
        rf"<(?P<priority>\d{{1,6}})>(?:{_STAMP})?",  # dmesg -r, pstore, serial console
        rf"{_STAMP}(?:[\w.-]{{1,255}} {_KERNEL})?",  # dmesg, dmesg -d; journalctl -o short-monotonic
        _CTIME,  # dmesg -T
        r"\[(?:[A-Z][a-z]{2} ?\d+ \d\d:\d\d| *[+<] *\d+\.\d+>?)\] ",  # dmesg -e, -H, -d without time
        rf"(?P<facility>[a-z0-9]+) *:[a-z]+ *: (?:{_ISO} |\[[^\]]{{1,40}}\] )",  # dmesg -x
        # The word kernel after at most eight words of a date and a host's name, none of which ends as another program's tag
        # would: syslog in any language, journalctl -o short, short-iso, short-full, short-unix, and no date at all.
        rf"(?:\S*[^\s:] +){{0,8}}{_KERNEL}",
        rf"{_ISO} ",  # dmesg --time-format iso
    )
)
#: Another program's line of a syslog file: its number in brackets, or a date and host that are clear.
_PROGRAM = re.compile(
    r"(?:\S*[^\s:] +){1,8}[\w./()-]{1,64}\[\d{1,10}\]: |[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S{1,255} [\w./()-]{1,64}: "
)
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}[mK]")  # dmesg --color, grep --color
_GREP = re.compile(r"[:-](?:\d{1,9}[:-])?")  # the end of grep's file name and line number, also in lines of context
_GREP_ENDS_MAX = 16  # so many such positions are tried: a file name may hold these characters too
_HEAD_MAX = 512  # characters in which a prefix ends
_ERROR = re.compile(r"NVRM: Xid \(|nvidia-nvswitch\d{1,3}: SXid \(|NVRM: .{0,64}fallen off the bus")
# NVIDIA Fabric Manager's own log (/var/log/fabricmanager.log) names the SXids that the driver has reported to it
_FABRIC = re.compile(
    r"\[[A-Z][a-z]{2} +\d+ \d{4} \d\d:\d\d:\d\d\] \[[A-Z]+\] \[tid \d+\] detected NVSwitch (non-)?fatal error (\d{1,7}) "
    r"on fid \d+ on NVSwitch pci bus id ([0-9a-fA-F:.]{7,16}) physical id (\d{1,3}) port (\d{1,3})\s*"
)
# syslog daemons that reduce repeated messages (rsyslog $RepeatedMsgReduction) wrap the message itself
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(.*)\]\Z", re.DOTALL)
_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")


def _unescaped(text: str) -> str:
    """Return the text of /dev/kmsg, which writes a character that is not printable, and the backslash, as \\xNN
    (Documentation/ABI/testing/dev-kmsg)."""
    return _ESCAPES.sub(lambda m: bytes.fromhex(m[0].replace("\\x", "")).decode("utf-8", "replace"), text)


def journal(line: str) -> tuple[float, str, str] | None:
    """Read a line of ``journalctl -o json``: Unix seconds, the kernel's message ("" where it is not the kernel's), boot id.
    Return None for any other line. A message that is not UTF-8 is a list of bytes (systemd.journal-fields(7), Journal JSON
    Format)."""
    try:
        fields: Any = msgspec.json.decode(line)
        seconds, text = int(fields["__REALTIME_TIMESTAMP"]) / 1e6, fields["MESSAGE"]
        if isinstance(text, list):
            text = bytes(text).decode("utf-8", "replace")
        kernel = fields.get("_TRANSPORT") == "kernel" and isinstance(text, str) and not begins_with_a_name(text)
        return seconds, text if kernel else "", str(fields.get("_BOOT_ID", ""))
    except (*NOT_JSON, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return None


class Message(Struct, frozen=True):
    """Holds the kernel's message in a line of a log. ``text`` is "" where the line is known not to be the kernel's. ``known``
    says whether the line begins in a form that this module knows; where it does not, ``text`` is the whole line."""

    text: str
    known: bool

    @property
    def hides_an_error(self) -> bool:
        """Say whether an Xid, SXid or bus loss comes after a prefix that is not known, so that nobody can say who wrote it."""
        return not self.known and _ERROR.search(self.text) is not None and _ERROR.match(self.text) is None


class Messages:
    """Reads the messages of a log line by line.

    dmesg and journalctl print a record of several lines with the later lines indented and without a stamp. Such lines belong
    to the record before them. They count only where the driver's own message of several lines has begun.
    """

    def __init__(self) -> None:
        self._open_at = -1  # after this line, a continuation belongs to a message of the driver's

    def of(self, number: int, line: str) -> Message:
        """Return the message of a line. ``number``: of the line in the log. The caller may leave out lines that do not matter."""
        found = classify(line)
        continues = not found.known and line[:1] in (" ", "\t")
        if continues and self._open_at == number - 1:
            found = Message(line.strip(), known=True)
            self._open_at = number
        elif found.text.startswith("NVRM: The NVIDIA GPU "):
            self._open_at = number
        return found


def message(line: str) -> str:
    """Return the kernel's message in one line of a log, or the line itself when it has no known prefix; see ``classify``."""
    return classify(line).text


def classify(line: str) -> Message:
    """Return the kernel's message in one line of a log.

    Its text is "" for a record that says of itself that a program, not the kernel, wrote it (priority = facility * 8 + level),
    and for one whose beginning a user may have chosen. A line of Fabric Manager's log about an NVSwitch error is returned in
    the words of the kernel's SXid line. Colours, the indentation of a quoted log and grep's file names are taken off where a
    known form follows them.
    """
    line = line.rstrip("\r\n")
    if "\x1b[" in line:
        line = _COLOURS.sub("", line)
    found = _stripped(line)
    if found is None and line[:1] in (" ", "\t"):
        found = _stripped(line.lstrip(" \t"))
    if found is None:
        found = _behind_a_file_name(line)
    if found is None:
        text, known = ("", True) if _PROGRAM.match(line[:_HEAD_MAX]) else (line, False)
    else:
        text, known = found, True
    return Message("" if begins_with_a_name(text) else text, known)


def _stripped(line: str) -> str | None:
    """Return the message after a known prefix; None for a line without one."""
    if line.startswith("{"):
        entry = journal(line)
        return entry[1] if entry is not None else None
    fabric = _FABRIC.fullmatch(line) if line.startswith("[") else None
    if fabric:
        non, code, pci, switch, port = fabric.groups()
        severity = "Non-fatal" if non else "Fatal"
        return f"nvidia-nvswitch{switch}: SXid (PCI:{pci}): {code}, {severity}, Link {port} (Fabric Manager's log)"
    for form in _FORMS:
        match = form.match(line[:_HEAD_MAX])
        if match:
            said = match.groupdict()
            foreign = int(said.get("priority") or 0) >> 3 or (said.get("facility") or "kern") != "kern"
            escaped = said.get("escaped") or ""
            text = line[match.end() :]
            if foreign or (escaped.startswith((",c", ",+")) and not is_whole(text)):
                return ""
            return _unescaped(text) if escaped else _once(text)
    return None


def _behind_a_file_name(line: str) -> str | None:
    """Return the message of a line that grep has printed; None where no known form follows a file name."""
    name = line[:_HEAD_MAX].partition(" ")[0]
    for end in islice(_GREP.finditer(name), _GREP_ENDS_MAX):
        if end.start() and (found := _stripped(line[end.end() :])) is not None:
            return found
    return None


def _once(text: str) -> str:
    repeated = _REPEATED.match(text)
    return repeated[1] if repeated else text
