"""Finds every mistake of a document or of one of its layers. msgspec stops at the first one, but a person who corrects a file
needs the whole list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin

import msgspec

from fairlead.config import document_json, schema_keys
from fairlead.config.document import (
    HEAD_OF_LAYER,
    READABLE_SCHEMAS,
    config_error,
    load_document,
    merge,
    mistakes_of_values,
    node_schema,
    unknown_key,
)
from fairlead.config.mig_declared import mig_mistakes
from fairlead.errors import ConfigError

MISSING = "Object missing required field"


def mistakes(value: object, schema: Any, where: str, table: str = "", *, partial: bool = False) -> Iterator[ConfigError]:
    """Yield each part of a value that its type does not allow, with its dotted key.

    table: the key of the value itself. partial: the value is a layer, which may leave out required keys.
    """
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError:
        yield from _of(value, schema, where, table, schema, partial=partial)


def _of(value: object, schema: Any, where: str, key: str, root: Any, *, partial: bool) -> Iterator[ConfigError]:
    inner = [*_inside(value, schema_keys.bare(schema), where, key, root, partial=partial)]
    if inner:
        yield from inner
        return
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as e:
        if not (partial and str(e).startswith(MISSING)):
            yield config_error(where, e, key, schema=schema)


def _inside(value: object, schema: Any, where: str, key: str, root: Any, *, partial: bool) -> Iterator[ConfigError]:
    """Yield the mistakes of the entries of a table or a list."""
    if schema_keys.is_table(schema) and isinstance(value, Mapping):
        known = schema_keys.fields(schema)
        for name, entry in value.items():
            if name in known:
                yield from _of(entry, known[name], where, _joined(key, name), root, partial=partial)
            elif schema.__struct_config__.forbid_unknown_fields:
                yield unknown_key(where, key, str(name), tuple(known), schema=root)
    elif get_origin(schema) is dict and isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _of(name, schema_keys.key_type(schema), where, _joined(key, str(name)), root, partial=partial)
            yield from _of(entry, schema_keys.value_type(schema), where, _joined(key, str(name)), root, partial=partial)
    elif get_origin(schema) in (tuple, list) and isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _of(entry, schema_keys.value_type(schema), where, f"{key}[{number}]", root, partial=partial)


def _joined(key: str, name: object) -> str:
    return f"{key}.{name}".strip(".")


def layer_mistakes(origin: str, layer: Mapping[str, Any]) -> list[ConfigError]:
    """Return every mistake of a layer."""
    found = [*mig_mistakes(origin, layer)]
    of_mig = [m.key for m in found]
    typed = [*mistakes({**layer, **HEAD_OF_LAYER}, node_schema(), origin, partial=True)]
    found += [m for m in typed if not any(m.key.startswith(key) for key in of_mig)]
    return [*found, *mistakes_of_values(origin, _without(layer, [m.key for m in typed]))]


def _without(layer: Mapping[str, Any], wrong: Sequence[str]) -> dict[str, Any]:
    """Return a layer without the tables that have a value of a wrong type. Each setting is a table of its own here."""
    right = {name: table for name, table in layer.items() if name != "settings" and not _among(name, wrong)}
    settings = {} if "settings" in wrong else layer.get("settings", {})
    return right | {"settings": {n: table for n, table in settings.items() if not _among(f"settings.{n}", wrong)}}


def _among(table: str, keys: Sequence[str]) -> bool:
    return any(key == table or key.startswith((f"{table}.", f"{table}[")) for key in keys)


def together_mistakes(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[ConfigError]:
    """Return every mistake of the document that layers without mistakes make together, such as a required value that no layer
    has."""
    data: dict[str, Any] = {}
    for origin, layer in layers:
        merge(data, layer, origin, {})
    where = " + ".join(origin for origin, _ in layers) or "defaults"
    return [*mistakes({**data, **HEAD_OF_LAYER}, node_schema(), where)]


def file_mistakes(path: str) -> list[ConfigError]:
    """Return every mistake of a document's file, or [] if it has none. Raise InputMissing for a file that cannot be read."""
    try:
        load_document(path)
    except ConfigError as first:
        return _all_of_file(path) or [first]
    return []


def _all_of_file(path: str) -> list[ConfigError]:
    """Return the mistakes of a file that contains a table, or [] for any other file."""
    try:
        with open(path, "rb") as f:
            raw = document_json.decode(f.read(document_json.MAX_BYTES + 1), path)
    except (ConfigError, OSError):
        return []
    if raw.get("schema") not in READABLE_SCHEMAS:
        return []
    short = document_json.short
    return [ConfigError(path, short(m.key, 100), short(m.reason), hint=m.hint) for m in mistakes(raw, node_schema(), path)]
