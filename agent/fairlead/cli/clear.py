"""Close a device as repaired: its strikes, acknowledgements and older kernel records count no more.

Use this command after a repair, such as a reset that helped or a new GPU. The agent then judges the device anew, so a fault that
is still there drains the node again. The agent lifts its own drain after clean sweeps. This command also works while the agent
is down.
  fairlead clear 0000:1b:00.0 --reason "GPU replaced, ticket 4711"     fairlead clear SERIAL ...     fairlead clear --all ...
"""

from __future__ import annotations

import argparse
import os
import stat
from typing import Any, TypedDict

from fairlead import config
from fairlead.cli.agent_client import ask, node_status
from fairlead.cli.audited import actor, audited
from fairlead.cli.output import print_json
from fairlead.daemon.requests.audit_trail import new_id
from fairlead.errors import ExitCode, InputMissing, NeedsRoot, UsageError
from fairlead.host.boot_clock import boot_id, boottime
from fairlead.host.kmsg import Follower
from fairlead.host.pci import normal_address
from fairlead.host.root import Root
from fairlead.policy.state_requests import Clear

SLOW = "asking the agent"  # patience.py says it


class ClearOutcome(TypedDict):
    """What was closed as repaired. devices: all names of the device. everything: the whole node. closes: what counts no more.
    agent: what the agent says to it."""

    done: str
    devices: list[str]
    everything: bool
    closes: list[str]
    agent: str


class ClearOutlook(TypedDict):
    """What would be closed."""

    would: str
    devices: list[str]
    everything: bool
    closes: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="?", default="", metavar="DEVICE|SERIAL", help="PCI address, GPU serial or UUID")
    parser.add_argument("--all", action="store_true", help="close the whole node as repaired")
    parser.add_argument("--reason", metavar="TEXT", default="", help="what was repaired; `fairlead why` shows it")
    parser.add_argument("--document", metavar="FILE", default="/etc/fairlead/node.json", help="the node's document")
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if not args.reason or bool(args.device) == args.all:
        raise UsageError("clear needs DEVICE, SERIAL or --all, and --reason TEXT")
    agent = config.load_document(args.document).agent
    if os.geteuid() != 0:
        raise NeedsRoot("clear changes what drains this node; run it as root")
    known = node_status(agent.state_dir, agent.run_dir)
    if not known:
        raise InputMissing(f"{agent.run_dir}: there is no status of the agent", hint="is fairlead-agent.service running?")
    devices = () if args.all else names_of(args.device, known)
    closes = what_it_closes(devices, known)
    words = "the whole node" if args.all else " ".join(devices)
    if args.dry_run:
        if args.json:
            print_json(ClearOutlook(would="clear", devices=list(devices), everything=args.all, closes=closes))
        else:
            print("\n".join([f"would close as repaired: {words}", *(f"  {line}" for line in closes)]))
        return ExitCode.OK
    with audited(agent.state_dir, agent.run_dir, "clear", why=args.reason, args={"devices": words}) as note:
        request = Clear(
            id=new_id(),
            who=actor().who,
            why=args.reason,
            devices=devices,
            everything=args.all,
            boot_id=known.get("boot_id") or boot_id(Root("/")),
            sequence=last_record(agent.kmsg_path),
            boot_seconds=boottime(),
        )
        note.detail = ask(agent.state_dir, agent.run_dir, request)
    if args.json:
        found = ClearOutcome(done="clear", devices=list(devices), everything=args.all, closes=closes, agent=note.detail)
        print_json(found)
    else:
        print("\n".join([f"closed as repaired: {words}", *(f"  {line}" for line in closes), f"  {note.detail}"]))
    return ExitCode.OK


def names_of(word: str, known: dict[str, Any]) -> tuple[str, ...]:
    """Return all names of the device that ``word`` means. Raise InputMissing for a device that this node has never had."""
    try:
        word = normal_address(word)
    except ValueError:
        pass
    for gpu in known.get("gpus", []):
        if word.lower() in (str(name).lower() for name in gpu.values()):
            return tuple(gpu[key] for key in ("pci", "serial") if key in gpu)
    there = {str(gpu["pci"]): None for gpu in known.get("gpus", [])}
    others = [r["device"] for r in known.get("standing", [])] + list(known.get("strikes", {}))
    others += [a.partition("#")[0].partition("/")[2] for a in known.get("acknowledged", [])]
    there |= {name: None for name in others if name}
    if word in there:
        return (word,)
    raise InputMissing(f"{word}: this node knows no such device", hint=f"it knows: {', '.join(there) or 'none'}; or --all")


def what_it_closes(devices: tuple[str, ...], known: dict[str, Any]) -> list[str]:
    """Return a line for each finding, strike and acknowledgement of these devices. ``devices``: () for all devices."""
    lines = [f"finding {r['check']}: {r['summary']}" for r in known.get("standing", []) if not devices or r["device"] in devices]
    for device, times in known.get("strikes", {}).items():
        if not devices or device in devices:
            lines.append(f"{len(times)} strike{'s' * (len(times) != 1)} of {device}")
    for known_one in known.get("acknowledged", []):
        if not devices or known_one.partition("#")[0].partition("/")[2] in devices:
            lines.append(f"acknowledgement of {known_one.partition('#')[0]}")
    return lines


def last_record(path: str) -> int:
    """Return the number of the newest kernel record, so that only the records up to now are closed.

    Return -1 if the log cannot be read, or if it is a FIFO, which only the agent may read.
    """
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            return -1
    except OSError:
        return -1
    follower = Follower(path)
    try:
        while follower.read():
            pass
        return follower.cursor if follower.cursor is not None else -1
    finally:
        follower.close()


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": ClearOutcome, "--dry-run": ClearOutlook}
