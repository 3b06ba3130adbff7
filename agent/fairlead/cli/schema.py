"""Print the JSON Schema of what a command prints with --json. Without a name, list the commands that have one.

fairlead schema          the commands, and the options with which each prints something else
fairlead schema check    the schema of `fairlead check --json` (JSON Schema, draft 2020-12)

A later release may add keys. It removes none and changes no key's meaning without a line in the list of changes. Read a key that
is not in the schema as not known, and not as an error.
"""

from __future__ import annotations

import argparse
from typing import TypedDict

from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, InputMissing, UsageError


class ListedSchema(TypedDict):
    """A command with --json. forms: the words with which it prints something else; [""] if it always prints the same."""

    command: str
    forms: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="?", default="", metavar="NAME", help="the command: check, fleet, why")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> ExitCode:
    import difflib

    from fairlead.cli import COMMANDS
    from fairlead.cli.json_schema import forms, schema, with_json

    if args.command and args.json:
        raise UsageError("a schema is JSON already", hint="--json is for the list")
    known = with_json()
    if args.command and args.command not in known:
        near = difflib.get_close_matches(args.command[:80], known, n=1)
        what = "has no --json, or needs fairlead[provision]" if args.command in COMMANDS else "no such command"
        hint = f"did you mean {near[0]}?" if near else "fairlead schema lists the commands"
        raise InputMissing(f"{args.command[:80]!r}: {what}", hint=hint)
    if args.command:
        print_json(schema(args.command))
    elif args.json:
        print_json([ListedSchema(command=name, forms=list(forms(name))) for name in known])
    else:
        print(columns([(name, "; ".join(words for words in forms(name) if words)) for name in known], ("NAME", "FORMS")))
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": list[ListedSchema]}
