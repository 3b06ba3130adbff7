"""Kernel messages out of log files: the stamp and prefix of each common form taken off, the message left."""

from __future__ import annotations

import re

_FORMS = tuple(
    re.compile(form)
    for form in (
        r"\d{1,6},\d{1,20},\d{1,20},[^;]{0,40};",  # /dev/kmsg
        r"<\d{1,4}>\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ",  # pstore, serial console
        r"\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ",  # dmesg
        r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\] ",  # dmesg -T
        r"[a-z0-9]+ *:[a-z]+ *: \d{4}-\d\d-\d\dT[0-9:,.]+(?:[+-]\d\d:?\d\d|Z) ",  # dmesg -x --time-format iso
        r"[a-z0-9]+ *:[a-z]+ *: \[[^\]]{1,40}\] ",  # dmesg -x
        r"\d{4}-\d\d-\d\dT[0-9:,.]+(?:[+-]\d\d:?\d\d|Z) \S{1,255} kernel: (?:\[ *\d+\.\d+\] )?",  # journalctl -o short-iso
        r"\d{4}-\d\d-\d\dT[0-9:,.]+(?:[+-]\d\d:?\d\d|Z) ",  # dmesg --time-format iso
        r"[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S{1,255} kernel: (?:\[ *\d+\.\d+\] )?",  # syslog
    )
)


def message(line: str) -> str:
    """The kernel's message in one line of a log, or the line itself when it has no known prefix."""
    line = line.rstrip("\r\n")
    for form in _FORMS:
        match = form.match(line)
        if match:
            return line[match.end() :]
    return line
