"""Reads the time of a line in a kernel log, in the forms that dmesg(1), journalctl(1) and syslog daemons print.

A time without a zone is not converted, so that the times in the output agree with the log. A syslog line has no year. Its time
is counted from an arbitrary year on (``NO_YEAR``).
"""

from __future__ import annotations

import re
from calendar import timegm
from time import gmtime, strftime, strptime

from msgspec import Struct

NO_YEAR = 1972  # a leap year, in which 29 February is a date


class Stamp(Struct, frozen=True):
    """Holds the time of a line. seconds: the time since the boot if ``since_boot``, else Unix time. dated: the line has the
    year."""

    seconds: float
    since_boot: bool = False
    dated: bool = True


_HEAD = re.compile(r"(?:<\d{1,6}>|[a-z0-9]+ *:[a-z]+ *: )")  # dmesg -r and dmesg -x print this before the time
_KMSG = re.compile(r"\d{1,6},\d{1,20},(\d{1,20})[,;]")
_SINCE_BOOT = re.compile(r"\[ *(\d{1,12}\.\d{1,9})(?: < *\d+\.\d+>)?\]")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4})\]")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))")
_SYSLOG = re.compile(r"\[?([A-Z][a-z]{2} {0,2}\d{1,2} \d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?[\] ]")
_FULL = re.compile(r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ")
_UNIX = re.compile(r"(\d{9,12}\.\d{1,9}) \S")


def stamp(line: str, year: int = NO_YEAR) -> Stamp | None:
    """Return the time at the beginning of a line, or None if there is none. ``year``: the year for a line without a year."""
    if match := _KMSG.match(line):
        return Stamp(int(match[1]) / 1e6, since_boot=True)
    if match := _HEAD.match(line):
        line = line[match.end() :]
    if match := _SINCE_BOOT.match(line):
        return Stamp(float(match[1]), since_boot=True)
    if match := _UNIX.match(line):
        return Stamp(float(match[1]))
    try:
        return _wall(line, year)
    except ValueError:  # 30 February
        return None


def _wall(line: str, year: int) -> Stamp | None:
    if match := _CTIME.match(line):
        return Stamp(_unix(match[1], "%b %d %H:%M:%S %Y"))
    if match := _ISO.match(line):
        day, time, part, _, sign, hours, minutes = match.groups()
        east = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if hours else 0
        return Stamp(_unix(f"{day} {time}", "%Y-%m-%d %H:%M:%S", part) - east)
    if match := _FULL.match(line):
        return Stamp(_unix(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S", match[3]))
    if match := _SYSLOG.match(line):
        text = f"{year} {match[1][:3]} {match[1][3:].strip()}{match[2] or ':00'}"
        return Stamp(_unix(text, "%Y %b %d %H:%M:%S", match[3]), dated=False)
    return None


def _unix(text: str, form: str, part: str | None = None) -> float:
    return timegm(strptime(text, form)) + (float(f"0.{part}") if part else 0.0)


def show(seconds: float, *, since_boot: bool = False, dated: bool = True) -> str:
    """Return a time as the log has it: in seconds since the boot, or as a date with or without the year."""
    if since_boot:
        return f"{seconds:.1f} s"
    return strftime("%Y-%m-%d %H:%M:%S" if dated else "%b %d %H:%M:%S", gmtime(seconds))
