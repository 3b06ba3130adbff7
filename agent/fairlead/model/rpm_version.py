"""Orders RPM versions. Source: rpm-version(7), "Version comparison"; rpmvercmp.c of rpm 4.18."""

from __future__ import annotations

import re

EPOCH_DIGITS_MAX = 10  # a number of 32 bits
_SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|~|\^")
#: What a segment is compared as, from the lowest: "~", the end of the text, "^", letters, digits.
_TILDE, _END, _CARET, _LETTERS, _DIGITS = range(5)


def key(version: str) -> tuple[object, ...]:
    """Return a sort key for ``[EPOCH:]VERSION[-RELEASE]`` that orders as rpm does. A missing epoch is 0."""
    epoch, version, release = split(version)
    return (epoch, _segments(version), release != "", _segments(release))


def split(version: str) -> tuple[int, str, str]:
    """Return epoch, version and release of ``[EPOCH:]VERSION[-RELEASE]``. A missing epoch is 0, a missing release is ""."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    number, _, release = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return (int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) <= EPOCH_DIGITS_MAX else 0, number, release)


def _segments(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return what the parts of a version compare as. Digits compare by their length first, since int() refuses very long ones."""
    found = []
    for segment in _SEGMENT.findall(text):
        if segment == "~":
            found.append((_TILDE, 0, ""))
        elif segment == "^":
            found.append((_CARET, 0, ""))
        elif segment[0].isdigit():
            digits = segment.lstrip("0")
            found.append((_DIGITS, len(digits), digits))
        else:
            found.append((_LETTERS, 0, segment))
    return (*found, (_END, 0, ""))
