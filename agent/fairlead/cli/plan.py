"""Show what `fairlead provision` would change on each node and why, and which nodes need a reboot or a drain for it.

The command asks the nodes over ssh in a check run, which changes nothing. Nodes with the same plan are shown together. With
--root, the command plans for machine trees (`fairlead snapshot`) instead and asks no node. The declaration then comes from
--document, --profile, the document in the tree, or the site.
Exit codes: 0 all plans are made (with --exit-code: 1 if something would change), 68 a node was not reached, 69 a setting cannot
be applied on some node.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from fairlead import config
from fairlead.cli import provision
from fairlead.cli.chosen_settings import chosen
from fairlead.cli.machine_tree import machine
from fairlead.cli.output import print_json
from fairlead.config import Document
from fairlead.errors import DataError, ExitCode, InputMissing, UsageError, WrongProfile
from fairlead.host import kernel

if TYPE_CHECKING:
    from fairlead.provision.planned_changes import NodePlan


def register(parser: argparse.ArgumentParser) -> None:
    provision.choose_nodes(parser)
    parser.set_defaults(site="")
    parser.add_argument(
        "--root", action="append", default=[], metavar="[NODE=]TREE", help="plan for a machine tree instead of nodes"
    )
    parser.add_argument("--document", default="", metavar="FILE", help="with --root: the document that the node should have")
    parser.add_argument(
        "--profile", metavar="NAME", default="", help="with --root: the hardware profile that the node should have"
    )
    parser.add_argument(
        "--wheelhouse",
        default="",
        metavar="DIR",
        help="a folder with the dependencies' wheels, for every Python version of the nodes",
    )
    parser.add_argument("--diff", action="store_true", help="show the changes as diffs")
    parser.add_argument("--exit-code", action="store_true", help="end with 1 where something would change")
    parser.add_argument("--json", action="store_true", help="print the plan of each node and the groups of equal plans as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.provision import planned_changes

    if (args.document or args.profile) and not args.root:
        raise UsageError("--document and --profile need --root")
    only = chosen("--tags", args.tags)
    unknown: tuple[str, ...] = ()
    if args.root:
        plans = [_of_tree(args, source, only) for source in args.root]
    else:
        plans, unknown = _of_nodes(args, only)
    names = [p.node for p in plans]
    twice = next((n for n in names if names.count(n) > 1), "")
    if twice:
        raise DataError(f"two trees are of node {twice}", hint="name them: --root OTHER_NAME=TREE")
    if args.json:
        print_json(planned_changes.data(plans, unknown))
    else:
        print(planned_changes.text(plans, diff=args.diff, undeclared=unknown))
    states = {p.state for p in plans}
    if "failed" in states:
        return ExitCode.UNAVAILABLE
    if "unreachable" in states:
        return ExitCode.NO_HOST
    return ExitCode.WARN if args.exit_code and "would_change" in states else ExitCode.OK


def _of_nodes(args: argparse.Namespace, only: tuple[str, ...]) -> tuple[list[NodePlan], tuple[str, ...]]:
    """Return the plans, and the nodes that Slurm has and the site does not declare."""
    from fairlead.provision import planned_changes
    from fairlead.provision.provision_run import ProvisionOptions
    from fairlead.provision.provision_run import run as provision_run

    site = config.load_site(args.site or provision.SITE)
    options = ProvisionOptions(
        nodelist=args.nodelist, check=True, diff=args.diff, quiet=args.quiet, wheelhouse=args.wheelhouse, only=only
    )
    report = provision_run(site, options, provision.slurm_client(args))
    return [planned_changes.of_one(result) for result in report.nodes], report.undeclared


def _of_tree(args: argparse.Namespace, source: str, only: tuple[str, ...]) -> NodePlan:
    from fairlead.apply import TreeNvml, apply
    from fairlead.provision import planned_changes

    node, named, path = source.partition("=")
    if not named or os.path.exists(source):
        node, path = "", source
    root = machine(path)
    if root.is_live:
        raise UsageError("--root / is this machine, not a tree", hint="`fairlead apply --dry-run` plans for this machine")
    document, origin = _document(args, path, node or kernel.node_name(root))
    try:
        report = apply(document, root, dry_run=True, nvml=TreeNvml(root), only=only)
    except WrongProfile as e:  # a profile for another GPU fails the plan of this node only
        return planned_changes.NodePlan(node=node or document.node, state="failed", failures=(str(e),), hint=e.hint)
    return planned_changes.of_items(node or document.node, msgspec.to_builtins(report.items), origin=origin)


def _document(args: argparse.Namespace, path: str, node: str) -> tuple[Document, Mapping[str, str]]:
    """Return the document to plan for, and the origin of each value. The origins are empty unless a site declares the node."""
    if args.document:
        return config.load_document(args.document), {}
    if args.profile:
        return config.profile_document(node, args.profile), {}
    own = os.path.join(path, "etc/fairlead/node.json")
    if not args.site and os.path.exists(own):
        return config.load_document(own), {}
    from fairlead.provision.inventory import all_nodes, fold, targets

    file = args.site or provision.SITE
    if not args.site and not os.path.exists(file):
        hint = "say what the node should be: --profile NAME, --document FILE or --site FILE"
        raise InputMissing(f"--root {path}: there is no document in the tree, and no {file}", hint=hint)
    site = config.load_site(file)
    known = all_nodes(site)
    if node not in known:
        hint = f"say which node the tree is of: --root NODE={path}; declared there: {fold(known) or 'none'}; or --profile NAME"
        raise UsageError(f"--root {path}: {node} is not declared in {file}", hint=hint)
    (target,) = targets(site, node)
    return target.document, target.origin


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.provision import planned_changes

    return {"": planned_changes.PlanData}
