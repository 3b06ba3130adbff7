"""Reads kernel messages from log files. It removes the time stamp and the prefix of each common log format.

If a record of /dev/kmsg or dmesg names a facility other than the kernel, a program has written it, and it is left out. In a
syslog file the word ``kernel:`` is the only sign of the kernel, and any user can write it (logger -t). Some records begin with a
task's name, or are only a part of a message. They are left out as in the agent (``model.kernel_text``). This is not possible in
the text that dmesg and journalctl print: a line break in a task's name begins a new line, and such a line looks like a record.
The agent is not affected, because it reads /dev/kmsg, where line breaks are escaped.
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
# The tag that a syslog daemon or the journal writes for the kernel. Some add a process number.
_KERNEL = rf"kernel(?:\[\d{{1,10}}\])?: ?(?:{_STAMP})?"
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
        # The word kernel after a date and a host's name. These have at most eight words, and no word ends with a colon as another
        # program's tag does. This covers syslog in any language, journalctl -o short, short-iso, short-full and short-unix, and
        # lines without a date.
        rf"(?:\S*[^\s:] +){{0,8}}{_KERNEL}",
        rf"{_ISO} ",  # dmesg --time-format iso
    )
)
#: Matches the line of another program in a syslog file: a process number in brackets, or a date and a host before the program.
_PROGRAM = re.compile(
    r"(?:\S*[^\s:] +){1,8}[\w./()-]{1,64}\[\d{1,10}\]: |[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S{1,255} [\w./()-]{1,64}: "
)
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}[mK]")  # dmesg --color, grep --color
_GREP = re.compile(r"[:-](?:\d{1,9}[:-])?")  # ends grep's file name and line number, also in lines of context
_GREP_ENDS_MAX = 16  # at most this many of these positions are tried, because a file name may contain these characters
_HEAD_MAX = 512  # a prefix ends within this many characters
_ERROR = re.compile(r"NVRM: Xid \(|nvidia-nvswitch\d{1,3}: SXid \(|NVRM: .{0,64}fallen off the bus")
# A line of NVIDIA Fabric Manager's own log (/var/log/fabricmanager.log) about an SXid that the driver has reported.
_FABRIC = re.compile(
    r"\[[A-Z][a-z]{2} +\d+ \d{4} \d\d:\d\d:\d\d\] \[[A-Z]+\] \[tid \d+\] detected NVSwitch (non-)?fatal error (\d{1,7}) "
    r"on fid \d+ on NVSwitch pci bus id ([0-9a-fA-F:.]{7,16}) physical id (\d{1,3}) port (\d{1,3})\s*"
)
# A syslog daemon that reduces repeated messages (rsyslog $RepeatedMsgReduction) puts the message into these brackets.
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(.*)\]\Z", re.DOTALL)
_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")


def _unescaped(text: str) -> str:
    """Return the original text of a record of /dev/kmsg. /dev/kmsg writes backslashes and characters that are not printable as
    \\xNN (Documentation/ABI/testing/dev-kmsg)."""
    return _ESCAPES.sub(lambda m: bytes.fromhex(m[0].replace("\\x", "")).decode("utf-8", "replace"), text)


def journal(line: str) -> tuple[float, str, str] | None:
    """Read a line of ``journalctl -o json``. Return its time (Unix seconds), its message ("" if the kernel did not write it) and
    its boot id. Return None for any other line. A message that is not UTF-8 is a list of bytes (systemd.journal-fields(7),
    Journal JSON Format)."""
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
    """Holds the kernel's message in a line of a log. ``text`` is "" if the line certainly does not come from the kernel.
    ``known`` says whether the line begins with a known prefix. If it does not, ``text`` is the whole line."""

    text: str
    known: bool

    @property
    def hides_an_error(self) -> bool:
        """Return whether an Xid, SXid or bus loss comes after an unknown prefix. It is then unknown who wrote the line."""
        return not self.known and _ERROR.search(self.text) is not None and _ERROR.match(self.text) is None


class Messages:
    """Reads the messages of a log line by line.

    If a record has several lines, dmesg and journalctl print the later lines indented and without a time stamp. Such a line is
    read only if it continues the driver's own message of several lines ("NVRM: The NVIDIA GPU ...").
    """

    def __init__(self) -> None:
        self._open_at = -1  # number of the last line of the driver's message, which the next line may continue

    def of(self, number: int, line: str) -> Message:
        """Return the message of a line. ``number`` is the number of the line in the log. The caller may skip lines."""
        found = classify(line)
        continues = not found.known and line[:1] in (" ", "\t")
        if continues and self._open_at == number - 1:
            found = Message(line.strip(), known=True)
            self._open_at = number
        elif found.text.startswith("NVRM: The NVIDIA GPU "):
            self._open_at = number
        return found


def message(line: str) -> str:
    """Return the kernel's message in one line of a log, or the line itself if it has no known prefix. See ``classify``."""
    return classify(line).text


def classify(line: str) -> Message:
    """Return the kernel's message in one line of a log.

    The text is "" if the facility of the record is not the kernel (priority = facility * 8 + level), or if a user may have chosen
    the beginning of the record. A line of Fabric Manager's log about an NVSwitch error is returned in the form of the kernel's
    SXid line. Colours are removed. The indentation of a quoted log and grep's file names are removed if a known prefix follows.
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
    """Return the message after a known prefix, or None for a line without a known prefix."""
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
    """Return the message of a line that grep has printed, or None if no known prefix follows a file name."""
    name = line[:_HEAD_MAX].partition(" ")[0]
    for end in islice(_GREP.finditer(name), _GREP_ENDS_MAX):
        if end.start() and (found := _stripped(line[end.end() :])) is not None:
            return found
    return None


def _once(text: str) -> str:
    repeated = _REPEATED.match(text)
    return repeated[1] if repeated else text
