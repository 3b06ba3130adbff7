"""Acknowledge findings: they stay visible, and they do not drain this node until there is new evidence.

New evidence is a new kernel record, a new counter value, or the same fault after it had disappeared. If no other finding is left,
the agent lifts its own drain after clean sweeps. This command also works while the agent is down.
  fairlead ack xid/0000:1b:00.0 --reason "known, RMA 4711"     fairlead ack --all --reason TEXT     fairlead ack --list
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NotRequired, TypedDict

from fairlead import config
from fairlead.cli.agent_client import ask, node_status
from fairlead.cli.audited import actor, audited
from fairlead.cli.output import columns, print_json
from fairlead.cli.time_options import local
from fairlead.daemon.requests.audit_trail import Trail, new_id
from fairlead.errors import ExitCode, InputMissing, NeedsRoot, UsageError
from fairlead.host.pci import normal_address
from fairlead.policy.state_requests import Ack, Undo

SLOW = "asking the agent"  # patience.py says it


class AckFinding(TypedDict):
    """A finding, by the name that `ack` takes. who, when, why: of its acknowledgement, where the audit trail has them."""

    id: str
    name: str
    summary: str
    who: NotRequired[str]
    when: NotRequired[str]
    why: NotRequired[str]


class AckOutcome(TypedDict):
    """What was done: ack or ack --undo. agent: what the agent says to it."""

    done: str
    findings: list[AckFinding]
    agent: str


class AckOutlook(TypedDict):
    """What would be done: acknowledge or undo."""

    would: str
    findings: list[AckFinding]


class AckList(TypedDict):
    """What is acknowledged."""

    acknowledged: list[AckFinding]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="CHECK[/DEVICE]", help="findings as `fairlead why` names them")
    parser.add_argument(
        "--all", action="store_true", help="all findings that drain or would drain; with --undo, all acknowledged ones"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; `fairlead why` shows it")
    parser.add_argument("--undo", action="store_true", help="undo the acknowledgement, so that they count again")
    parser.add_argument("--list", action="store_true", help="show what is acknowledged, by whom and why")
    parser.add_argument("--document", metavar="FILE", default="/etc/fairlead/node.json", help="the node's document")
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if not args.list and not args.reason:
        raise UsageError("ack needs --reason TEXT (or --list)")
    if not args.list and bool(args.what) == args.all:
        raise UsageError("ack needs CHECK or CHECK/DEVICE, or --all", hint="`fairlead why` names the findings")
    agent = config.load_document(args.document).agent
    known = node_status(agent.state_dir, agent.run_dir)
    if args.list:
        return _list(known, Trail(agent.state_dir, agent.run_dir), as_json=args.json)
    if os.geteuid() != 0:
        raise NeedsRoot("ack changes what drains this node; run it as root")
    if not known:
        raise InputMissing(f"{agent.run_dir}: there is no status of the agent", hint="is fairlead-agent.service running?")
    among = _acknowledged(known) if args.undo else _unacknowledged(known)
    chosen = among if args.all else _chosen(args.what, among, undo=args.undo)
    shown = [f"{row['name']}: {row['summary']}" for row in chosen]
    if args.dry_run or not chosen:
        if args.json:
            print_json(AckOutlook(would="undo" if args.undo else "acknowledge", findings=chosen))
        elif not chosen:
            print("nothing is acknowledged" if args.undo else "no finding drains this node")
        else:
            print("\n".join(f"would {'let count again' if args.undo else 'acknowledge'} {line}" for line in shown))
        return ExitCode.OK
    evidence = tuple(row["id"] for row in chosen)
    command = "ack --undo" if args.undo else "ack"
    with audited(agent.state_dir, agent.run_dir, command, why=args.reason, args={"evidence": ", ".join(evidence)}) as note:
        kind = Undo if args.undo else Ack
        note.detail = ask(agent.state_dir, agent.run_dir, kind(id=new_id(), evidence=evidence, who=actor().who, why=args.reason))
    if args.json:
        print_json(AckOutcome(done=command, findings=chosen, agent=note.detail))
    else:
        print("\n".join(f"{'counts again' if args.undo else 'acknowledged'}: {line}" for line in shown))
        print(f"  {note.detail}")
    return ExitCode.OK


def _unacknowledged(known: dict[str, Any]) -> list[AckFinding]:
    """Return the findings that drain, or would drain, and are not acknowledged."""
    done = set(known.get("acknowledged", []))
    rows = [r for r in known.get("standing", []) if r["id"] not in done]
    return [{"id": r["id"], "name": _name(f"{r['check']}/{r['device']}"), "summary": r["summary"]} for r in rows]


def _acknowledged(known: dict[str, Any]) -> list[AckFinding]:
    words = {r["id"]: r["summary"] for r in known.get("standing", [])}
    found: list[AckFinding] = []
    for identity in known.get("acknowledged", []):
        key, _, evidence = identity.partition("#")
        found.append({"id": identity, "name": _name(key), "summary": words.get(identity, f"{evidence} (not seen any more)")})
    return found


def _name(key: str) -> str:
    return key.removesuffix("/")


def _chosen(names: list[str], among: list[AckFinding], *, undo: bool) -> list[AckFinding]:
    """Return the findings of these names. Raise InputMissing for a name that no finding has."""
    chosen: dict[str, AckFinding] = {}
    for name in names:
        check, slash, device = name.partition("/")
        try:
            device = normal_address(device) if device else ""
        except ValueError:
            pass  # not a PCI device: an interface, a mount
        wanted = f"{check}{slash}{device}".rstrip("/")
        found = [r for r in among if wanted in (r["name"], r["name"].partition("/")[0])]
        if not found:
            there = ", ".join(dict.fromkeys(r["name"] for r in among)) or "none"
            what = "acknowledged" if undo else "active finding that drains"
            raise InputMissing(f"{name}: there is no {what} of that name", hint=f"there are: {there}")
        chosen |= {r["id"]: r for r in found}
    return list(chosen.values())


def _list(known: dict[str, Any], trail: Trail, *, as_json: bool) -> ExitCode:
    rows = _acknowledged(known)
    entries = trail.read()
    for row in rows:
        by = [
            e
            for e in entries
            if e.what in ("ack", "resume", "resumed by a person") and (row["id"] in e.args.get("evidence", "") or e.what != "ack")
        ]
        exact = [e for e in by if e.what == "ack"] or by
        if exact:
            by_whom = exact[-1]
            row["who"], row["when"], row["why"] = by_whom.who, local(by_whom.unix), by_whom.why or by_whom.detail
    if as_json:
        print_json(AckList(acknowledged=rows))
    elif not rows:
        print("nothing is acknowledged")
    else:
        table = [(r["name"], r["summary"], r.get("who", "?"), r.get("when", "?"), r.get("why", "")) for r in rows]
        print(columns(table, head=("finding", "what", "who", "when", "why")))
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": AckOutcome, "--dry-run, or without a finding": AckOutlook, "--list": AckList}
