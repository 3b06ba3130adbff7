"""Make nodes what the site declares, over ssh: install fairlead there, hand over each node's document, and apply it.

A node that needs no change costs one round trip, and a second run changes nothing. Nodes with equal outcome are reported
together. A node that is not reached does not stop the other nodes, and is named at the end. --tags limits which settings are
applied now. fairlead itself and the whole document are always brought up to date.
Exit codes: 0 all nodes are as declared (with --exit-code 1 where something was changed, or would be); 68 a node was not
reached; 69 a node failed; 75 a setting waits for an idle or drained node or for a reboot; 1 a node has no hardware for a
setting, and all other settings are as declared; 64, 66, 78 no node was touched.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import msgspec

from fairlead import config
from fairlead.cli.audited import actor
from fairlead.cli.chosen_settings import chosen
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.cli.upgrade_order import refuse_nodes_first
from fairlead.errors import ExitCode, HostError, InputMissing, UsageError
from fairlead.host.change import write_file

if TYPE_CHECKING:
    from fairlead.slurm.scontrol import Scontrol

SITE = "/etc/fairlead/site.toml"


def register(parser: argparse.ArgumentParser) -> None:
    choose_nodes(parser)
    parser.add_argument("-n", "--check", "--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--diff", action="store_true", help="show the changes as diffs")
    parser.add_argument("--exit-code", action="store_true", help="end with 1 where something was changed, or would be")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--report", action="append", default=[], metavar="FILE",
        help="also write the report to FILE: FILE.json as JSON, any other name as a page for a change ticket; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--wheel", metavar="FILE", default="", help="install this wheel of fairlead instead of one packed from this installation"
    )
    parser.add_argument(
        "--wheelhouse",
        default="",
        metavar="DIR",
        help="a folder with the dependencies' wheels, for every Python version of the nodes",
    )
    parser.add_argument(
        "--packages",
        default="",
        metavar="DIR",
        help="a folder with the lock's package files (default: where `fairlead lock` keeps them)",
    )
    parser.add_argument(
        "--bundle", default="", metavar="DIR", help="take everything from this bundle, and nothing from anywhere else"
    )
    parser.add_argument("--uninstall", action="store_true", help="remove everything of fairlead's from the nodes")
    parser.add_argument("--undo", action="store_true", help="with --uninstall: also restore the settings as they were")
    parser.add_argument(
        "--force", action="store_true", help="with --uninstall: remove fairlead although slurm.conf still names its hooks"
    )
    parser.add_argument(
        "--nodes-first",
        action="store_true",
        help="provision although `fairlead collect` on this machine is of an older version",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def choose_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which site, nodes and settings a run is about."""
    parser.add_argument("--site", metavar="FILE", default=SITE, help=f"the site's declaration (default {SITE})")
    parser.add_argument(
        "-l",
        "--nodelist",
        metavar="NODELIST",
        default="",
        help="only these nodes: gpu[001-064], or a ClusterShell group such as @gpu",
    )
    parser.add_argument(
        "-i", "--inventory", choices=["site", "slurm"], default="site",
        help="slurm: only the declared nodes that Slurm has, at Slurm's addresses",
    )  # fmt: skip
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument(
        "--tags", default="", metavar="NAMES", help="only these settings or groups of settings: nccl,kernel,pcie,limits"
    )


def slurm_client(args: argparse.Namespace) -> Scontrol | None:
    """Return the client that asks Slurm for the nodes, or None if only the site names them."""
    from fairlead.slurm.scontrol import Scontrol

    return Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir) if args.inventory == "slurm" else None


def run(args: argparse.Namespace) -> ExitCode:
    if (args.undo or args.force) and not args.uninstall:
        raise UsageError("--undo and --force need --uninstall")
    from fairlead.provision.provision_report import data, text, ticket
    from fairlead.provision.provision_run import ProvisionOptions
    from fairlead.provision.provision_run import run as provision

    for path in args.report:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise InputMissing(f"--report {path}: there is no folder {folder}", hint="make it first; no node was touched")
    only = chosen("--tags", args.tags)
    if only and args.uninstall:
        raise UsageError("--tags does not go with --uninstall")
    site = config.load_site(args.site)
    if args.bundle:
        from fairlead.provision.offline_bundle_check import open_bundle

        if args.wheel or args.wheelhouse or args.packages:
            raise UsageError("--bundle brings its own --wheel, --wheelhouse and --packages")
        args.wheelhouse, args.packages = open_bundle(args.bundle)  # the bundle's wheel of fairlead equals the one packed here
    options = ProvisionOptions(
        nodelist=args.nodelist,
        check=args.check,
        diff=args.diff,
        quiet=args.quiet,
        wheel=args.wheel,
        wheelhouse=args.wheelhouse,
        packages=args.packages,
        uninstall=args.uninstall,
        undo=args.undo,
        force=args.force,
        only=only,
    )
    if not (args.nodes_first or args.check or args.uninstall):
        refuse_nodes_first()
    report = provision(site, options, slurm_client(args))
    code = report.detailed_exit_code if args.exit_code else report.exit_code
    if args.json:
        print_json(data(report, code))
    else:
        print(text(report, diff=args.diff))
    for path in args.report:
        page = ticket(report, code, f"{actor().who} on {os.uname().nodename}", diff=args.diff).encode()
        if path.endswith(".json"):
            page = msgspec.json.format(msgspec.json.encode(data(report, code)), indent=1) + b"\n"
        try:
            write_file(path, page)
        except OSError as e:
            raise HostError(f"--report {path}: {e.strerror}", hint="the run itself is done, as said above") from None
    return code


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended
    from fairlead.provision.provision_report import EqualNodes, ProvisionReport

    more: dict[str, object] = {"counts": dict[str, int], "groups": list[EqualNodes], "exit_code": int}

    return {"": extended("PrintedProvision", ProvisionReport, more)}
