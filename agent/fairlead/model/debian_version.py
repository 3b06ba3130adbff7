"""Orders Debian versions. Source: deb-version(7), "Sorting algorithm"."""

from __future__ import annotations

import re

_PART = re.compile(r"(\D*)(\d*)")


def key(version: str) -> tuple[object, ...]:
    """Return a sort key with dpkg's order: by epoch, then upstream version, then revision. Digits are compared by value. Letters
    come before other characters, and ~ comes before the end of the text."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return (int(epoch) if epoch.isdecimal() else 0, _parts(upstream), _parts(revision))


def _parts(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    found = [((*map(_order, words), 0), int(number or 0)) for words, number in _PART.findall(text)]
    while found and found[-1] == ((0,), 0):
        found.pop()
    return (*found, ((0,), 0))


def _order(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256
