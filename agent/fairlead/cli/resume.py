"""Resume this node if its drain is fairlead's own, set by the agent or by hand with `fairlead drain`.

A drain by anybody else is left alone. --adopt takes over a drain whose reason has fairlead's form, but which this node's ledger
does not know, for example because the node has a new disk. Look at the node before you use --adopt. The resume acknowledges the
findings that are active.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress

from fairlead.cli import drain
from fairlead.cli.agent_client import wake_agent
from fairlead.cli.audited import audited
from fairlead.cli.drain import dry, options, protocol, tell
from fairlead.cli.status import read_verdict
from fairlead.drains.outcome import Outcome, finish
from fairlead.errors import ExitCode
from fairlead.model.verdict import State, Verdict

SLOW = "asking Slurm"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adopt", action="store_true", help="take over a fairlead drain that the ledger does not know")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; `fairlead why` shows it")
    options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    drain = protocol(args.document)
    if args.dry_run:
        entry = drain.ledger.load()
        ours = f"it would lift {entry.token.text!r}" if entry else "the ledger knows no drain of ours"
        return dry(drain, ours, lift=True, adopt=args.adopt, as_json=args.json)
    more = {"adopt": "yes"} if args.adopt else {}
    with audited(*drain.ledger.folders, "resume", why=args.reason, args=more) as note:
        with drain.ledger.locked():
            if args.adopt:
                adopted = finish(drain.adopt())
                if adopted.outcome is not Outcome.DRAINED:
                    return tell(drain.node, adopted, as_json=args.json, note=note)
            _take_back(drain.ledger.folders[1])  # before the resume: a job may start at once
            result = finish(drain.resume(by_hand=True))
        wake_agent(drain.ledger.folders[1])
        return tell(drain.node, result, as_json=args.json, note=note)


def _take_back(run_dir: str) -> None:
    """Remove a verdict that says drain, because the prolog follows it and an agent that is down would never withdraw it."""
    verdict = read_verdict(run_dir)
    if isinstance(verdict, Verdict) and verdict.state is State.DRAIN:
        with suppress(OSError):
            os.unlink(os.path.join(run_dir, "verdict"))


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return drain.json_types()
