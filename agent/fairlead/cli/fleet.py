"""Show all nodes in one table: Slurm's state and jobs, each agent's verdict and its age, drift, versions, and who drained what.

The command asks Slurm with one sinfo and one squeue. It reads each agent's status from /run/fairlead over ssh, on all nodes at
once and within --timeout. A node that does not answer in that time is unreachable, and is never shown as ok. Nodes with equal
values share one row. --json has each node. Run the command where Slurm's commands work and root can reach the nodes by ssh.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from fairlead import config
from fairlead.cli.output import columns, print_json, state_word
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ExitCode, InputMissing, UsageError
from fairlead.provision.terminal_frame import beneath

if TYPE_CHECKING:
    from fairlead.cli.fleet_poll import FleetPoll, FleetPoller
    from fairlead.config import Site

SITE = "/etc/fairlead/site.toml"


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodelist", nargs="?", default="", help="show only these nodes: gpu[001-064]")
    parser.add_argument("-p", "--partition", metavar="NAME", default="", help="show only the nodes of this partition")
    parser.add_argument(
        "--site",
        metavar="FILE",
        default="",
        help=f"the site whose [ansible] says how ssh reaches the nodes ({SITE} where there is one)",
    )
    parser.add_argument("--no-agents", action="store_true", help="ask only Slurm, and no agent over ssh")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="wait so long for all agents together (10, and 0.1 more for each node)"
    )
    parser.add_argument("--ssh", default="ssh", metavar="PROGRAM", help="the program to call in place of ssh")
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument(
        "--watch", nargs="?", type=float, const=5.0, metavar="SECONDS", help="show it again and again (every 5 s)"
    )
    parser.add_argument(
        "--html", metavar="DIR", default="", help="write static pages into this folder; with --watch, again and again"
    )
    parser.add_argument(
        "--group",
        choices=("class", "partition", "switch", "none"),
        default="class",
        help="how --html groups the nodes (%(default)s); switch: by the leaf switch or block that Slurm's topology names",
    )
    parser.add_argument(
        "--prometheus-targets",
        metavar="FILE",
        default="",
        help="write the site's nodes for Prometheus' file_sd_configs (NAME.json; - prints it), and ask nobody",
    )
    parser.add_argument(
        "--skip-powered-down",
        action="store_true",
        help="with --prometheus-targets: ask Slurm, and leave out nodes that it has switched off",
    )
    parser.add_argument("--each", action="store_true", help="show a row for each node: fold none")
    parser.add_argument("--json", action="store_true", help="print each node as an object; with --watch, one line for each poll")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.cli.fleet_poll import FleetPoller

    if args.html and args.json:
        raise UsageError("--html and --json exclude each other")
    if args.skip_powered_down and not args.prometheus_targets:
        raise UsageError("--skip-powered-down is an option of --prometheus-targets")
    if args.watch is not None and args.watch < 1:
        raise UsageError("--watch: the shortest time is a second")
    if args.timeout is not None and not 0.5 <= args.timeout <= 600:
        raise UsageError("--timeout: must be from half a second to ten minutes")
    site = config.load_site(args.site or SITE) if args.site or os.path.exists(SITE) else None
    if args.prometheus_targets:
        return _prometheus_targets(args, site)
    poller = FleetPoller(
        site,
        nodelist=args.nodelist,
        partition=args.partition,
        agents=not args.no_agents,
        seconds=args.timeout,
        program=args.ssh,
        conf=args.slurm_conf,
        bin_dir=args.bin_dir,
        on_answer=answered if sys.stderr.isatty() and args.watch is None else None,
        detailed=bool(args.html),
        switches=bool(args.html) and args.group == "switch",
    )
    if args.html:
        return _html(args, poller)
    if args.watch is not None:
        from fairlead.cli.fleet_watch import watch

        return watch(poller, args.watch, each=args.each, as_json=args.json)
    try:
        poll = poller.poll()
    finally:
        if sys.stderr.isatty():
            beneath(sys.stderr).write("\r\x1b[K")
    if not poll.rows:
        raise InputMissing(f"Slurm has no node {args.nodelist or ''}{args.partition and f' in {args.partition}'}".rstrip())
    if args.json:
        print_json(poll.data())
    else:
        print(text(poll, each=args.each))
    return ExitCode.OK


def _html(args: argparse.Namespace, poller: FleetPoller) -> ExitCode:
    from fairlead.cli.node_pages import PageFolder

    folder = PageFolder(args.html)
    name = os.path.basename(args.site or SITE).removesuffix(".toml")

    def write(poll: FleetPoll) -> None:
        refresh = max(5, round(args.watch)) if args.watch is not None else 0
        folder.write(poll, poller.details, site=name, group=args.group, refresh=refresh)

    if args.watch is not None:
        from fairlead.cli.fleet_watch import repeat

        return repeat(poller, args.watch, write)
    poll = poller.poll()
    if not poll.rows:
        raise InputMissing(f"Slurm has no node {args.nodelist}")
    write(poll)
    print(f"{args.html}/index.html: written: {len(poll.rows)} nodes")
    return ExitCode.OK


def _prometheus_targets(args: argparse.Namespace, site: Site | None) -> ExitCode:
    from fairlead.cli import prometheus_targets
    from fairlead.provision.inventory import targets
    from fairlead.slurm.client import switched_off
    from fairlead.slurm.scontrol import Scontrol

    if site is None:
        raise InputMissing(f"{SITE}: no such file", hint="name the site: --site FILE")
    found = targets(site, args.nodelist)
    if args.skip_powered_down:
        slurm = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir).nodes()
        off = {node.name for node in slurm if switched_off(node.states)}
        found = tuple(target for target in found if target.document.slurm_node not in off)
    made = prometheus_targets.targets_text(found)
    if args.prometheus_targets == "-":
        print(made, end="")
        return ExitCode.OK
    if not args.prometheus_targets.endswith(".json"):
        raise UsageError(f"--prometheus-targets {args.prometheus_targets}: the name has to end in .json")
    done = "written" if prometheus_targets.write(args.prometheus_targets, made) else "unchanged"
    print(f"{args.prometheus_targets}: {done}: {len(found)} nodes")
    return ExitCode.OK


def answered(done: int, total: int) -> None:
    """Show on a terminal how many nodes have answered. New connections to many nodes take seconds."""
    beneath(sys.stderr).write(f"\r\x1b[Kfairlead fleet: {done} of {total} nodes have answered")
    sys.stderr.flush()


def text(poll: FleetPoll, *, each: bool) -> str:
    """Return the table with its summary as plain columns. On a terminal the verdict has a colour."""
    from fairlead.cli.fleet_table import summary, table

    head, rows = table(poll.folds(each=each), time.time())
    drawn = columns(rows, head).splitlines()
    if head[1] == "VERDICT":  # coloured after the layout, because colour codes would count as width
        at = drawn[0].index("VERDICT")
        for i, (_, word, *_) in enumerate(rows, 1):
            drawn[i] = drawn[i][:at] + state_word(word) + drawn[i][at + len(word) :]
    return "\n".join((*drawn, summary(poll.rows, poll.seconds)))


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.fleet_poll import PolledFleet

    return {"": PolledFleet, "--watch, one line for each poll": PolledFleet}
