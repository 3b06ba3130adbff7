"""Findings, state and time to a decision. (The rules' schema; the judgement follows.)"""

from __future__ import annotations

from msgspec import Struct


class Rules(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Site rules of the decision."""
