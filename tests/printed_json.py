"""Holds what commands print with --json to the schemas that `fairlead schema` prints.

``install`` makes every command do so that a test runs in its own process. ``hold`` is for the output of other processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

import fairlead.cli
from fairlead.cli import output

SIZE_MAX = 300_000  # larger ones repeat what smaller ones have; checking them takes seconds
#: They pass on what a node's agent says, and tests feed them agents of other releases. test_json_schema.py runs a real one.
PASS_ON = ("status", "why")
_running: list[str] = []


def closed(schema: Any) -> Any:
    """Return a schema that allows no other keys than those it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(each) for key, each in schema.items()}
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


@cache
def validator(command: str) -> Any:
    # jsonschema imports rfc3987_syntax, for the format "iri": 1.5 s. No schema of ours has that format.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None: an import raises ImportError
    from jsonschema import Draft202012Validator  # takes 0.2 s, which tests without JSON need not wait for

    from fairlead.cli import json_schema

    schema = json_schema.schema(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(schema))


def mistakes(command: str, data: Any) -> list[str]:
    """Return in what an output differs from the schema of its command."""
    return [line for error in validator(command).iter_errors(data) for line in _lines(error)]


def hold(command: str, text: str) -> Any:
    """Return what a command printed as JSON. Fail if it is not as its schema says."""
    data = json.loads(text)
    assert not (found := mistakes(command, data)), (
        f"fairlead {command} --json is not as `fairlead schema {command}` says: {found}"
    )
    return data


def _lines(error: Any) -> Iterator[str]:
    for below in error.context or ():
        yield from _lines(below)
    if not error.context:
        yield f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def install() -> None:
    """Check what each command prints, from now on. Commands import print_json when they run, so this has to come before."""
    run, write = fairlead.cli._run, output.print_json

    def named(args: list[str]) -> int:
        _running.append(args[0] if "--json" in args else "")
        try:
            return run(args)
        finally:
            _running.pop()

    def checked(data: Any) -> None:
        packed = msgspec.json.encode(data)
        if _running and (command := _running[-1]) and command not in PASS_ON and len(packed) < SIZE_MAX:
            found = mistakes(command, json.loads(packed))
            assert not found, f"fairlead {command} --json is not as its schema says: {found[:5]}"
        write(data)

    fairlead.cli._run, output.print_json = named, checked
