"""Check and show documents and sites.

check FILE          is this document (.json) or site (.toml) right?
show [FILE]         every value; --changed: only what differs from the defaults, and
                    who says so; with --site FILE --node NAME: of a node of the site
schema              JSON Schema of a node's document
profiles            the hardware profiles that are carried along
"""

from __future__ import annotations

import argparse

from fairlead import config
from fairlead.cli.output import print_json
from fairlead.cli.value_text import value_text
from fairlead.errors import ExitCode, InputMissing, UsageError


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["check", "show", "schema", "profiles"])
    parser.add_argument("file", nargs="?", default="", help="a node's document, or a site (.toml)")
    parser.add_argument("--site", default="", help="resolve --node from this site")
    parser.add_argument("--node", default="", help="the node to resolve")
    parser.add_argument("--origin", action="store_true", help="also print where each value comes from")
    parser.add_argument("--changed", action="store_true", help="show: only what differs from the defaults, and who says so")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> ExitCode:
    return {"check": _check, "show": _show, "schema": _schema, "profiles": _profiles}[args.what](args)


def _resolve(site: config.Site, node: str) -> tuple[config.Document, dict[str, str]]:
    from fairlead.config.site import layers_of
    from fairlead.provision.inventory import all_nodes, classes_of

    if node not in all_nodes(site):
        raise UsageError(f"{node}: not declared in {site.file}", hint="add it to a class there")
    classes = classes_of(site, node)
    document, origins = config.resolve(site, node, classes)
    for origin, layer in layers_of(site, node, classes)[0]:  # a setting may be declared by an empty table, which gives no value
        declared = [name for name, table in layer.get("settings", {}).items() if not table]
        origins |= {f"settings.{name}.managed": origin for name in declared}
    return document, origins


def _check(args: argparse.Namespace) -> ExitCode:
    args.file = args.file or args.site
    if not args.file:
        raise UsageError("config check needs a FILE", hint="a node's document, or a site (.toml)")
    if args.file.endswith(".toml"):
        from fairlead.provision.inventory import targets

        site = config.load_site(args.file)
        nodes = targets(site)
        result = {"file": args.file, "ok": True, "nodes": len(nodes), "generation": site.generation}
    else:
        document = config.load_document(args.file)
        result = {"file": args.file, "ok": True, "node": document.node, "generation": document.generation}
    if args.json:
        print_json(result)
    else:
        print(f"{args.file}: right ({', '.join(f'{k} {v}' for k, v in result.items() if k not in {'file', 'ok'})})")
    return ExitCode.OK


def _show(args: argparse.Namespace) -> ExitCode:
    origins: dict[str, str] = {}
    if args.site:
        if not args.node:
            raise UsageError("config show --site needs --node NAME")
        document, origins = _resolve(config.load_site(args.site), args.node)
    elif args.node:
        raise UsageError("config show --node needs --site FILE")
    elif args.file.endswith(".toml"):
        raise UsageError(f"{args.file} is a site, not a node's document", hint=f"config show --site {args.file} --node NAME")
    else:
        document = config.load_document(args.file or "/etc/fairlead/node.json")
    from fairlead.cli import document_text as text

    known = origins or text.origins_of(document)
    values = text.changed(document, known) if args.changed else text.flat(config.to_data(document))
    if args.json:
        data = text.tree(values) if args.changed else config.to_data(document)
        shown = {text.dotted(path): text.origin(path, document, known) for path in values} if args.changed else origins
        print_json({"document": data, "origins": shown} if args.origin or args.changed else data)
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
                for r in profile.references:
                    print(f"  reference {r.measure} = {r.value:g} {r.unit}\n      why: {r.why}\n      source: {r.source}")
    return ExitCode.OK
