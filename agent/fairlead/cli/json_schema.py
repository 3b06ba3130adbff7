"""Makes the JSON Schema of what a command prints with --json.

Each such command has a function ``json_types()``. It returns what the command prints, by the words on its command line that
choose it ("" if there is no choice): a type, or a JSON Schema that is ready.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead.cli import COMMANDS, EXTRAS, command_parser

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"


def with_json() -> list[str]:
    """Return the commands that have --json, in the order of the help, without those whose extra is not installed."""
    return [name for name in COMMANDS if _has_json(name)]


def _has_json(command: str) -> bool:
    try:
        if not any("--json" in action.option_strings for action in command_parser(command)._actions):
            return False
        forms(command)
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in EXTRAS:
            raise
        return False
    return True


def forms(command: str) -> dict[str, object]:
    """Return what a command prints, by the words that choose it."""
    module = importlib.import_module(f"fairlead.cli.{command.replace('-', '_')}")
    found: dict[str, object] = module.json_types()
    return found


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's output. With several forms, it is one of them, each with its title."""
    found = forms(command)
    title = f"fairlead {command} --json"
    defs: dict[str, Any] = {}
    ready = {words: each for words, each in found.items() if isinstance(each, dict)}
    typed = {words: each for words, each in found.items() if not isinstance(each, dict)}
    bodies, parts = msgspec.json.schema_components(list(typed.values()), schema_hook=_hook, ref_template=_REF)
    always = _always_written(typed.values())
    _add(defs, ((name, _with_required(part, always.get(name, ()))) for name, part in parts.items()))
    made = dict(zip(typed, bodies, strict=True))
    for words, each in ready.items():
        _add(defs, each.get("$defs", {}).items())
        made[words] = {key: value for key, value in each.items() if key not in ("$defs", "$schema")}
    head = {"$schema": DIALECT, "title": title}
    if list(found) == [""]:
        body = made[""]
    else:
        body = {"anyOf": [{"title": f"{title} {words}".strip(), **_alone(made[words])} for words in found]}
    return {**head, **body, **({"$defs": defs} if defs else {})}


def extended(
    name: str, base: type[msgspec.Struct], more: Mapping[str, object] = {}, *, without: Iterable[str] = (), doc: str = ""
) -> type:
    """Return a type with the fields of ``base``, except ``without``, and more fields. For output that adds keys to a Struct."""
    kept = [field for field in msgspec.structs.fields(base) if field.name not in {*without, *more}]
    fields: list[Any] = [(f.encode_name, f.type) if f.required else (f.encode_name, f.type, _default(f)) for f in kept]
    added = [(key, each) if not _may_be_absent(each) else (key, each, msgspec.UNSET) for key, each in more.items()]
    return msgspec.defstruct(name, [*fields, *added], kw_only=True, namespace={"__doc__": doc or base.__doc__})


def named(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of the type that a schema's body refers to, and whether the body is a list of it."""
    many = body.get("type") == "array"
    inner = body.get("items", {}) if many else body.get("allOf", [body])[0]
    return inner.get("$ref", "").rpartition("/")[2] or str(inner.get("title", inner.get("type", "object"))), many


def list_of(kind: Any) -> Any:
    """Return the type of a list whose elements have a type that ``extended`` made."""
    return list[kind]


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


def _may_be_absent(each: object) -> bool:
    return isinstance(each, types.UnionType) and msgspec.UnsetType in each.__args__


def _always_written(kinds: Iterable[object]) -> dict[str, tuple[str, ...]]:
    """Return by name the keys that each Struct below these types always writes. msgspec's schema requires only the fields
    without a default, because it describes what may be read."""
    found: dict[str, tuple[str, ...]] = {}
    left: list[Any] = list(msgspec.inspect.multi_type_info(kinds))
    while left:
        info = left.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls.__name__ in found:
                continue
            omits = info.cls.__struct_config__.omit_defaults
            fields = msgspec.structs.fields(info.cls)
            found[info.cls.__name__] = tuple(
                f.encode_name for f in fields if f.required or not (omits or f.default is msgspec.UNSET)
            )
        if isinstance(info, msgspec.Struct):
            left += [getattr(info, name) for name in info.__struct_fields__]
        elif isinstance(info, tuple):
            left += info
    return found


def _with_required(part: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    words = {"description": " ".join(part["description"].split())} if "description" in part else {}
    return part | words | ({"required": [*keys]} if keys else {})


def _alone(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body that may have a title beside it. An old reader takes a $ref with other keys for the $ref alone."""
    return {"allOf": [body]} if "$ref" in body else body


def _add(defs: dict[str, Any], more: Iterable[tuple[str, Any]]) -> None:
    for name, each in more:
        if defs.setdefault(name, each) != each:
            raise ValueError(f"two types are named {name}")


def _hook(kind: type) -> dict[str, Any]:
    raise NotImplementedError(kind)
