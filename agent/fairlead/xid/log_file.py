"""Kernel messages out of log files: the stamp and prefix of each common form taken off, the message left.

A record of /dev/kmsg or dmesg that names a facility other than the kernel was written by a program: it is none of the
kernel's messages. In a syslog file the word ``kernel:`` is all there is to go by, and any user can write it (logger -t).
Records that begin with a task's name, and fragments, are dropped as in the agent (``model.kernel_text``). Not so in what dmesg
and journalctl print as text: a line break in a name begins a line there, and nothing tells it from a record. The agent reads
/dev/kmsg, where line breaks are escaped.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fairlead.model.json_text import NOT_JSON
from fairlead.model.kernel_text import begins_with_a_name, is_whole

_ISO = r"\d{4}-\d\d-\d\dT[0-9:,.]+(?:[+-]\d\d:?\d\d|Z)"
_STAMP = r"\[ *\d+\.\d+(?: < *\d+\.\d+>)?\](?:\[ *[TC]\d+\])? "
_CTIME = r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\] "
_FORMS = tuple(
    re.compile(form)
    for form in (
        r"(?P<priority>\d{1,6}),\d{1,20},\d{1,20}(?P<escaped>(?:,[^;]{0,80})?;)",  # /dev/kmsg
        rf"<(?P<priority>\d{{1,6}})>(?:{_STAMP})?",  # dmesg -r, pstore, serial console
        rf"{_STAMP}(?:[\w.-]{{1,255}} kernel: )?",  # dmesg, dmesg -d; journalctl -o short-monotonic
        _CTIME,  # dmesg -T
        r"\[(?:[A-Z][a-z]{2} ?\d+ \d\d:\d\d| *[+<] *\d+\.\d+>?)\] ",  # dmesg -e, -H, -d without time
        rf"(?P<facility>[a-z0-9]+) *:[a-z]+ *: (?:{_ISO} |\[[^\]]{{1,40}}\] )",  # dmesg -x
        rf"{_ISO} \S{{1,255}} kernel: (?:{_STAMP})?",  # journalctl -o short-iso, RFC 5424 stamps
        rf"{_ISO} ",  # dmesg --time-format iso
        rf"[A-Z][a-z]{{2}} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \S{{1,255}} kernel: (?:{_STAMP})?",  # syslog, journalctl
        rf"[A-Z][a-z]{{2}} \d{{4}}-\d\d-\d\d [0-9:.]+ \S{{1,10}} \S{{1,255}} kernel: (?:{_STAMP})?",  # -o short-full
        rf"\d+\.\d+ \S{{1,255}} kernel: (?:{_STAMP})?",  # journalctl -o short-unix
    )
)
# NVIDIA Fabric Manager's own log (/var/log/fabricmanager.log) names the SXids that it was told of
_FABRIC = re.compile(
    r"\[[A-Z][a-z]{2} +\d+ \d{4} \d\d:\d\d:\d\d\] \[[A-Z]+\] \[tid \d+\] detected NVSwitch (non-)?fatal error (\d{1,7}) "
    r"on fid \d+ on NVSwitch pci bus id ([0-9a-fA-F:.]{7,16}) physical id (\d{1,3}) port (\d{1,3})\s*"
)
# syslog daemons that reduce repeated messages (rsyslog $RepeatedMsgReduction) wrap the message itself
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(.*)\]\Z", re.DOTALL)
_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")


def _unescaped(text: str) -> str:
    """/dev/kmsg writes what is not printable, and the backslash, as \\xNN (Documentation/ABI/testing/dev-kmsg)."""
    return _ESCAPES.sub(lambda m: bytes.fromhex(m[0].replace("\\x", "")).decode("utf-8", "replace"), text)


def journal(line: str) -> tuple[float, str, str] | None:
    """A line of ``journalctl -o json``: Unix seconds, the kernel's message ("" where it is not the kernel's), boot id; None for
    any other line. A message that is no UTF-8 is a list of bytes (systemd.journal-fields(7), Journal JSON Format)."""
    try:
        fields: Any = msgspec.json.decode(line)
        seconds, text = int(fields["__REALTIME_TIMESTAMP"]) / 1e6, fields["MESSAGE"]
        if isinstance(text, list):
            text = bytes(text).decode("utf-8", "replace")
        kernel = fields.get("_TRANSPORT") == "kernel" and isinstance(text, str) and not begins_with_a_name(text)
        return seconds, text if kernel else "", str(fields.get("_BOOT_ID", ""))
    except (*NOT_JSON, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return None


def message(line: str) -> str:
    """The kernel's message in one line of a log, or the line itself when it has no known prefix.

    "" for a record that says of itself that a program, not the kernel, wrote it (priority = facility * 8 + level), and for one
    whose beginning a user may have chosen. A line of Fabric Manager's log about an NVSwitch error is given in the words of the
    kernel's SXid line.
    """
    text = _stripped(line.rstrip("\r\n"))
    return "" if begins_with_a_name(text) else text


def _stripped(line: str) -> str:
    if line.startswith("{"):
        entry = journal(line)
        return entry[1] if entry is not None else line
    fabric = _FABRIC.fullmatch(line) if line.startswith("[") else None
    if fabric:
        non, code, pci, switch, port = fabric.groups()
        severity = "Non-fatal" if non else "Fatal"
        return f"nvidia-nvswitch{switch}: SXid (PCI:{pci}): {code}, {severity}, Link {port} (Fabric Manager's log)"
    for form in _FORMS:
        match = form.match(line)
        if match:
            said = match.groupdict()
            foreign = int(said.get("priority") or 0) >> 3 or (said.get("facility") or "kern") != "kern"
            escaped = said.get("escaped") or ""
            text = line[match.end() :]
            if foreign or (escaped.startswith((",c", ",+")) and not is_whole(text)):
                return ""
            return _unescaped(text) if escaped else _once(text)
    return line


def _once(text: str) -> str:
    repeated = _REPEATED.match(text)
    return repeated[1] if repeated else text
