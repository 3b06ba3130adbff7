"""Show the audit trail of this node: who changed what about its service, when, why, and with which outcome.

The trail also contains the agent's own actions.
  fairlead audit                 fairlead audit --since 7d                 fairlead audit --since 2026-11-21T18:00 --json
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Required, TypedDict

import msgspec

from fairlead.cli.output import print_json
from fairlead.cli.state_folder import add_state_dir, state_folder
from fairlead.cli.time_options import FORMS, local, parse_time
from fairlead.daemon.requests.audit_trail import ASKED, AuditEntry, Trail
from fairlead.errors import ExitCode, InputMissing

RUN_DIR = "/run/fairlead"


class AuditEntryData(TypedDict, total=False):
    """One entry with all its fields (AuditEntry). An entry of another node may lack some."""

    unix: Required[float]
    id: Required[str]
    what: Required[str]
    who: Required[str]
    uid: int
    tty: str
    client: str
    args: dict[str, str]
    why: str
    outcome: str
    detail: str


class ReadTrail(TypedDict):
    """The audit trail of a node. trouble: why a part of it could not be read, or ""."""

    entries: list[AuditEntryData]
    trouble: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", default="", metavar="WHEN", help=FORMS)
    add_state_dir(parser)
    parser.add_argument("--run-dir", metavar="DIR", default=RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    since = parse_time(args.since, "--since") if args.since else 0.0
    trail = Trail(state_folder(args.state_dir), args.run_dir)
    entries = trail.read(since)
    if trail.trouble and not entries:
        raise InputMissing(trail.trouble)
    if args.json:
        print_json(ReadTrail(entries=[as_data(e) for e in entries], trouble=trail.trouble))
        return ExitCode.OK
    if trail.trouble:
        print(f"fairlead audit: {trail.trouble}", file=sys.stderr)
    print("\n".join(map(line, entries)) if entries else "nothing is recorded" + (f" since {local(since)}" if since else ""))
    return ExitCode.OK


def as_data(entry: AuditEntry) -> AuditEntryData:
    """Return an entry with all its fields, as JSON has it."""
    data: Any = {name: getattr(entry, name) for name in entry.__struct_fields__} | {"args": dict(entry.args)}
    found: AuditEntryData = data
    return found


def from_data(data: object) -> AuditEntry | None:
    """Return the entry that the JSON of another node contains, or None for any other data."""
    try:
        return msgspec.convert(data, AuditEntry)
    except msgspec.ValidationError:
        return None


_RECORD = re.compile(r"#[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:(\d+)")  # a boot id tells a person nothing


def line(entry: AuditEntry) -> str:
    """Return an entry as one line: the time, who gave the command and from where, the command, the reason, and the outcome.

    The outcome "done" is left out.
    """
    place = " from ".join(filter(None, (entry.tty.removeprefix("/dev/"), entry.client)))
    outcome = "" if entry.outcome == "done" else entry.outcome
    if entry.outcome == ASKED:
        outcome = "no outcome: the command still runs, or it was killed"
    result = ": ".join(filter(None, (outcome, entry.detail)))
    words = [
        f"{local(entry.unix)}  {entry.who}{f' ({place})' if place else ''}: {entry.what}",
        f"for {entry.args['for']}" if entry.args.get("for") else "",
        *(f"{key}={value}" for key, value in entry.args.items() if key not in ("for", "request")),
        f'"{entry.why}"' if entry.why else "",
        f"-> {result}" if result else "",
    ]
    return _RECORD.sub(r" (kernel record \1)", " ".join(filter(None, words)))


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": ReadTrail}
