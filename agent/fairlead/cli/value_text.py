"""Writes a value of a document as site.toml writes it, without Python's notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

UNSET = "unset"


def value_text(value: Any) -> str:
    """Return the value as TOML writes it; ``unset`` for None, which TOML cannot write."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return UNSET
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key_text(str(key))} = {value_text(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(value_text, value))}]"
    return str(value)


def value_lines(value: Any) -> list[str]:
    """Return the value as lines: one for each table of a list of tables, and one line for any other value."""
    if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        return ["[", *(f"  {value_text(each)}," for each in value), "]"]
    return [value_text(value)]


def key_text(key: str) -> str:
    """Return a key of a table, in quotes where TOML needs them."""
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else json.dumps(key)
