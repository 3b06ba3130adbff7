"""A value that is not there, and why."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Why(StrEnum):
    """Why a value is missing. Only the hardware profile may say UNSUPPORTED; all else is a finding."""

    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


class Missing(Struct, frozen=True):
    """A value that is not there. ``detail`` says what was tried and what came back, in one line."""

    why: Why
    detail: str = ""


def unreadable(detail: str) -> Missing:
    return Missing(Why.UNREADABLE, detail)
