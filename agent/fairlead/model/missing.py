"""Describes a value that is not there, and why."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Why(StrEnum):
    """Says why a value is missing. Only the hardware profile may say UNSUPPORTED; everything else is a finding."""

    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


class Missing(Struct, frozen=True):
    """Stands for a value that is not there. ``detail`` says in one line what was tried and what came back."""

    why: Why
    detail: str = ""


def unreadable(detail: str) -> Missing:
    return Missing(Why.UNREADABLE, detail)
