"""Explain a check, a setting, an Xid or an SXid, with the text of the reference pages, offline.

fairlead explain xid 79           fairlead explain sxid 20034       fairlead explain list
fairlead explain row_remap        fairlead explain setting pcie_acs fairlead explain 79 (an Xid)

For an Xid it shows the meaning, the action and the reason, what other public health systems do by default, and what the
document of this node (or --document) says about it.
"""

from __future__ import annotations

import argparse
import importlib
import re
from typing import Any, NotRequired, TypedDict

import msgspec

from fairlead import checks, settings
from fairlead.cli.output import print_json
from fairlead.cli.value_text import value_text
from fairlead.cli.wrapped_text import page, wrap
from fairlead.errors import ExitCode, InputMissing


class ExplainedName(TypedDict):
    """A check or a setting."""

    kind: str
    name: str
    summary: str


class ExplainedNames(TypedDict):
    """All checks and settings. text: what the command prints without --json."""

    names: list[ExplainedName]
    text: str


class ExplainedParameter(TypedDict):
    """A parameter. default: absent for one that has to be given."""

    name: str
    default: NotRequired[Any]
    description: str


class ExplainedCheck(ExplainedName):
    """A check or a setting, with the text of its page and its parameters."""

    doc: str
    parameters: list[ExplainedParameter]
    text: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="WHAT", help="xid CODE, sxid CODE, the name of a check or setting, or the word list"
    )
    parser.add_argument("--document", default="", metavar="FILE", help="the document with the site's own choice (xid, sxid)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    words = [word.lower() for word in args.what]
    if len(words) == 1 and (code := re.fullmatch(r"(xid|sxid)?[ :=-]?(\d{1,7})", words[0])):
        words = [code[1] or "xid", code[2]]
    if words[0] == "list":
        data = _list()
    elif words[0] in ("xid", "sxid") and len(words) == 2:
        from fairlead.cli.explain_xid import explain

        data = explain(words[0], words[1], args.document)
    else:
        data = _named(words[-1].removeprefix("setting."), "setting" in words[0])
    if args.json:
        print_json(data)
    else:
        print(data["text"])
    return ExitCode.OK


def _list() -> dict[str, Any]:
    rows = [("check", n, c.mode.value, c.summary) for n, c in checks.load().items()]
    rows += [("setting", n, s.disruption.value, s.summary) for n, s in settings.load().items()]
    names = [{"kind": k, "name": n, "summary": s} for k, n, _, s in rows]
    lines = [line for k, n, word, s in rows for line in (f"{k} {n} ({word})", *wrap(s, "    ", "    "))]
    head = "In brackets: a check's mode, or what a setting's change needs of the node."
    return {"names": names, "text": "\n".join([head, "", *lines])}


def _specs(struct: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each parameter, by name."""
    schema = msgspec.json.schema(struct)
    body = schema["$defs"][struct.__name__] if "$defs" in schema else schema
    return dict(body.get("properties", {}))


def parameters(struct: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    """Return name, default and meaning of each parameter, as text. The default is written as in site.toml."""
    return [
        (name, value_text(spec["default"]) if "default" in spec else "required", spec.get("description", ""))
        for name, spec in _specs(struct).items()
    ]


def _table(struct: type[msgspec.Struct]) -> list[str]:
    lines: list[str] = []
    for name, default, meaning in parameters(struct):
        lines += wrap(f"{name} = {default}", "  ", "      ")
        lines += wrap(meaning, "      ", "      ") if meaning else []
    return lines


def _named(name: str, prefer_setting: bool) -> dict[str, Any]:
    for kind, found in (("settings", settings.load()), ("checks", checks.load()))[:: 1 if prefer_setting else -1]:
        if name not in found:
            continue
        item = found[name]
        struct = getattr(item, "params", None) or item.want  # type: ignore[union-attr]
        doc = (importlib.import_module(f"fairlead.{kind}.{name}").__doc__ or "").strip()
        listed = [
            {"name": n, **({"default": spec["default"]} if "default" in spec else {}), "description": spec.get("description", "")}
            for n, spec in _specs(struct).items()
        ]
        kind_word = kind.removesuffix("s")
        head = wrap(f"{kind_word} {name}: {item.summary}", "", "  ")
        text = "\n".join([*head, "", *page(doc), "", "Parameters, with their defaults:", "", *_table(struct)])
        return {"kind": kind_word, "name": name, "summary": item.summary, "doc": doc, "parameters": listed, "text": text}
    from fairlead.config import schema_keys

    names = [*checks.load(), *settings.load()]
    known = f"known: {', '.join(names)}; or `fairlead explain xid CODE`"
    raise InputMissing(f"{name!r} is neither a check nor a setting", hint=f"{schema_keys.meant(name, names)} {known}".strip())


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import explain_xid

    return {
        "CHECK or SETTING": ExplainedCheck,
        "list": ExplainedNames,
        "xid": explain_xid.ExplainedXid,
        "sxid": explain_xid.ExplainedSxid,
    }
