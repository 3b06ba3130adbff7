"""Write the Grafana dashboards of fairlead, and the alert and recording rules that they need.

fairlead dashboards --list          each dashboard and what it shows
fairlead dashboards --write DIR     write the dashboards (*.json) and alerts.yml into a folder

Import the dashboards in Grafana (11.6 or later), and choose the Prometheus that scrapes the agents. Load alerts.yml into that
Prometheus: some panels read its recording rules. Files that are in the folder and have the same name are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from fairlead import assets
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, HostError, InputMissing, UsageError, next_step
from fairlead.host.atomic_file import write_atomic

RULES = "usr/share/fairlead/alerts.yml"


class ListedDashboard(TypedDict):
    """A dashboard of this release."""

    name: str
    title: str
    description: str


class WrittenDashboards(TypedDict):
    """The files, and whether they were written (not with --dry-run)."""

    written: bool
    files: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="list the dashboards")
    action.add_argument("--write", metavar="DIR", default="", help="write the files into this folder")
    parser.add_argument("-n", "--dry-run", action="store_true", help="with --write: print the files, write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.dry_run and not args.write:
        raise UsageError("--dry-run needs --write DIR")
    if args.list:
        found = [json.loads(text) for name, text in files() if name.endswith(".json")]
        rows = [(board["uid"].removeprefix("fairlead-"), board["title"], board["description"]) for board in found]
        if args.json:
            print_json([ListedDashboard(name=name, title=title, description=text) for name, title, text in rows])
        else:
            print(columns(rows, ("NAME", "TITLE", "SHOWS")))
        return ExitCode.OK
    if not os.path.isdir(args.write):
        raise InputMissing(f"{args.write}: no such folder", hint="make it first")
    written = [_written(os.path.join(args.write, name), text, dry_run=args.dry_run) for name, text in files()]
    if args.json:
        print_json(WrittenDashboards(written=not args.dry_run, files=written))
    else:
        print("\n".join(f"{path}: {'would be written' if args.dry_run else 'written'}" for path in written))
    return ExitCode.OK


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    for path in sorted(assets.dashboard_directory().glob("*.json")):
        yield path.name, path.read_text()
    rules: Path = assets.directory("templates") / RULES
    yield rules.name, rules.read_text()


def _written(path: str, text: str, *, dry_run: bool) -> str:
    """Write one file as a whole, by rename. Raises HostError."""
    if dry_run:
        return path
    try:
        write_atomic(path, text.encode())
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
    return path


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"--list": list[ListedDashboard], "--write": WrittenDashboards}
