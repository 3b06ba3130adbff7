"""/run/fairlead/status.json: the agent's own account, for `fairlead status` and `fairlead why`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from fairlead import __version__
from fairlead.config import Document
from fairlead.daemon.courier import Standing
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.finding import OVERRUN, Finding, Level, as_data
from fairlead.policy import Decision, Order, PolicyState, identity, ladder
from fairlead.policy.policy_state import EscalationStep, remembered_findings


def verdict_text(decision: Decision, standing: Standing) -> str:
    """The verdict's line: the decision's, and why Slurm does not follow it yet."""
    parts = [decision.text]
    if decision.order is not Order.KEEP:
        if standing.error:
            parts.append("slurmctld does not answer, tried again")
        elif standing.foreign:
            parts.append("somebody else holds the node in Slurm")
        elif standing.held:
            parts.append(f"waits: {standing.held}")
    if standing.manual:
        parts.append("drained by hand with `fairlead drain`")
    return "; ".join(part for part in parts if part)


def render(
    document: Document,
    decision: Decision,
    findings: Sequence[Finding],
    standing: Standing,
    *,
    modes: Mapping[str, str],
    sweep: Mapping[str, object],
    node: Node | None,
    hold: Mapping[str, str] | None,
    history: Sequence[Mapping[str, object]],
    proof: Mapping[str, object],
    topology: str,
    trouble: Sequence[str],
) -> bytes:
    """The whole file as JSON."""
    data: dict[str, object] = {
        "schema": 1,
        "agent_version": __version__,
        "driver": driver if node is not None and isinstance(driver := node.driver.module_version, str) else "",
        "node": document.node,
        "slurm_node": document.slurm_node,
        "document": {"generation": document.generation, "profile": document.profile, "hash": document.hash},
        "sweep": sweep,
        "pid": os.getpid(),
        "boot_id": node.boot_id if node is not None and isinstance(node.boot_id, str) else "",
        "findings": [
            {**_finding(f, decision.escalations), "mode": modes.get(f.check, "observe")}
            for f in findings
            if f.level is not Level.OK
        ],
        **remembered(decision.state),
        "gpus": [] if node is None or isinstance(node.gpus, Missing) else [_gpu(g) for g in node.gpus],
        "held": [
            {"check": f.check, "summary": f.summary, "why": why}
            for f, why in zip(decision.suppressed, decision.why_suppressed, strict=True)
        ],
        "drain": {"reason": standing.reason, "since_unix": standing.since} if standing.drained else None,
        "hold": hold,
        "return": proof if document.policy.return_command else None,
        "slurm": {
            "error": standing.error,
            "held": standing.held,
            "over_budget": standing.over_budget,
            "limit": {"kind": limit.kind.value, "name": limit.name} if (limit := standing.limit) is not None else None,
            "topology": topology,
        },
        "worker": {"stuck": msgspec.to_builtins(node.stuck) if node is not None and node.stuck is not None else None},
        "history": list(history),
        "trouble": list(trouble),
    }
    return msgspec.json.encode(data) + b"\n"


def remembered(state: PolicyState) -> dict[str, object]:
    """What people may acknowledge or clear, from the policy's state: findings that stand, what is known, strikes, ladder."""
    bad = [f for f in remembered_findings(state) if f.level is Level.DRAIN or (f.fault == OVERRUN and f.level is Level.WARN)]
    return {
        "standing": [{"id": identity(f), "check": f.check, "device": f.device, "summary": f.summary} for f in bad],
        "acknowledged": list(state.acknowledged),
        "requests": list(state.requests[-50:]),
        "strikes": {device: list(times) for device, times in state.strikes.items()},
        "reboots": list(state.reboots),
        "ladder": {
            name: {
                "step": escalation.step.value,
                "open": escalation.open,
                "since_unix": escalation.since_seconds,
                "why": escalation.why,
                "tied": escalation.manual_resume,
            }
            for name, escalation in state.ladder.items()
        },
    }


def _finding(finding: Finding, escalations: Mapping[str, EscalationStep]) -> dict[str, object]:
    """A finding, with the step that the ladder has come to; ``id`` is of what the check said, as acknowledgements are."""
    shown = ladder.as_escalated(finding, escalations)
    raised = (
        {"from": finding.action.value, "why": escalations[ladder.escalation_key(finding)].why} if shown is not finding else None
    )
    return {**as_data(shown), "id": identity(finding), "raised": raised}


def _gpu(gpu: Gpu) -> dict[str, str]:
    names = {"pci": gpu.pci, "serial": gpu.serial, "uuid": gpu.uuid}
    return {key: value for key, value in names.items() if isinstance(value, str)}
