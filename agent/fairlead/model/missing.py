"""Describes a value that could not be read or that the hardware does not have, and the reason."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Why(StrEnum):
    """Names why a value is missing. Only the hardware profile may declare a value UNSUPPORTED. An UNREADABLE value becomes a
    finding."""

    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


class Missing(Struct, frozen=True):
    """Describes a missing value. ``detail``: one line about what was tried and what came back."""

    why: Why
    detail: str = ""


def unreadable(detail: str) -> Missing:
    return Missing(Why.UNREADABLE, detail)
