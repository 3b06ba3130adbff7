"""Keep the agent from changing this node's Slurm state: it neither drains nor resumes while the hold is there.

This closes the window between the agent's read and its write: put a node on hold before you work on it. It returns when
nothing that the agent had begun can be written any more.
  fairlead hold --reason "replacing riser 2"     fairlead hold --show     fairlead hold --release
"""

from __future__ import annotations

import argparse
import os
import time

import msgspec

from fairlead.cli.drain import wake_agent
from fairlead.cli.show import print_json
from fairlead.daemon.ledger import Ledger
from fairlead.daemon.rules import hold_of
from fairlead.errors import ExitCode, HostError, NeedsRoot, UsageError
from fairlead.host.change import write_file

STATE_DIR = "/var/lib/fairlead"
RUN_DIR = "/run/fairlead"


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help="why, for whoever asks `fairlead why`")
    parser.add_argument("--release", action="store_true", help="end the hold")
    parser.add_argument("--show", action="store_true", help="say whether there is one")
    parser.add_argument("--state-dir", default=STATE_DIR)
    parser.add_argument("--run-dir", default=RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> ExitCode:
    path = os.path.join(args.state_dir, "hold")
    if args.show:
        held = hold_of(args.state_dir)
        if args.json:
            print_json({"held": held is not None, **(held or {})})
        else:
            print(
                f"held by {held.get('who', '?')} since {held.get('when', '?')}: {held.get('reason', '')}" if held else "not held"
            )
        return ExitCode.OK
    if bool(args.reason) == args.release:
        raise UsageError("hold needs --reason TEXT, --release or --show")
    if args.dry_run:
        print(f"would {'remove' if args.release else 'write'} {path}")
        return ExitCode.OK
    if os.geteuid() != 0:
        raise NeedsRoot("hold changes what the agent may do; run it as root")
    try:
        if args.release:
            if os.path.exists(path):
                os.unlink(path)
            wake_agent()
            print("hold released; the agent acts again at its next sweep")
            return ExitCode.OK
        who = os.environ.get("SUDO_USER") or "root"
        record = {"who": who, "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "reason": args.reason}
        write_file(path, msgspec.json.encode(record))
        with Ledger(args.state_dir, args.run_dir, node="").locked():
            pass  # what the agent had begun is over; what it begins from now on sees the hold
        wake_agent()
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None
    print("held: the agent reports, but neither drains nor resumes this node until `fairlead hold --release`")
    return ExitCode.OK
