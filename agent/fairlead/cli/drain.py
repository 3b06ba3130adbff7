"""Drain this node with a reason of fairlead. Only `fairlead resume` lifts this drain, because the agent never does.

If somebody else has drained the node, the command changes nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TypedDict

from fairlead import config
from fairlead.cli.agent_client import node_status, wake_agent
from fairlead.cli.audited import AuditOutcome, audited
from fairlead.cli.output import print_json
from fairlead.drains.from_document import drain_protocol
from fairlead.drains.ledger import Ledger, machine_id
from fairlead.drains.outcome import CONTEST_SECONDS, Outcome, Result, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import ExitCode, NeedsRoot, UsageError
from fairlead.host.boot_clock import boot_id
from fairlead.host.root import Root
from fairlead.policy.ownership import MAINTAIN, MANUAL

DONE = {Outcome.DRAINED, Outcome.RESUMED, Outcome.FREE, Outcome.ACKNOWLEDGED}
SLOW = "asking Slurm"  # patience.py says it


class DrainOutcome(TypedDict):
    """What a drain or resume came to. states: those of the node in slurmctld, read back."""

    node: str
    outcome: str
    detail: str
    states: list[str]


class DrainOutlook(TypedDict):
    """What would be done. states, reason: as slurmctld has them now. refused: why it would be refused, or ""."""

    node: str
    states: list[str]
    reason: str
    would: str
    refused: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; `sinfo -R` and `fairlead why` show it")
    parser.add_argument(
        "--node", metavar="NAME", default="", help="refuse on any other node than NAME; this guards against a wrong ssh address"
    )
    options(parser)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that drain and resume share."""
    parser.add_argument("--document", metavar="FILE", default="/etc/fairlead/node.json", help="the node's document")
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")


def protocol(path: str, node: str = "") -> DrainProtocol:
    """Return the drain protocol of this node. node: its name in Slurm, or "" if any name will do. Raise NeedsRoot, UsageError,
    ConfigError, InputMissing."""
    document = config.load_document(path)
    if node and node != document.slurm_node:
        raise UsageError(
            f"this is {document.slurm_node}, not {node}: nothing was changed", hint="look at the address of the node"
        )
    if os.geteuid() != 0:
        raise NeedsRoot("only root may write the ledger of this node; run the command as root on the node")
    name = document.slurm_node
    folders = (document.agent.state_dir, document.agent.run_dir)
    ledger = Ledger(*folders, node=name, machine=machine_id(Root("/")))
    status = node_status(*folders)
    made = drain_protocol(document, ledger, boot_id=status.get("boot_id") or boot_id(Root("/")))
    if "standing" in status:  # a resume acknowledges the findings that the person could see
        made.state.known = tuple(finding["id"] for finding in status["standing"])
    return made


def tell(node: str, result: Result, *, as_json: bool, note: AuditOutcome) -> ExitCode:
    """Print the result, record it in the audit trail, and return the exit code."""
    note.outcome, note.detail = result.outcome.value, result.detail
    if as_json:
        states = sorted(result.states)
        print_json(DrainOutcome(node=node, outcome=result.outcome.value, detail=result.detail, states=states))
    else:
        print(f"{node}: {result.outcome.value}" + (f": {result.detail}" if result.detail else ""))
        if result.outcome is Outcome.ORPHAN and f": {MAINTAIN}" in result.detail:
            print(f"{node}: `fairlead maintain --resume` on the admin host goes on, or lifts a drain that slurmctld has restored")
    return ExitCode.OK if result.outcome in DONE else ExitCode.TRY_AGAIN


def run(args: argparse.Namespace) -> ExitCode:
    drain = protocol(args.document, args.node)
    if args.dry_run:
        return dry(drain, f"would drain with: {args.reason}", as_json=args.json)
    with audited(*drain.ledger.folders, "drain", why=args.reason) as note:
        drain.limits.refresh()  # reads the topology: switches and blocks have budgets of their own
        with drain.ledger.locked():
            result = finish(drain.drain(MANUAL, args.reason))
        if result.outcome is Outcome.CONTESTED:  # meanwhile other nodes over the same limit undo their drains
            time.sleep(CONTEST_SECONDS[1])
            with drain.ledger.locked():
                result = finish(drain.reconcile())
        wake_agent(drain.ledger.folders[1])
        return tell(drain.node, result, as_json=args.json, note=note)


def dry(drain: DrainProtocol, would: str, *, lift: bool = False, adopt: bool = False, as_json: bool) -> ExitCode:
    """Print the node's state, what would be done, and the reason if it would be refused."""
    state = drain.state.client.node(drain.node)
    refused = drain.state.foresee(state, lift=lift)
    if adopt and drain.adoptable(state):
        refused, would = "", f"would adopt {state.reason!r} and lift it"
    if as_json:
        states = sorted(state.states)
        print_json(DrainOutlook(node=drain.node, states=states, reason=state.reason, would=would, refused=refused))
    else:
        answer = f"{would}; it would be refused: {refused}" if refused else would
        print(f"{drain.node}: {'+'.join(sorted(state.states))}, reason {state.reason or 'none'}; {answer}")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": DrainOutcome, "--dry-run": DrainOutlook}
