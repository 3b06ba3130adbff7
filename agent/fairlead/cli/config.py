"""Check and show documents and sites.

check FILE          list every mistake of a document or a site, and each class's nodes; --root TREE: also whether the hardware
                    profile is for the GPUs of that machine
show [FILE]         show every value; --changed: only values that differ from the defaults; --site FILE --node NAME: of this node
schema              print the JSON Schema of a node's document
profiles            list the hardware profiles that are part of fairlead
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from fairlead import config
from fairlead.cli.output import columns, print_json
from fairlead.cli.value_text import value_text
from fairlead.errors import ExitCode, InputMissing, UsageError
from fairlead.model.nodelist import fold

PEEK_BYTES = 4096  # how much to read of a file whose name does not tell its kind
SLOW = "checking"  # patience.py says it


class FoldedClass(TypedDict):
    """The nodes of a class, in Slurm's notation, and how many they are."""

    nodes: str
    count: int


class SiteMistake(TypedDict):
    """A mistake in a site. key: where it is, "" for the whole file. missing: a named file does not exist."""

    file: str
    key: str
    reason: str
    hint: str
    missing: bool


class CheckedSite(TypedDict):
    """What `config check` says about a site."""

    file: str
    ok: bool
    nodes: int
    generation: int
    classes: dict[str, FoldedClass]
    mistakes: list[SiteMistake]
    notes: list[str]


class DocumentMistake(TypedDict):
    """A mistake in a document. key: where it is."""

    file: str
    key: str
    reason: str
    hint: str


class CheckedDocument(TypedDict):
    """What `config check` says about a node's document. node, generation: of a document without mistakes."""

    file: str
    ok: bool
    node: NotRequired[str]
    generation: NotRequired[int]
    mistakes: list[DocumentMistake]


class ShownDocument(TypedDict):
    """A document, or with --changed the keys that were declared, and which file or profile gave each value."""

    document: dict[str, Any]
    origins: dict[str, str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["check", "show", "schema", "profiles"], help="what to do (see above)")
    parser.add_argument("file", nargs="?", default="", help="a node's document, or a site (.toml)")
    parser.add_argument("--site", metavar="FILE", default="", help="resolve --node from this site")
    parser.add_argument("--node", metavar="NAME", default="", help="the node to resolve")
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="[NODE=]TREE",
        help="check: also compare the GPUs of a node's machine tree with its hardware profile",
    )
    parser.add_argument("--origin", action="store_true", help="also print where each value comes from")
    parser.add_argument("--changed", action="store_true", help="show: only what differs from the defaults, and its origin")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    return {"check": _check, "show": _show, "schema": _schema, "profiles": _profiles}[args.what](args)


def _resolve(site: config.Site, node: str) -> tuple[config.Document, dict[str, str]]:
    from fairlead.config.site import layers_of
    from fairlead.provision.inventory import all_nodes, classes_of

    known = all_nodes(site)
    if node not in known:
        raise UsageError(f"{node}: not declared in {site.file}", hint=f"declared there: {fold(known)}; or add it to a class")
    classes = classes_of(site, node)
    document, origins = config.resolve(site, node, classes)
    for origin, layer in layers_of(site, node, classes)[0]:  # an empty table declares a setting and gives no value
        declared = [name for name, table in layer.get("settings", {}).items() if not table]
        origins |= {f"settings.{name}.managed": origin for name in declared}
    return document, origins


def _check(args: argparse.Namespace) -> ExitCode:
    path = args.file or args.site
    if not path:
        raise UsageError("config check needs a FILE", hint="a node's document, or a site (.toml)")
    check = _check_site if _is_site(path) else _check_document
    return check(path, trees=args.root, as_json=args.json)


def _is_site(path: str) -> bool:
    """Return whether a file is a site, by its name or else by its first bytes. Raise InputMissing if it cannot be read."""
    if path.endswith((".toml", ".json")):
        return path.endswith(".toml")
    try:
        with open(path, "rb") as f:
            return not f.read(PEEK_BYTES).lstrip().startswith(b"{")
    except OSError as e:
        hint = "name a site's file (site.toml), or a node's document (node.json)"
        words = "no such file" if isinstance(e, FileNotFoundError) else e.strerror
        raise InputMissing(f"{path}: {words}", hint=hint) from None


