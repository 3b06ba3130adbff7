"""Reads NCCL's version numbers, and the ranges of versions in profiles: ``>=2.21``, ``>=2.18,<2.20``, or "" for any version."""

from __future__ import annotations

CURRENT = (2, 30)  # the version that is assumed if a site does not declare which NCCL its jobs use


def parse(text: str) -> tuple[int, ...]:
    """Return (2, 21) for "2.21", and CURRENT for "". Raises ValueError."""
    return tuple(int(part) for part in text.split(".")) if text else CURRENT


def within(version: tuple[int, ...], expression: str) -> bool:
    """Say whether a version lies in a range. Raises ValueError for text that is not a range."""
    for part in expression.split(",") if expression else ():
        if part.startswith(">="):
            fits = version >= parse(part[2:])
        elif part.startswith("<"):
            fits = version < parse(part[1:])
        else:
            raise ValueError(f"{part!r}: not a range of versions (>=2.21, <2.30)")
        if not fits:
            return False
    return True
