"""Say why a node is in its state: what Slurm says, what to do next, the findings with their evidence, who did what.

Without NODE, the answer is about this node. With NODE, this command asks Slurm from here, and the node's agent over ssh. --site
names the file that says how ssh reaches the node.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Any, NotRequired, TypedDict

from fairlead.cli import status as status_command
from fairlead.cli.agent_client import agent_pid
from fairlead.cli.audit import AuditEntryData, as_data
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.cli.state_folder import add_state_dir, state_folder
from fairlead.cli.why_text import SHOWN, owner, steps, why_text
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.errors import DataError, ExitCode, FairleadError, InputMissing, SlurmUnavailable
from fairlead.model.plain_text import one_line, printable
from fairlead.model.status_data import StatusData

SITE = "/etc/fairlead/site.toml"
SSH_SECONDS = 15
AUDIT_SHOWN = 50  # audit entries in the JSON output without --history
SLOW = "asking Slurm and the node"  # patience.py says it


class SlurmAccount(TypedDict):
    """The node in slurmctld, or why it is not known. away: slurmctld does not answer."""

    states: NotRequired[list[str]]
    reason: NotRequired[str]
    reason_user: NotRequired[str]
    reason_unix: NotRequired[int]
    error: NotRequired[str]
    away: NotRequired[bool]
    hint: NotRequired[str]


class AgentPart(TypedDict, total=False):
    """The summary of `fairlead status --json`. running: whether the agent of this node runs. error: why nothing is
    known of another node; then it is the only key."""

    state: str
    text: str
    expired: bool
    sequence: int
    expires_in_seconds: float
    age_seconds: float | None
    status: StatusData
    running: bool
    error: str


class NodeAccount(TypedDict):
    """Why a node is in its state. owner: who caused it, "" if that is not known. next: what to do, the most urgent first. slurm:
    null with --no-slurm. audit: the newest entries of the audit trail, or all with --history."""

    node: str
    owner: str
    next: list[str]
    slurm: SlurmAccount | None
    agent: AgentPart
    audit: list[AuditEntryData]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", default="", help="the Slurm node (default: this machine)")
    where = f"the site.toml that says how ssh reaches the node (default: {SITE} if it exists)"
    parser.add_argument("--site", metavar="FILE", default="", help=where)
    parser.add_argument("--no-slurm", action="store_true", help="do not ask slurmctld")
    add_bin_dir(parser)
    parser.add_argument("--slurm-bin", dest="bin_dir", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # its older name
    parser.add_argument("--history", action="store_true", help="show the whole audit trail, not only its end")
    add_state_dir(parser, shown=False)
    parser.add_argument("--run-dir", metavar="DIR", default=status_command.RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _local(args: argparse.Namespace) -> tuple[dict[str, Any], list[Any]]:
    trail = Trail(state_folder(args.state_dir), args.run_dir)
    data = status_command.summary(args.run_dir)
    if "pid" in data["status"]:
        data["running"] = agent_pid(args.run_dir) != 0
    return data, [as_data(e) for e in trail.read()][None if args.history else -AUDIT_SHOWN :]


def _remote(args: argparse.Namespace) -> tuple[dict[str, Any], list[Any]]:
    """Return the agent's status and audit trail, read over ssh. If that fails, the status is a table with only the key error."""
    from fairlead.provision.agent_status import account_of
    from fairlead.provision.node_answer import SAID
    from fairlead.provision.ssh import SSH_ARGS, ask

    target, options = args.node, ["-o", f"ConnectTimeout={SSH_SECONDS // 2}", *shlex.split(SSH_ARGS)]
    if site := args.site or (SITE if os.path.exists(SITE) else ""):
        from fairlead import config

        ansible = config.load_site(site).ansible
        options = [*shlex.split(ansible.ssh_args), *(["-i", ansible.private_key] if ansible.private_key else []), *options]
        target = f"{ansible.user}@{ansible.hosts.get(args.node, args.node)}"
    try:
        said = ask(["ssh", *options, target, "fairlead why --no-slurm --json" + " --history" * args.history], SSH_SECONDS)
    except OSError as e:
        return {"error": f"ssh: {e.strerror}"}, []
    if said.code is None:
        why = SAID + ": it does not end" if said.endless else f"did not answer ssh within {SSH_SECONDS} s"
        return {"error": f"{args.node} {why}"}, []
    try:
        found = account_of(said.out)
    except DataError as e:
        detail = [line for line in said.err.splitlines() if line.strip()]
        words = str(e) if said.out.strip() else "no account of the agent over ssh"
        return {"error": f"{args.node}: {words}" + (f": {one_line(detail[-1], 200)}" if detail else "")}, []
    name = found["agent"].get("status", {}).get("slurm_node") or args.node
    if name != args.node:
        return {"error": f"ssh {target} leads to {name}"}, []
    return dict(found["agent"]), list(found.get("audit", []))


def _slurm(name: str, bin_dir: str) -> dict[str, Any]:
    from fairlead.slurm.scontrol import Scontrol

    try:
        state = Scontrol(bin_dir=bin_dir).node(name)
    except FairleadError as e:
        return {"error": str(e), "away": isinstance(e, SlurmUnavailable), "hint": e.hint}
    return {
        "states": sorted(state.states),
        "reason": one_line(state.reason),
        "reason_user": one_line(state.reason_user),
        "reason_unix": state.reason_time,
    }


def run(args: argparse.Namespace) -> ExitCode:
    here = os.uname().nodename.split(".")[0]
    own = status_command.read_status(args.run_dir)
    local = not args.node or args.node in (here, own.get("slurm_node"), own.get("node"))
    agent, audit = _local(args) if local else _remote(args)
    name = args.node or agent.get("status", {}).get("slurm_node") or here
    slurm = None if args.no_slurm else _slurm(name, args.bin_dir)
    if "error" in agent and slurm and "error" in slurm:
        raise InputMissing(f"{name}: neither Slurm nor the node says anything", hint=f"{slurm['error']}; {agent['error']}")
    if args.json:
        whose = owner(slurm, agent.get("status"))
        todo = steps(name, agent, slurm, whose)
        account: Any = {"node": name, "owner": whose, "next": todo, "slurm": slurm, "agent": agent, "audit": audit}
        printed: NodeAccount = account
        print_json(printed)
    else:
        print(name)
        lines = why_text(name, agent, slurm, audit, shown=100000 if args.history else SHOWN)
        print("\n".join(f"  {printable(line)}" for line in lines))  # another node may have written the line
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": NodeAccount}
