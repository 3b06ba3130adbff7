"""Show how GPUs were used in a period: allocated, busy and SM-active, with coverage, idle time, energy, cost and carbon.

fairlead usage week                            the last whole week, over all jobs
fairlead usage 2026-10 --by account            a month, with a row for each account
fairlead usage 2026-10 --html FILE             the same as one page with plots, which loads nothing
fairlead usage --compare 2026-08 2026-10       what a claim "before and after" has to show

The jobs are those of the store of `fairlead collect`, on the controller. Capacity, time out of service and running jobs come from
sinfo, sacctmgr and squeue. With --from, all of this comes from DIR: usage records (*.json), jobs.psv (sacct), nodes.psv (sinfo)
and events.psv (sacctmgr). The figures are those of the definition busy/1. What is not known is left out with the reason, and is
never 0. A comparison that lacks a condition is refused with exit code 65, and each condition is named.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING

from fairlead.cli.controller_paths import RUNNING, SITE, STORE
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from fairlead.cli.usage_report import UsageReport
    from fairlead.config import Site
    from fairlead.controller.records_folder import Recorded
    from fairlead.jobs.allocations import Allocation
    from fairlead.jobs.busy_definition import Period

KEYS = ("user", "account", "partition")
SLOW = "reading the records"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    from fairlead.cli.usage_period import FORMS

    parser.add_argument("period", nargs="?", default="week", metavar="PERIOD", help=f"{FORMS} (default: week)")
    parser.add_argument("--store", metavar="DIR", default=STORE, help="the store of `fairlead collect` (%(default)s)")
    parser.add_argument("--running", metavar="DIR", default=RUNNING, help="the newest records of running jobs (%(default)s)")
    parser.add_argument("--from", dest="folder", default="", metavar="DIR", help="read the records and jobs.psv in DIR instead")
    parser.add_argument("--by", choices=KEYS, help="add a row for each user, account or partition")
    parser.add_argument("--nodelist", default="", metavar="NODELIST", help="count only these nodes: gpu[001-064]")
    parser.add_argument("-p", "--partition", default="", metavar="NAME", help="count only jobs and nodes of this partition")
    parser.add_argument("--compare", nargs=2, metavar="PERIOD", help="compare two periods, or say what is missing")
    parser.add_argument("--site", metavar="FILE", default="", help=f"the site with prices and factors, [usage] ({SITE})")
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--csv", action="store_true", help="print the rows of --by as CSV, the sum in the last row")
    form.add_argument("--html", metavar="FILE", default="", help="write one static page with plots to a new file")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.cli import usage_report, usage_text
    from fairlead.cli.output import print_json
    from fairlead.cli.usage_period import period
    from fairlead.jobs.cost_and_energy import UsageOptions

    if args.compare and (args.by or args.csv or args.html):
        raise UsageError("--compare has no --by, --csv and --html")
    today, now = date.today(), time.time()
    periods = [period(text, today) for text in (args.compare or [args.period])]
    if args.html:
        from fairlead.cli.new_file import refuse_existing

        refuse_existing(args.html)
    nodes = _nodes(args.nodelist)
    site = _site(args.site)
    options = site.usage if site is not None else UsageOptions()
    if not args.folder and site is not None and (with_agent := site.nodes_with_agent()) is not None:
        nodes = with_agent if nodes is None else nodes & with_agent  # the store has no other node
    input_ = usage_report.chosen(_recorded(args, periods), nodes, args.partition, now)
    usage_text.warn(input_.mistakes, sys.stderr)
    if args.compare:
        found = usage_report.comparison(input_, periods[0], periods[1], now)
        print_json(usage_report.comparison_data(found)) if args.json else print(usage_text.comparison(found))
        return ExitCode.BAD_DATA if found.refused else ExitCode.OK
    report = usage_report.report(input_, periods[0], _key(args.by), options)
    _print(args, report)
    return ExitCode.OK


def _print(args: argparse.Namespace, report: UsageReport) -> None:
    from fairlead.cli import usage_report, usage_text
    from fairlead.cli.output import print_json

    if args.json:
        print_json(usage_report.data(report))
    elif args.csv:
        sys.stdout.write(usage_text.csv_rows(report, args.by or "sum"))
    elif args.html:
        from fairlead.cli.new_file import write_new
        from fairlead.cli.usage_page import page

        write_new(args.html, page(report, args.by or ""))
    else:
        print(usage_text.text(report, args.by or ""))


def _key(by: str | None) -> Callable[[Allocation], str] | None:
    return None if by is None else lambda each: str(getattr(each.job, by))


def _nodes(nodelist: str) -> frozenset[str] | None:
    from fairlead.model.nodelist import expand

    if not nodelist:
        return None
    try:
        return frozenset(expand(nodelist))
    except ValueError as e:
        raise UsageError(f"--nodelist: {e}") from None


def _recorded(args: argparse.Namespace, periods: Sequence[Period]) -> Recorded:
    """Return what the folder, or the store and Slurm, have of these periods."""
    if args.folder:
        from fairlead.controller.records_folder import read_folder

        return read_folder(args.folder)
    from fairlead.controller.store_usage import read_store
    from fairlead.slurm.scontrol import Scontrol

    client = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=60.0)
    begin, end = min(each.begin_unix for each in periods), max(each.end_unix for each in periods)
    return read_store(args.store, client, begin, end, running=args.running)


def _site(file: str) -> Site | None:
    """Return the site, or None where there is no such file. Raises ConfigError."""
    from fairlead import config

    return config.load_site(file or SITE) if file or os.path.exists(SITE) else None


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import usage_report

    return {"": usage_report.UsageData, "--compare": usage_report.ComparisonData, "--compare, refused": usage_report.RefusedData}