def _check_site(path: str, *, trees: Sequence[str], as_json: bool) -> ExitCode:
    from fairlead.cli.checked_trees import wrong_profiles
    from fairlead.provision.site_check import check_site

    found = check_site(path)
    if trees and not found.mistakes:
        found = msgspec.structs.replace(found, mistakes=wrong_profiles(path, trees))
    classes = {name: (fold(nodes), len(nodes)) for name, nodes in found.classes.items()}
    if as_json:
        print_json(
            CheckedSite(
                file=path,
                ok=not found.mistakes,
                nodes=len(found.nodes),
                generation=found.generation,
                classes={name: FoldedClass(nodes=nodes, count=count) for name, (nodes, count) in classes.items()},
                mistakes=msgspec.to_builtins(found.mistakes),
                notes=list(found.notes),
            )
        )
        return found.exit_code
    _print_mistakes((m.text, m.hint) for m in found.mistakes)
    if not found.mistakes:
        print(f"{path}: right (nodes {len(found.nodes)}, generation {found.generation})")
    for note in found.notes:
        print(f"note: {path}: {note}")
    rows = [(f"  {name}:", nodes, f"({count} node{'s' * (count != 1)})") for name, (nodes, count) in classes.items()]
    if rows:
        print(columns(rows))
    return found.exit_code


def _check_document(path: str, *, trees: Sequence[str], as_json: bool) -> ExitCode:
    from fairlead.cli.checked_trees import wrong_profile
    from fairlead.config.mistakes import file_mistakes

    mistakes = file_mistakes(path)
    if not mistakes:
        mistakes = [e for source in trees if (e := wrong_profile(path, source))]
    if as_json:
        found = [DocumentMistake(file=m.file, key=m.key, reason=m.reason, hint=m.hint) for m in mistakes]
        checked = CheckedDocument(file=path, ok=not mistakes, mistakes=found)
        if not mistakes:
            document = config.load_document(path)
            checked = {"file": path, "ok": True, "node": document.node, "generation": document.generation, "mistakes": []}
        print_json(checked)
    elif mistakes:
        _print_mistakes((str(m), m.hint) for m in mistakes)
    else:
        document = config.load_document(path)
        print(f"{path}: right (node {document.node}, generation {document.generation})")
    return ExitCode.CONFIG if mistakes else ExitCode.OK


def _print_mistakes(lines: Iterable[tuple[str, str]]) -> None:
    """Print each mistake as an error is printed: one line, and one line that says what to do next."""
    for text, hint in lines:
        print(f"fairlead config: {text}", file=sys.stderr)
        if hint:
            print(f"  next: {hint}", file=sys.stderr)


def _show(args: argparse.Namespace) -> ExitCode:
    origins: dict[str, str] = {}
    if args.site:
        if not args.node:
            raise UsageError("config show --site needs --node NAME")
        document, origins = _resolve(config.load_site(args.site), args.node)
    elif args.node:
        file = args.file if args.file and _is_site(args.file) else "FILE"
        raise UsageError("config show --node needs --site FILE", hint=f"config show --site {file} --node {args.node}")
    elif args.file and _is_site(args.file):
        raise UsageError(f"{args.file} is a site, not a node's document", hint=f"config show --site {args.file} --node NAME")
    else:
        document = config.load_document(args.file or "/etc/fairlead/node.json")
    from fairlead.cli import document_text as text

    known = origins or text.origins_of(document)
    values = text.changed(document, known) if args.changed else text.flat(config.to_data(document))
    if args.json:
        data = text.tree(values) if args.changed else config.to_data(document)
        shown = {text.dotted(path): text.origin(path, document, known) for path in values} if args.changed else origins
        print_json(ShownDocument(document=data, origins=shown) if args.origin or args.changed else data)
    elif args.changed:
        print("\n".join(text.changed_lines(document, values, known)))
    else:
        print("\n".join(text.all_lines(document, values, known if args.origin else None)))
    return ExitCode.OK


def _schema(_: argparse.Namespace) -> ExitCode:
    print_json(config.json_schema())
    return ExitCode.OK


def _profiles(args: argparse.Namespace) -> ExitCode:
    profiles = [config.load_profile(name) for name in config.profile_names()]
    if args.file:
        profiles = [p for p in profiles if p.name == args.file]
        if not profiles:
            raise InputMissing(f"profile {args.file!r}: no such profile", hint=f"known: {', '.join(config.profile_names())}")
    if args.json:
        print_json(profiles)
    else:
        for profile in profiles:
            print(f"{profile.name}: {profile.summary}")
            if args.file:
                for v in profile.values:
                    print(f"  {v.key} = {value_text(v.value)}\n      why: {v.why}\n      source: {v.source}")
                for u in profile.undeclared:
                    print(f"  {u.key} is not declared\n      why: {u.why}")
                for r in profile.references:
                    print(f"  reference {r.measure} = {r.value:g} {r.unit}\n      why: {r.why}\n      source: {r.source}")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.model.profile_files import Profile

    return {
        "check SITE": CheckedSite,
        "check DOCUMENT": CheckedDocument,
        "show": config.json_schema(),
        "show --origin or --changed": ShownDocument,
        "profiles": list[Profile],
    }
