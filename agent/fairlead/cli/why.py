"""The story behind a node's state: what Slurm says, what the agent found, the evidence, the rule, what to do next.

Without NODE: this node. With NODE: Slurm is asked here, the node's agent over ssh (--site names how to reach it).
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import time
from typing import Any

import msgspec

from fairlead.cli import status as status_command
from fairlead.cli.show import age_text, print_json, state_word
from fairlead.errors import ExitCode, FairleadError, InputMissing

SSH_SECONDS = 15
#: What a person does about a rule across nodes that holds a drain (docs/explanation/many-nodes-at-once.md).
LIMITS = {
    "budget": "repair and resume nodes that are out, or raise the budget (policy.budget_*)",
    "common_cause": "one cause: mend it and resume the drained nodes; many broken nodes: drain this one with `fairlead drain`",
    "suspect_job": "look at the job, which goes on; if this node is broken whatever runs there, drain it with `fairlead drain`",
}


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", default="", help="a Slurm node; default: this machine")
    parser.add_argument("--site", default="", help="site.toml: how ssh reaches the node")
    parser.add_argument("--no-slurm", action="store_true", help="do not ask slurmctld")
    parser.add_argument("--slurm-bin", default="/usr/bin", metavar="DIR", help="where scontrol is")
    parser.add_argument("--run-dir", default=status_command.RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")


def _local(args: argparse.Namespace) -> dict[str, Any]:
    return status_command.summary(args.run_dir)


def _remote(args: argparse.Namespace) -> dict[str, Any]:
    """The agent's own account, over ssh. Failing to reach it is part of the story, not an error."""
    target, options = args.node, ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_SECONDS // 2}"]
    if args.site:
        from fairlead import config

        ansible = config.load_site(args.site).ansible
        options += shlex.split(ansible.ssh_args) + (["-i", ansible.private_key] if ansible.private_key else [])
        target = f"{ansible.user}@{ansible.hosts.get(args.node, args.node)}"
    command = ["ssh", *options, target, "fairlead status --json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SSH_SECONDS, check=False, stdin=subprocess.DEVNULL)
        data = msgspec.json.decode(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"{args.node} did not answer ssh within {SSH_SECONDS} s"}
    except (OSError, msgspec.DecodeError):
        detail = done.stderr.decode(errors="replace").strip().splitlines()
        return {"error": f"{args.node}: no account of the agent over ssh" + (f": {detail[-1]}" if detail else "")}
    return data if isinstance(data, dict) else {"error": f"{args.node}: unexpected answer"}


def _slurm(name: str, bin_dir: str) -> dict[str, Any]:
    from fairlead.slurm.scontrol import Scontrol

    try:
        state = Scontrol(bin_dir=bin_dir).node(name)
    except FairleadError as e:
        return {"error": str(e)}
    return {
        "states": sorted(state.states),
        "reason": state.reason,
        "reason_user": state.reason_user,
        "reason_unix": state.reason_time,
    }


def owner_of(reason: str, user: str, drain: dict[str, Any] | None) -> str:
    """Whose drain it is, in words."""
    if not reason:
        return "nobody drained it"
    if drain and reason.startswith(str(drain.get("reason", "\0"))):
        return "fairlead's own drain; it is resumed when the node is well again"
    if reason.startswith("fairlead:"):
        return "a fairlead drain that this node's agent does not know as its own: it is left alone (`fairlead resume --adopt`)"
    return f"drained by {user or 'somebody'}: fairlead leaves it alone, whatever happens to the node"


def _meaning(finding: dict[str, Any]) -> list[str]:
    """What the catalogue says about an Xid that a finding names."""
    import re

    match = re.match(r"Xid (\d+)", finding.get("summary", ""))
    if finding.get("check") != "xid" or not match:
        return []
    from fairlead.xid import catalogue

    entry = catalogue.look_up(int(match[1]))
    return [f"meaning: {entry.name}: {entry.why}"] if entry else []


def _rule(finding: dict[str, Any]) -> str:
    mode = finding.get("mode", "?")
    return str({"enforce": "enforce: may drain", "observe": "observe: reported only, does not drain"}.get(mode, mode))


def story(agent: dict[str, Any], slurm: dict[str, Any] | None) -> list[str]:
    """The lines of the account."""
    status = agent.get("status", {})
    lines = []
    if slurm and "error" in slurm:
        lines.append(f"Slurm:    {slurm['error']}")
    elif slurm:
        lines.append(f"Slurm:    {'+'.join(slurm['states'])}" + (f", reason: {slurm['reason']}" if slurm["reason"] else ""))
        lines.append(f"owner:    {owner_of(slurm['reason'], slurm['reason_user'], status.get('drain'))}")
    if "error" in agent:
        return [*lines, f"agent:    {agent['error']}"]
    age = agent.get("age_seconds")
    lines.append(
        f"verdict:  {state_word(agent['state'])}"
        + (f", {age_text(age)} old" if age is not None else "")
        + f": {agent['text'] or '-'}"
    )
    for f in status.get("findings", []):
        lines.append(f"finding:  {f['check']}: {f['summary']}")
        lines += [f"  evidence: {e}" for e in f.get("evidence", [])]
        lines += [f"  {m}" for m in _meaning(f)]
        lines.append(f"  rule:   {_rule(f)}")
        if f.get("action", "none") != "none":
            lines.append(f"  do:     {f['action']} (`fairlead explain {f['check']}`)")
    lines += [f"held:     {f['check']}: {f['summary']} ({f.get('why', '')})" for f in status.get("held", [])]
    if limit := status.get("slurm", {}).get("limit"):
        lines.append(f"limit:    {limit['kind']} {limit['name']}: {LIMITS.get(limit['kind'], LIMITS['budget'])}")
    if hold := status.get("hold"):
        lines.append(f"hold:     {hold.get('who')} since {hold.get('when')}: {hold.get('reason')}")
    if stuck := status.get("worker", {}).get("stuck"):
        lines.append(
            f"driver:   {stuck['call']} on {stuck['gpu'] or 'the system'} has not answered for {age_text(stuck['seconds'])}"
        )
    if error := status.get("slurm", {}).get("error"):
        lines.append(f"waiting:  slurmctld: {error}; tried again by itself")
    for event in status.get("history", [])[-8:]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.get("unix_seconds", 0)))
        lines.append(f"history:  {when} {event.get('event', '')} {event.get('text', '')}".rstrip())
    return lines


def run(args: argparse.Namespace) -> ExitCode:
    here = os.uname().nodename.split(".")[0]
    local = not args.node or args.node == here
    agent = _local(args) if local else _remote(args)
    name = args.node or agent.get("status", {}).get("slurm_node") or here
    slurm = None if args.no_slurm else _slurm(name, args.slurm_bin)
    if "error" in agent and slurm and "error" in slurm:
        raise InputMissing(f"{name}: neither Slurm nor the node says anything", hint=f"{slurm['error']}; {agent['error']}")
    if args.json:
        print_json({"node": name, "slurm": slurm, "agent": agent})
    else:
        print(name)
        print("\n".join(f"  {line}" for line in story(agent, slurm)))
    return ExitCode.OK
