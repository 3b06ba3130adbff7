"""Drains nodes that failed in a run over the fabric: calls ``fairlead drain`` on each of them over ssh.

So each drain takes the same way as a person's drain: the node's ledger, the drain protocol, and the budget.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fairlead import config
from fairlead.config.site import AnsibleOptions
from fairlead.measure.fabric_plan import FRESH_DAYS
from fairlead.measure.fabric_store import FabricRecord
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, PartKind
from fairlead.measure.pairs.pair_table import NO_TOPOLOGY, LeafSource
from fairlead.measure.tool import MeasuredOutcome
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line
from fairlead.provision.ssh import ssh_options

DRAIN_SECONDS = 120.0
SAID_MAX = 300
FAIRLEAD = "/opt/fairlead/current/bin/fairlead"


class _DrainAnswer(Struct):
    """Holds the answer of ``fairlead drain --json``."""

    outcome: str
    detail: str = ""


def failed_nodes(verdict: FabricVerdict) -> dict[str, str]:
    """Return the nodes that may be drained, and why. A rail is a cable or a port for a person, and a slow leaf or uplink is no
    node. A node that only warns is not drained either."""
    return {
        part.name: part.summary for part in verdict.parts if part.kind is PartKind.NODE and part.outcome is MeasuredOutcome.FAIL
    }


def refusal(record: FabricRecord) -> str:
    """Return why no node is drained because of this run, or "". If the topology is unknown, a slow uplink makes good nodes fail.
    A run that was interrupted lacks the confirmations. After an old run, a node may have been repaired."""
    if record.plan.leaves.source is LeafSource.UNKNOWN:
        return NO_TOPOLOGY
    if not record.complete:
        return "the run did not measure all of its rounds"
    days = (time.time() - (record.ended or record.began)) / 86400
    if not 0 <= days <= FRESH_DAYS:
        return f"the run is {days:.0f} days old, and the node may have been repaired: measure again"
    return ""


def drain_failed(
    verdict: FabricVerdict,
    record: FabricRecord,
    site: config.Site | None,
    *,
    cleared: Mapping[str, str],
    program: str,
    dry_run: bool,
) -> dict[str, str]:
    """Drain the nodes that failed, one after the other, and return by node what became of it. cleared: the nodes that a newer run
    has cleared, and how. The command names the node, so that another node at its address drains nobody."""
    failed = failed_nodes(verdict)
    if refused := refusal(record):
        return dict.fromkeys(failed, f"not drained: {refused}")
    ansible = site.ansible if site is not None else AnsibleOptions(user="")
    hosts = site.ansible.hosts if site is not None else {}
    found = {}
    for node, why in failed.items():
        reason = one_line(f"slow over the fabric, run {record.plan.run}: {why}", 200)
        if node in cleared:
            found[node] = f"not drained: {cleared[node]}"
            continue
        if dry_run:
            found[node] = f"would be drained with: {reason}"
            continue
        address = hosts.get(node, node)
        options = shlex.split(ssh_options(ansible.ssh_args, ansible.private_key, address, program))
        user = ["-l", ansible.user] if ansible.user else []
        words = f"{FAIRLEAD} drain --json --node {shlex.quote(node)} --reason {shlex.quote(reason)}"
        command = [program, *options, *user, "--", address, words]
        found[node] = _drained(command)
    return found


def _drained(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DRAIN_SECONDS, check=False)
        answer = msgspec.json.decode(done.stdout[:65536], type=_DrainAnswer)
    except subprocess.TimeoutExpired:
        return f"not drained: no answer in {DRAIN_SECONDS:g} s"
    except OSError as e:
        return f"not drained: {command[0]}: {e.strerror}"
    except NOT_JSON:
        said = one_line((done.stderr or done.stdout).decode("utf-8", "replace"), SAID_MAX)
        return f"not drained: {said or f'ended with {done.returncode}'}"
    outcome, detail = one_line(answer.outcome, 40), one_line(answer.detail, SAID_MAX)
    return f"drained: {detail}" if outcome == "drained" else f"not drained: {outcome}{f': {detail}' if detail else ''}"
