"""Test fairlead on this machine, with or without Slurm, and change nothing.

The command reads everything that the agent reads, judges it with every check, plans every setting, and runs each hook in a
private mount namespace with made-up variables. It writes one redacted report. Read the report before you send it.
  fairlead selftest                                  writes fairlead-selftest-...json into the current folder
  fairlead selftest --compare REPORT...              says what in reports differs from the documentation
Every part has a time limit, and the whole run ends within two minutes. Without root, the hooks are not run.
Exit codes: 0 nothing differs from what the documentation claims, 1 something differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from fairlead.selftest.claim_differences import ClaimDifference, ComparedReport
    from fairlead.selftest.selftest_report import SelftestReport


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compare", nargs="+", default=[], metavar="FILE", help="compare these reports, and run nothing")
    parser.add_argument("--out", default="", metavar="FILE", help="write the report into this new file")
    parser.add_argument("--document", default="", metavar="FILE", help="judge by this document instead of the node's own")
    parser.add_argument("--json", action="store_true", help="print the report, or the differences, as JSON; write no file")


def run(args: argparse.Namespace) -> ExitCode:
    if args.compare:
        if args.out or args.document:
            raise UsageError("--compare goes with no option but --json")
        return _compare(args)
    return _test(args)


def _test(args: argparse.Namespace) -> ExitCode:
    from fairlead.selftest.claim_differences import differences
    from fairlead.selftest.report_file import NewFile, encoded
    from fairlead.selftest.selftest_run import SelftestRun

    test = SelftestRun(args.document, _say)
    file = None if args.json and not args.out else NewFile(args.out or _file_name())
    try:
        report = test.run()
    except BaseException:
        if file is not None:
            file.remove()
        raise
    if file is not None:
        file.write(encoded(report))
    found = differences(report)
    if args.json:
        print_json(report)
    else:
        print("\n".join([_summary(report), *_lines(found)]))
        print(f"{args.out or (file.path if file else '')}: the redacted report; read it, then send it")
    return ExitCode.WARN if found else ExitCode.OK


def _say(line: str) -> None:
    print(f"fairlead selftest: {line}", file=sys.stderr, flush=True)


def _compare(args: argparse.Namespace) -> ExitCode:
    from fairlead.selftest.claim_differences import ComparedReports, differences
    from fairlead.selftest.report_file import read_reports

    reports = read_reports(args.compare)
    found = {path: differences(report) for path, report in reports.items()}
    if args.json:
        print_json(ComparedReports(schema=1, reports=[_data(path, report, found[path]) for path, report in reports.items()]))
    else:
        for path, report in reports.items():
            print("\n".join([f"{path}: {_summary(report)}", *_lines(found[path])]))
    return ExitCode.WARN if any(found.values()) else ExitCode.OK


def _data(path: str, report: SelftestReport, found: tuple[ClaimDifference, ...]) -> ComparedReport:
    return {"file": path, "machine": report.machine, "differences": list(found)}


def _file_name() -> str:
    """Return a name that does not name the machine."""
    from fairlead.host.root import Root
    from fairlead.selftest.distribution import os_release

    names = os_release(Root())
    words = ["fairlead-selftest", names.get("ID", ""), names.get("VERSION_ID", ""), time.strftime("%Y%m%dT%H%M%S")]
    return os.path.abspath("-".join(filter(None, words)) + ".json")


def _summary(report: SelftestReport) -> str:
    machine = report.machine
    name = " ".join(filter(None, (machine.distribution, machine.version))) or "an unknown distribution"
    counts = (
        ("sources read", report.sources, ("read", "partly")),
        ("checks judge", report.checks, ("judged", "off")),
        ("settings planned", report.settings, ("planned", "absent", "refused")),
        ("hooks run", report.hooks, ("run",)),
    )
    said = [f"{sum(r.state in good for r in rows)} of {len(rows)} {what}" for what, rows, good in counts]
    return f"{name}, kernel {machine.kernel}: {', '.join(said)}, in {report.seconds:.0f} s"


def _lines(found: tuple[ClaimDifference, ...]) -> list[str]:
    if not found:
        return ["nothing differs from what the documentation claims"]
    lines = [f"{len(found)} differences from what the documentation claims:"]
    for one in found:
        lines.append(f"  {one.part}: {one.found} (claimed: {one.claimed})")
        if one.next:
            lines.append(f"    next: {one.next}")
    return lines


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.selftest.claim_differences import ComparedReports
    from fairlead.selftest.selftest_report import SelftestReport

    return {"": SelftestReport, "--compare": ComparedReports}
