"""Decodes the bytes of a document to a table, or raises an error of one short line."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from fairlead.errors import ConfigError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import shown

MAX_BYTES = 4 << 20  # A node's document with every key set has some ten thousand bytes.
_ERROR_MAX_CHARACTERS = 300
_ANEW = "run `fairlead provision` again for this node"


def decode(data: bytes, where: str) -> dict[str, Any]:
    """Return the table that the bytes hold. Raises ConfigError for bytes that are too large, not UTF-8, nested too deeply or
    not a table, and for a key that appears twice."""
    if len(data) > MAX_BYTES:
        raise ConfigError(where, "", f"larger than {MAX_BYTES} bytes", hint=_ANEW)
    try:
        raw = msgspec.json.decode(data)
        json.loads(data, object_pairs_hook=_once)
    except ConfigError as e:
        raise ConfigError(where, short(e.key, 100), e.reason, hint=_ANEW) from None
    except RecursionError:
        raise ConfigError(where, "", "not JSON: nested too deeply", hint=_ANEW) from None
    except (*NOT_JSON, ValueError) as e:
        raise ConfigError(where, "", short(f"not JSON: {e}"), hint=_ANEW) from None
    if not isinstance(raw, dict):
        raise ConfigError(where, "", "not a JSON object", hint=_ANEW)
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return one table of a document. Raises ConfigError where a key appears twice, because JSON readers silently ignore one
    of the two. Raises it also where a text has a zero character, which no path and no variable can hold."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError("", key, "appears twice")
        if "\0" in key or any(isinstance(v, str) and "\0" in v for v in (value if isinstance(value, list) else (value,))):
            raise ConfigError("", key, "holds a zero character")
        found[key] = value
    return found


def short(text: str, limit: int = _ERROR_MAX_CHARACTERS) -> str:
    """Return a text of the file for an error message: only printable characters, and at most ``limit`` of them."""
    plain = shown(text[: limit + 1], "?")
    return plain if len(plain) <= limit else f"{plain[:limit]}..."
