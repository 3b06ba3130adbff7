"""Print the version. With --fleet: which release each node has installed, which release its agent runs, and which hooks it has.

--fleet asks Slurm for the nodes and the nodes over ssh, as `fairlead fleet` does. Nodes that run the same share one row. A node
that does not answer is named, and counts as nothing. HOOKS is a digest; nodes with equal hooks have the same one.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, TypedDict

from fairlead import __version__
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ExitCode, InputMissing, UsageError

if TYPE_CHECKING:
    from fairlead.controller.controller_release import ControllerRelease
    from fairlead.provision.node_versions import NodeVersions

SITE = "/etc/fairlead/site.toml"


class OwnVersion(TypedDict):
    """This program: its version, the schema of the documents that it writes, and its Python."""

    version: str
    document_schema: int
    python: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodelist", nargs="?", default="", help="with --fleet: ask only these nodes: gpu[001-064]")
    parser.add_argument("--fleet", action="store_true", help="say what each node runs")
    parser.add_argument("-p", "--partition", metavar="NAME", default="", help="with --fleet: only the nodes of this partition")
    parser.add_argument(
        "--site", metavar="FILE", default="", help=f"the site whose [ansible] says how ssh reaches the nodes ({SITE})"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="wait so long for all nodes together")
    parser.add_argument("--ssh", default="ssh", metavar="PROGRAM", help="the program to call in place of ssh")
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument("--store", metavar="DIR", default="", help="the store of `fairlead collect` (/var/lib/fairlead-collect)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.fleet:
        return _fleet(args)
    if args.nodelist or args.partition:
        raise UsageError("nodes need --fleet")
    if args.json:
        from fairlead.config import SCHEMA

        print_json(OwnVersion(version=__version__, document_schema=SCHEMA, python=sys.version.split()[0]))
    else:
        print(f"fairlead {__version__}")
    return ExitCode.OK


def _fleet(args: argparse.Namespace) -> ExitCode:
    from fairlead.assets import running_release
    from fairlead.cli import version_table
    from fairlead.provision.node_versions import own_hooks

    if args.timeout is not None and not 0.5 <= args.timeout <= 600:
        raise UsageError("--timeout: must be from half a second to ten minutes")
    found = _asked(args)
    ours, hooks = running_release() or __version__, own_hooks()
    words, controller = _controller(args.store)
    if args.json:
        print_json(version_table.data(found, ours=ours, hooks=hooks, controller=controller))
    else:
        print(version_table.text(found, ours=ours, hooks=hooks, controller=words))
    return ExitCode.OK


def _asked(args: argparse.Namespace) -> dict[str, NodeVersions]:
    """Return what each node runs, in Slurm's order."""
    from fairlead import config
    from fairlead.cli.fleet import answered
    from fairlead.cli.fleet_poll import FleetPoller
    from fairlead.provision.node_versions import COMMAND, NodeVersions, versions_of

    site = config.load_site(args.site or SITE) if args.site or os.path.exists(SITE) else None
    answers: dict[str, bytes] = {}
    poller = FleetPoller(
        site,
        nodelist=args.nodelist,
        partition=args.partition,
        seconds=args.timeout,
        program=args.ssh,
        conf=args.slurm_conf,
        bin_dir=args.bin_dir,
        on_answer=answered if sys.stderr.isatty() else None,
        ask=(COMMAND, answers.__setitem__),
    )
    try:
        poll = poller.poll()
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
    if not poll.rows:
        raise InputMissing(f"Slurm has no node {args.nodelist or ''}{args.partition and f' in {args.partition}'}".rstrip())
    found = {}
    for row in poll.rows:
        silent = (row.account.trouble if row.account is not None else "") or "not asked"
        found[row.node] = versions_of(answers[row.node]) if row.node in answers else NodeVersions(trouble=silent)
    return found


def _controller(store: str) -> tuple[str, ControllerRelease | None]:
    """Return which release the controller's programs here are, in words and for --json."""
    from fairlead.cli.controller_paths import STORE
    from fairlead.controller.controller_release import read_note
    from fairlead.errors import HostError

    try:
        found = read_note(store or STORE)
    except HostError as e:
        return f"not known ({e})", None
    return ("none here", None) if found is None else (found.words, found)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import version_table

    return {"": OwnVersion, "--fleet": version_table.FleetVersions}
