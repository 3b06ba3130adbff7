"""Name nodes that are the slowest of their jobs more often than chance allows, over the jobs of many users.

fairlead slow-nodes --from DIR       DIR has usage records (*.json) and jobs.psv (sacct), as for `fairlead usage`
fairlead slow-nodes --store DIR      the store of `fairlead collect`, on the controller

Users are counted, not jobs, and a node's position in the job's nodelist is controlled. This is a report: nothing is drained or
excluded. `fairlead job ID --nodes` compares the nodes of one job.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import msgspec

from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, UsageError
from fairlead.fleet.slow_node_rule import SIGNALS
from fairlead.fleet.slow_recurrence import USERS_MIN, JobSigns, RecurrenceReport, recurring
from fairlead.model.plain_text import one_line

DAYS = 90
_WORDS = {signal.name: signal.words for signal in SIGNALS}
_MISTAKES_SHOWN = 20
SLOW = "reading the records"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="folder", default="", metavar="DIR", help="the folder with the records and jobs.psv")
    source.add_argument("--store", default="", metavar="DIR", help="the store of fairlead collect")
    parser.add_argument(
        "--days", type=int, default=DAYS, metavar="N", help="of the jobs that ended in the last N days (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> ExitCode:
    if not 1 <= args.days <= 3660:
        raise UsageError(f"--days {args.days}: not from 1 to 3660")
    mistakes: list[str] = []
    jobs = _of_folder(args, mistakes) if args.folder else _of_store(args)
    found = recurring(jobs)
    for mistake in mistakes[:_MISTAKES_SHOWN]:
        print(f"fairlead slow-nodes: {one_line(mistake, 300)}", file=sys.stderr)
    if len(mistakes) > _MISTAKES_SHOWN:
        print(f"fairlead slow-nodes: and {len(mistakes) - _MISTAKES_SHOWN} more that were not counted", file=sys.stderr)
    if args.json:
        print_json({**msgspec.to_builtins(found), "days": args.days, "mistakes": mistakes})
    else:
        print("\n".join(_lines(found, args.days)))
    return ExitCode.OK


def _of_folder(args: argparse.Namespace, mistakes: list[str]) -> list[JobSigns]:
    from fairlead.controller.records_folder import named, read_folder
    from fairlead.controller.slow_node_input import jobs_of
    from fairlead.jobs.allocations import joined

    folder, now = read_folder(args.folder), time.time()
    found = joined(folder.runs, (record for _, record in folder.records), now)
    mistakes += folder.mistakes
    mistakes += named(folder.records, found.left_out)
    newest = max((job.end_unix for job in folder.runs if job.end_unix is not None), default=now)
    return jobs_of(found.allocations, min(now, newest) - 86400.0 * args.days)


def _of_store(args: argparse.Namespace) -> Iterator[JobSigns]:
    from fairlead.controller.job_store import JobStore
    from fairlead.controller.slow_node_input import job_signs

    with JobStore(args.store, write=False) as store:
        for each in store.runs_since(time.time() - 86400.0 * args.days):
            run = each.run
            if run.gpus:
                yield job_signs(run.job, run.user, run.end_unix or 0, run.nodes, store.records(run))


def _lines(found: RecurrenceReport, days: int) -> Iterator[str]:
    yield f"{found.jobs} jobs of the last {days} days compare nodes; {found.tests} tests (one for each node and signal)"
    for why, count in sorted(found.left_out.items(), key=lambda item: -item[1]):
        yield f"  left out: {count} job{'s' if count != 1 else ''}: {why}"
    if not found.tests:
        yield "nothing was compared: this says nothing about any node"
        return
    if not found.named:
        yield "no node is the slowest of its jobs more often than chance allows"
    else:
        rows = [
            (
                *(one_line(each.node), _WORDS[each.signal], f"{each.users} of {each.of_users}", f"{each.jobs} of {each.of_jobs}"),
                f"{each.chance:.1e}",
            )
            for each in found.named
        ]
        yield columns(rows, ("NODE", "SIGNAL", "USERS", "JOBS", "CHANCE"))
    yield f"expected number of nodes that this list names by chance: at most {found.expected_false:g}"
    yield f"a node is named only for jobs of {USERS_MIN} users or more; the first and the last node of a job are not compared"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended
    from fairlead.fleet.slow_recurrence import RecurrenceReport

    return {"": extended("PrintedRecurrence", RecurrenceReport, {"days": int, "mistakes": list[str]})}
