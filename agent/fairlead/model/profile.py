"""Hardware profiles: what a kind of node should be. Every value carries why and source."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Value(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One declared value: dotted ``key`` of the node document, why it is so, and who says it."""

    key: str
    value: Any
    why: str
    source: str


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile file (TOML). ``unsupported``: facts this hardware cannot give, skipped instead of found unreadable
    (dotted names of Gpu fields, such as ``nvlinks`` or ``ecc.sram_threshold_exceeded``)."""

    name: str
    summary: str
    unsupported: tuple[str, ...] = ()
    unsupported_why: str = ""
    values: tuple[Value, ...] = ()
