"""Generates the argument specs of the collection's role `declare` from the schema of a node's document.

The checks, settings and sections of the document declare their own keys, types, words and defaults (config/document.py). So the
role has no list of its own: `make docs` writes release/collection/roles/declare/meta/argument_specs.yml, and a test compares it.

An argument spec has types, words, and no ranges or patterns. These are added to the description. `fairlead render` refuses a
value outside of them, before any node is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead import checks, settings
from fairlead.config.document import SECTION_NAMES, node_schema

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "release/collection/roles/declare/meta/argument_specs.yml"
#: Written by hand: the options of the role that are not sections of the document.
OWN = ROOT / "release/collection/roles/declare/meta/own_options.yml"
TYPES = {"boolean": "bool", "integer": "int", "number": "float", "string": "str", "array": "list", "object": "dict"}
SECTIONS = {
    "checks": "Parameters of checks, by the name of the check. A profile may declare other values than the defaults.",
    "settings": "Settings that fairlead makes on the node and keeps, by name. An empty dictionary declares a setting. A profile"
    " may declare other values than the defaults.",
    "policy": "When a finding drains a node, and when fairlead resumes it.",
    "agent": "Options of the agent on the node.",
    "slurm": "How the agent reaches slurmctld.",
    "hooks": "Options of the hooks that Slurm calls.",
    "jobenv": "The environment that jobs get.",
}
PATTERN_MAX = 48  # a longer pattern says nothing to a reader, and does not fit into a line
HEAD = "---\n# `make docs` writes this file from the schema of a node's document and from own_options.yml. Do not edit it.\n"


def text() -> str:
    """Return the file's text."""
    role = yaml.safe_load(OWN.read_text())
    role["options"] |= dict(sections())
    spec = {"argument_specs": {"main": role}}
    return HEAD + yaml.dump(spec, Dumper=_Dumper, sort_keys=False, width=80, allow_unicode=True)


def sections() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of the role that are sections of the document."""
    schema = msgspec.json.schema(node_schema())
    known = schema["$defs"]
    properties = _resolved(schema, known)["properties"]
    names = {"checks": checks.load(), "settings": settings.load()}
    for name in SECTION_NAMES:
        option = _option(properties[name], known) | {"description": SECTIONS[name]}
        for inner, described in names.get(name, {}).items():
            option["options"][inner]["description"] = f"{described.summary}."
        yield f"declare_{name}", {"description": option.pop("description")} | option


def _option(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that a JSON Schema describes. Its keys are in the order of Ansible's documentation."""
    resolved = _resolved(schema, known)
    kinds = [k for k in (_resolved(each, known) for each in resolved.get("anyOf", [resolved])) if k.get("type") != "null"]
    kind = kinds[0] if len(kinds) == 1 else {}
    made: dict[str, Any] = {"description": _described(schema.get("description") or resolved.get("description", ""), kind)}
    words = [word for word in kind.get("enum", ()) if word is not None]
    if words and all(isinstance(word, int) for word in words):
        return made | {"type": "int", "choices": words} | _default(schema)
    if words:
        return made | {"type": "str", "choices": words} | _default(schema)
    made["type"] = TYPES.get(kind.get("type", ""), "raw")
    if made["type"] == "list":
        made |= _elements(kind, known)
    elif "properties" in kind:
        made["options"] = {name: _option(inner, known) for name, inner in kind["properties"].items()}
    return made | _default(schema)


def _elements(kind: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    entries = kind.get("prefixItems") or [kind.get("items") or {}]
    entry = _option(entries[0] if isinstance(entries[0], dict) else {}, known)
    return {"elements": entry["type"], **{key: entry[key] for key in ("choices", "options") if key in entry}}


def _resolved(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    return known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _default(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of an option. That of a table is not written, because its keys have defaults of their own."""
    value = schema.get("default")
    return {} if value is None or isinstance(value, dict) else {"default": value}


def _described(words: str, kind: Mapping[str, Any]) -> str:
    """Return the description, with the limits that an argument spec cannot express."""
    low, high = kind.get("minimum"), kind.get("maximum")
    limits = f"From {_number(low)} to {_number(high)}." if low is not None and high is not None else ""
    limits = f"At least {_number(low)}." if low is not None and high is None else limits
    limits = f"Matches {kind['pattern']}" if len(kind.get("pattern", "")) in range(1, PATTERN_MAX) else limits
    first = words.split("\n\n", maxsplit=1)[0].replace("\n", " ")
    return " ".join(part for part in (first, limits) if part) or "See the reference."


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class _Dumper(yaml.SafeDumper):
    """Writes a list below its key with two more columns, as yamllint wants it, and every value in full."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:
        return True
