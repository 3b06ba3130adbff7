"""Write what a playbook of your own needs to use fairlead's roles: the bundle for the nodes, an inventory, and the roles.

Run this command before `ansible-playbook` (docs/how-to/ansible.md), because it writes the site's declaration as it is now. The
Ansible installation that uses the output does not need fairlead. The command makes the same checks as `fairlead provision`. It
asks no node.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypedDict

from fairlead import config
from fairlead.cli import chosen_settings, provision
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode

SLOW = "collecting the wheels"  # patience.py says it


class RenderedFolder(TypedDict):
    """The folder for a playbook. nodes: in Slurm's notation. written: whether anything in it was changed."""

    output: str
    nodes: str
    generation: int
    written: bool


def register(parser: argparse.ArgumentParser) -> None:
    provision.choose_nodes(parser)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write; nothing else may be in it")
    parser.add_argument(
        "--wheel", metavar="FILE", default="", help="use this wheel of fairlead instead of one packed from this installation"
    )
    parser.add_argument(
        "--wheelhouse",
        default="",
        metavar="DIR",
        help="a folder with the dependencies' wheels, for every Python version of the nodes",
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="check everything, write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.provision import wheels
    from fairlead.provision.inventory import fold, in_slurm, targets
    from fairlead.provision.rendered_playbook import render

    site = config.load_site(args.site)
    slurm = provision.slurm_client(args)
    chosen = targets(site, args.nodelist, in_slurm(slurm) if slurm else None)
    only = chosen_settings.chosen("--tags", args.tags)
    own = wheels.own_from(args.wheel)
    houses = wheels.collect(args.wheelhouse, fetch=not args.dry_run)
    output = Path(args.output)
    written = not args.dry_run and render(site, chosen, own, houses, output, state="present", undo=False, force=False, only=only)
    nodes = fold([t.node for t in chosen])
    if args.json:
        print_json(RenderedFolder(output=str(output.absolute()), nodes=nodes, generation=site.generation, written=written))
    else:
        print(f"{output}: {'written' if written else 'nothing written' if args.dry_run else 'unchanged'}: {nodes}")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": RenderedFolder}
