"""Make nodes what the site declares, over ssh: install fairlead there, hand over each node's document, apply it.

One round trip to a node that lacks nothing; a second run changes nothing. Results are grouped by equal outcome.
Exit codes: 0 all as declared, 69 a node failed or was not reached (the others are done), 75 a setting waits for an idle
node, 64/66/78 nothing was touched.
"""

from __future__ import annotations

import argparse
import os

import msgspec

from fairlead import config
from fairlead.cli.show import print_json
from fairlead.errors import ExitCode, HostError, InputMissing, UsageError
from fairlead.host.change import write_file


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", default="/etc/fairlead/site.toml", help="the site's declaration")
    parser.add_argument("-l", "--nodelist", default="", help="only these nodes: gpu[001-064]")
    parser.add_argument("-n", "--check", "--dry-run", action="store_true", help="show what would change, change nothing")
    parser.add_argument("--diff", action="store_true", help="show the changes as diffs")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    parser.add_argument("--report", default="", metavar="FILE", help="also write the report as JSON there")
    parser.add_argument("--wheel", default="", help="this wheel of fairlead instead of one packed from this installation")
    parser.add_argument("--wheelhouse", default="", metavar="DIR", help="the dependencies' wheels, for every Python of the nodes")
    parser.add_argument("--uninstall", action="store_true", help="remove everything of fairlead's from the nodes")
    parser.add_argument("--undo", action="store_true", help="with --uninstall: also bring the settings back as they were")
    parser.add_argument("--force", action="store_true", help="with --uninstall: though slurm.conf still names our hooks")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> ExitCode:
    if (args.undo or args.force) and not args.uninstall:
        raise UsageError("--undo and --force belong to --uninstall")
    from fairlead.provision.report import text
    from fairlead.provision.run import Options
    from fairlead.provision.run import run as provision

    folder = os.path.dirname(args.report) or "."
    if args.report and not os.path.isdir(folder):
        raise InputMissing(f"--report {args.report}: no folder {folder}", hint="make it first; no node was touched")
    site = config.load_site(args.site)
    options = Options(
        nodelist=args.nodelist,
        check=args.check,
        diff=args.diff,
        quiet=args.quiet,
        wheel=args.wheel,
        wheelhouse=args.wheelhouse,
        uninstall=args.uninstall,
        undo=args.undo,
        force=args.force,
    )
    report = provision(site, options)
    if args.json:
        print_json(report)
    else:
        print(text(report, diff=args.diff))
    if args.report:
        try:
            write_file(args.report, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        except OSError as e:
            raise HostError(f"--report {args.report}: {e.strerror}", hint="the run itself is done, as said above") from None
    return report.exit_code
