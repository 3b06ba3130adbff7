"""Finds the keys of a schema by dotted path. For an unknown key, it finds the key that was probably meant.

This module is imported only where a mistake was found. A node that reads a document without mistakes does not need it.
"""

from __future__ import annotations

import difflib
import enum
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct, UnsetType

ALIKE = 0.7  # the least similarity of two words, 0 to 1 (difflib.get_close_matches)


def bare(schema: Any) -> Any:
    """Return a type without its Annotated wrapper, and without None and UNSET in its union."""
    while get_origin(schema) is Annotated:
        schema = get_args(schema)[0]
    if get_origin(schema) in (Union, types.UnionType):
        rest = [t for t in get_args(schema) if t not in (UnsetType, types.NoneType)]
        return bare(rest[0]) if len(rest) == 1 else schema
    return schema


def is_table(schema: Any) -> bool:
    """Return whether the type is a table with keys of its own."""
    return isinstance(schema, type) and issubclass(schema, Struct)


def fields(schema: Any) -> dict[str, Any]:
    """Return the keys of a table and their types."""
    return {f.encode_name: f.type for f in msgspec.structs.fields(schema)}


def at(schema: Any, path: str) -> Any:
    """Return the type at a dotted path, or None if the schema has no such path. msgspec writes paths ``a.b[0].c``, ``a[...]``."""
    for step in path.replace("[", ".[").split("."):
        schema = bare(schema)
        if not step:
            continue
        if is_table(schema):
            schema = fields(schema).get(step)
        elif step.startswith("[") and get_args(schema):
            schema = get_args(schema)[-1 if get_origin(schema) is dict else 0]
        else:
            return None
    return bare(schema)


def words(schema: Any) -> tuple[str, ...]:
    """Return the words that a value of this type can be, or () if the type does not list words."""
    if get_origin(schema) is Literal:
        return tuple(str(word) for word in get_args(schema))
    if isinstance(schema, type) and issubclass(schema, enum.Enum):
        return tuple(str(member.value) for member in schema)
    return ()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to this word, or "" if no known word is similar."""
    plain = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word[:100].lower().replace("-", "_"), plain, n=1, cutoff=ALIKE)
    return plain[found[0]] if found else ""


def elsewhere(word: str, schema: Any) -> str:
    """Return the only path below the schema's sections that ends with this word, or "" if no path or several paths do."""
    found = [path for path in _paths(schema) if path.rpartition(".")[2] == word and "." in path]
    return found[0] if len(found) == 1 else ""


def _paths(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, kind in fields(schema).items():
        yield f"{prefix}{name}"
        if is_table(bare(kind)):
            yield from _paths(bare(kind), f"{prefix}{name}.")


def meant(word: str, known: Iterable[str], schema: Any = None) -> str:
    """Return the question that a hint begins with, such as "did you mean `agent`?". Return "" if no known word is similar."""
    like = nearest(word, known)
    if like:
        return f"did you mean `{like}`?"
    other = elsewhere(word, schema) if schema is not None else ""
    return f"did you mean `{other}`?" if other else ""


def key_type(schema: Any) -> Any:
    """Return the type of the keys of a mapping."""
    arguments = get_args(schema)
    return arguments[0] if arguments else Any


def value_type(schema: Any) -> Any:
    """Return the type of the values of a mapping, or of the entries of a list."""
    arguments = get_args(schema)
    return arguments[-1 if get_origin(schema) is dict else 0] if arguments else Any
