"""Keep the agent from changing this node's Slurm state. While the hold lasts, the agent neither drains nor resumes the node.

Put a node on hold before you work on it, so that the agent does not write to slurmctld between your commands. The command
returns after the agent has finished any write that it had begun.
  fairlead hold --reason "replacing riser 2" --until 4h     fairlead hold --show     fairlead hold --release
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from typing import Any, NotRequired, TypedDict

import msgspec

from fairlead.cli.agent_client import wake_agent
from fairlead.cli.audited import AuditOutcome, actor, audited
from fairlead.cli.output import print_json
from fairlead.cli.state_folder import add_state_dir, state_folder
from fairlead.cli.time_options import FORMS, local, parse_time
from fairlead.drains.admin_hold import read_hold
from fairlead.drains.ledger import Ledger
from fairlead.errors import ExitCode, HostError, NeedsRoot, UsageError
from fairlead.host.boot_clock import boot_id, boottime
from fairlead.host.change import write_file
from fairlead.host.root import Root

RUN_DIR = "/run/fairlead"


#: What was done. held: whether the node is on hold now.
HoldOutcome = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "HoldOutcome",
    {
        "held": bool,
        "outcome": str,
        "detail": str,
    },
)


class HoldOutlook(TypedDict):
    """What would be done: write, remove or nothing. until_unix: the end of the hold, or null for none."""

    would: str
    file: str
    until_unix: float | None


#: Whether the node is on hold, by whom, since when, until when and why. A file that cannot be read counts as a hold.
ShownHold = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "ShownHold",
    {
        "held": bool,
        "who": NotRequired[str],
        "when": NotRequired[str],
        "reason": NotRequired[str],
        "until": NotRequired[str],
        "until_unix": NotRequired[float],
    },
)


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; `fairlead why` shows it")
    parser.add_argument("--until", default="", metavar="WHEN", help=f"end the hold by itself then: {FORMS}")
    parser.add_argument("--release", action="store_true", help="end the hold")
    parser.add_argument("--show", action="store_true", help="say whether there is a hold")
    add_state_dir(parser)
    parser.add_argument("--run-dir", metavar="DIR", default=RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    args.state_dir = state_folder(args.state_dir)
    if args.show:
        return _show(args)
    if not args.reason and not args.release:
        raise UsageError("hold needs --reason TEXT, --release or --show")
    if args.until and args.release:
        raise UsageError("--until does not go with --release")
    until = parse_time(args.until, "--until", ahead=True) if args.until else None
    paths = [os.path.join(folder, "hold") for folder in (args.state_dir, args.run_dir)]
    if args.dry_run:
        return _dry(args, paths, until)
    if os.geteuid() != 0:
        raise NeedsRoot("hold changes what the agent may do; run it as root")
    command = "hold --release" if args.release else "hold"
    more = {"until": local(until)} if until else {}
    with audited(args.state_dir, args.run_dir, command, why=args.reason, args=more) as result:
        if args.release:
            text = _release(paths, result)
        else:
            text = _hold(args, paths, until, result)
        wake_agent(args.run_dir)
    if args.json:
        print_json(HoldOutcome(held=not args.release, outcome=result.outcome, detail=result.detail))
    else:
        print(text)
    return ExitCode.OK


def _dry(args: argparse.Namespace, paths: list[str], until: float | None) -> ExitCode:
    doing = "remove" if args.release else "write"
    there = [path for path in paths if os.path.lexists(path)] if args.release else paths[:1]
    if args.json:
        print_json(HoldOutlook(would=doing if there else "nothing", file=there[0] if there else "", until_unix=until))
    elif not there:
        print("the node is not on hold")
    else:
        print(f"would {doing} {' and '.join(there)}" + (f", until {local(until)}" if until else ""))
    return ExitCode.OK


def _show(args: argparse.Namespace) -> ExitCode:
    held = read_hold(args.state_dir, args.run_dir)
    if args.json:
        shown: Any = {"held": held is not None, **(held or {})}
        if until := shown.pop("until_unix", ""):
            with suppress(ValueError):  # a damaged file
                shown["until_unix"] = float(until)
        print_json(shown)
    elif held:
        until = f" until {held['until']}" if held.get("until") else ""
        print(f"on hold by {held.get('who', '?')} since {held.get('when', '?')}{until}: {held.get('reason', '')}")
    else:
        print("not on hold")
    return ExitCode.OK


def _release(paths: list[str], result: AuditOutcome) -> str:
    there = [path for path in paths if os.path.lexists(path)]
    for path in there:
        try:
            os.unlink(path)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}") from None
    result.outcome = "released" if there else "was not held"
    return "hold released; the agent acts again at its next sweep" if there else "the node was not on hold"


def _hold(args: argparse.Namespace, paths: list[str], until: float | None, result: AuditOutcome) -> str:
    record: dict[str, object] = {"who": actor().who, "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "reason": args.reason}
    if until is not None:
        of_boot = {"until_boot_seconds": boottime() + until - time.time(), "boot_id": boot_id(Root("/"))}
        record |= {"until_unix": until, "until": local(until), **of_boot}
    troubles: list[str] = []
    for path in paths:
        try:
            write_file(path, msgspec.json.encode(record))
        except OSError as e:
            troubles.append(f"{path}: {e.strerror}")
        else:
            break
    if len(troubles) == len(paths):
        raise HostError(
            "; ".join(troubles), hint="there is no hold; `touch /etc/fairlead/disabled` stops the agent's drains and the hooks"
        )
    if troubles:
        result.detail = f"{troubles[0]}; the hold is in {paths[1]}, which a reboot clears"
        print(f"fairlead hold: {result.detail}", file=sys.stderr)
    with Ledger(args.state_dir, args.run_dir, node="").locked():
        pass  # a write that the agent had begun has ended; the next one sees the hold
    result.outcome = "held"
    end = f"until {local(until)}, or " if until is not None else "until "
    return f"on hold: the agent reports, but neither drains nor resumes this node {end}`fairlead hold --release`"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": HoldOutcome, "--dry-run": HoldOutlook, "--show": ShownHold}
