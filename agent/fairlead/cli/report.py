"""Report what the history of all nodes says: incidents, availability, lost job time, MTTF, trend, lemons, early warning.

fairlead report month                     the last whole month, from the store of `fairlead collect` on the controller
fairlead report 2026-Q4 --html FILE       a quarter as one page with plots, which loads nothing
fairlead report quarter --from DIR        from recorded inputs, on any machine

DIR has nodes/NODE/*.json (service records) or nodes/NODE/audit.jsonl and status.json (older agents), and may have jobs.psv
(sacct), events.psv (sacctmgr show event), nodes.psv (sinfo), groups.psv and format. docs/reference/fleet-report.md describes each
file.

The report drains, cancels and excludes nothing. What is not known is named and left out, and is never 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import date
from typing import TYPE_CHECKING, Any, TypedDict

from fairlead.cli.fleet_period import FORMS
from fairlead.errors import ExitCode

if TYPE_CHECKING:
    from fairlead.fleet.fleet_report import FleetReport

STORE = "/var/lib/fairlead-collect"
SHOWN = 12
SLOW = "reading the records"  # patience.py says it


class PrintedRate(TypedDict):
    """A rate of incidents. per_1000_node_days, interval: null for too few incidents."""

    name: str
    count: int
    node_days: float
    ended: dict[str, int]
    per_1000_node_days: float | None
    interval: list[float] | None


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("period", nargs="?", default="month", metavar="PERIOD", help=f"{FORMS} (default: month)")
    parser.add_argument("--from", dest="folder", metavar="DIR", default="", help="read recorded inputs in place of the store")
    parser.add_argument("--store", metavar="DIR", default=STORE, help="the folder of the store (%(default)s)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--html", metavar="FILE", default="", help="write one static page with plots to a new file")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.cli.fleet_period import timeframe
    from fairlead.cli.output import print_json
    from fairlead.controller import fleet_folder, fleet_jobs
    from fairlead.fleet import fleet_report

    frame = timeframe(args.period, date.today(), time.time())
    if args.html:
        from fairlead.cli.new_file import refuse_existing

        refuse_existing(args.html)
    mistakes: list[str] = []
    if args.folder:
        found = fleet_folder.from_folder(args.folder)
        jobs = fleet_folder.jobs_in(args.folder, mistakes)
    else:
        found = fleet_folder.from_store(args.store)
        jobs = fleet_jobs.stored_jobs(args.store, frame.begin_unix - 366 * 86400.0)
    report = fleet_report.report(found, jobs, frame)
    troubles = (*mistakes, *report.troubles)
    report = _with_troubles(report, troubles)
    for line in troubles[:SHOWN]:
        print(f"fairlead report: {line}", file=sys.stderr)
    if len(troubles) > SHOWN:
        print(f"fairlead report: {len(troubles) - SHOWN} more such lines (--json has all)", file=sys.stderr)
    if args.json:
        print_json(as_data(report))
    elif args.html:
        from fairlead.cli.fleet_page import page
        from fairlead.cli.new_file import write_new

        write_new(args.html, page(report))
    else:
        print(text(report))
    return ExitCode.OK


def _with_troubles(report: FleetReport, troubles: tuple[str, ...]) -> FleetReport:
    from msgspec.structs import replace

    return replace(report, troubles=troubles)


def text(report: FleetReport) -> str:
    """Return the report for people."""
    from fairlead.cli.fleet_sections import sections, span_words
    from fairlead.cli.output import columns
    from fairlead.cli.wrapped_text import wrap

    out = [span_words(report)]
    for section in sections(report):
        out += ["", section.title, *wrap(section.definition, "  ", "  ")]
        if section.rows:
            table = columns(section.rows, section.head)
            out += ["", *(f"  {line}" for line in table.splitlines())]
        out += [line for note in section.notes for line in wrap(note, "  ", "    ")]
    return "\n".join(out)


def as_data(report: FleetReport) -> dict[str, Any]:
    """Return the report as JSON has it. Rates and intervals are computed; what is not known is null."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(report)
    data["definitions"] = _definitions(report)
    for figures, shown in zip(report.classes, data["classes"], strict=True):
        shown["rate"] = _rate(figures.rate)
        shown["in_jobs"] = _rate(figures.in_jobs)
        shown["causes"] = [_rate(cause) for cause in figures.causes]
    for month, shown in zip(report.months, data["months"], strict=True):
        shown["rate"] = _rate(month.rate)
    known = report.availability
    data["availability"] |= {
        "of_owned": known.of_owned,
        "without_maintenance": known.without_maintenance,
        "without_people": known.without_people,
    }
    data["incidents"] = [
        {**each, "jobs": list(jobs), "users": users}
        for each, jobs, users in zip(data["incidents"], report.touched, report.users, strict=True)
    ]
    card = report.card
    data["card"] |= {"enough": card.enough, "better_than_counting": card.better}
    if not card.better:
        data["card"]["score"] = None
    for name in ("touched", "users"):
        del data[name]
    return data


def _rate(rate: Any) -> PrintedRate:
    interval = rate.interval
    return {
        "name": rate.name,
        "count": rate.count,
        "node_days": rate.node_days,
        "ended": dict(rate.ended),
        "per_1000_node_days": rate.per_1000,
        "interval": None if interval is None else [interval.low, interval.high],
    }


def _definitions(report: FleetReport) -> dict[str, str]:
    from fairlead.cli.fleet_sections import sections

    return {section.title: section.definition for section in sections(report)}


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended, list_of
    from fairlead.fleet.availability import Availability
    from fairlead.fleet.fleet_report import ClassFigures, FleetReport
    from fairlead.fleet.incident_rates import Month
    from fairlead.fleet.incidents import Incident
    from fairlead.fleet.score_card import ScoreCard

    rates = {"rate": PrintedRate, "in_jobs": PrintedRate}
    shares = dict.fromkeys(("of_owned", "without_maintenance", "without_people"), float | None)

    return {
        "": extended(
            "PrintedReport",
            FleetReport,
            {
                "definitions": dict[str, str],
                "classes": list_of(extended("PrintedNodeClass", ClassFigures, {**rates, "causes": list[PrintedRate]})),
                "months": list_of(extended("PrintedMonth", Month, {"rate": PrintedRate})),
                "availability": extended("PrintedAvailability", Availability, shares),
                "incidents": list_of(extended("PrintedIncident", Incident, {"jobs": list[int], "users": int})),
                "card": extended("PrintedCard", ScoreCard, {"enough": bool, "better_than_counting": bool}),
            },
            without=("touched", "users"),
        )
    }
