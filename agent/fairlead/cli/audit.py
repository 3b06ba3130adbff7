"""The audit trail of this node: who changed what about its service, when, why, and what came of it; and the agent's own.

fairlead audit                 fairlead audit --since 7d                 fairlead audit --since 2026-11-21T18:00 --json
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

import msgspec

from fairlead.cli.output import print_json
from fairlead.cli.time_options import FORMS, local, parse_time
from fairlead.daemon.requests.audit_trail import ASKED, AuditEntry, Trail
from fairlead.errors import ExitCode, InputMissing

STATE_DIR = "/var/lib/fairlead"
RUN_DIR = "/run/fairlead"


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", default="", metavar="WHEN", help=FORMS)
    parser.add_argument("--state-dir", metavar="DIR", default=STATE_DIR, help="the agent's state (%(default)s)")
    parser.add_argument("--run-dir", metavar="DIR", default=RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    since = parse_time(args.since, "--since") if args.since else 0.0
    trail = Trail(args.state_dir, args.run_dir)
    entries = trail.read(since)
    if trail.trouble and not entries:
        raise InputMissing(trail.trouble)
    if args.json:
        print_json({"entries": [as_data(e) for e in entries], "trouble": trail.trouble})
        return ExitCode.OK
    if trail.trouble:
        print(f"fairlead audit: {trail.trouble}", file=sys.stderr)
    print("\n".join(map(line, entries)) if entries else "nothing is noted" + (f" since {local(since)}" if since else ""))
    return ExitCode.OK


def as_data(entry: AuditEntry) -> dict[str, Any]:
    """An entry with every field."""
    data = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return {**data, "args": dict(entry.args)}


def from_data(data: object) -> AuditEntry | None:
    """An entry of another node's JSON; None for anything else."""
    try:
        return msgspec.convert(data, AuditEntry)
    except msgspec.ValidationError:
        return None


_RECORD = re.compile(r"#[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:(\d+)")  # a boot's id is nothing to read


def line(entry: AuditEntry) -> str:
    """One entry as one line: when, who and from where, what, why, and the outcome where there is more to it than done."""
    place = " from ".join(filter(None, (entry.tty.removeprefix("/dev/"), entry.client)))
    outcome = "" if entry.outcome == "done" else entry.outcome
    if entry.outcome == ASKED:
        outcome = "no outcome: the command still runs, or was ended before it was done"
    result = ": ".join(filter(None, (outcome, entry.detail)))
    words = [
        f"{local(entry.unix)}  {entry.who}{f' ({place})' if place else ''}: {entry.what}",
        f"for {entry.args['for']}" if entry.args.get("for") else "",
        *(f"{key}={value}" for key, value in entry.args.items() if key not in ("for", "request")),
        f'"{entry.why}"' if entry.why else "",
        f"-> {result}" if result else "",
    ]
    return _RECORD.sub(r" (kernel record \1)", " ".join(filter(None, words)))
