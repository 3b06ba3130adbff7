"""Renders /run/fairlead/status.json, in which the agent describes its state for `fairlead status` and `fairlead why`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from fairlead import __version__
from fairlead.assets import running_release
from fairlead.daemon.publishing.agent_state import AgentState
from fairlead.host.boot_clock import boottime
from fairlead.model.facts import Gpu, Missing
from fairlead.model.finding import OVERRUN, Finding, Level, as_data
from fairlead.model.status_data import Raised, Remembered, StatusData, StatusFinding, StatusGpu
from fairlead.policy import PolicyState, identity, ladder
from fairlead.policy.policy_state import EscalationStep, remembered_findings


def status_json(
    state: AgentState,
    *,
    hold: Mapping[str, str] | None,
    history: Sequence[Mapping[str, object]],
    proof: Mapping[str, object],
    topology: str,
    memory: str,
    trouble: Sequence[str],
) -> bytes:
    """Return the content of the file.

    ``hold``: the admin hold, or None if there is none. ``history``: the last events. ``proof``: the state of the return command.
    ``topology``: one line on slurmctld's topology. ``memory``: the file system in memory that has the state folder, or "".
    ``trouble``: what the agent cannot write, one line for each problem.
    """
    document, decision, slurm, node = state.document, state.decision, state.slurm, state.sweep.node
    data: StatusData = {
        "schema": 1,
        "agent_version": __version__,
        "agent_release": running_release(),
        "state_folder": {"path": document.agent.state_dir, "lost_at_reboot": memory},
        "driver": driver if node is not None and isinstance(driver := node.driver.module_version, str) else "",
        "node": document.node,
        "slurm_node": document.slurm_node,
        "document": {"generation": document.generation, "profile": document.profile, "hash": document.hash},
        "sweep": {"boot_seconds": boottime(), "seconds": state.sweep.seconds, "count": state.sweep.count},
        "pid": os.getpid(),
        "boot_id": node.boot_id if node is not None and isinstance(node.boot_id, str) else "",
        "findings": [
            _finding(f, decision.escalations, state.modes.get(f.check, "observe"))
            for f in state.findings
            if f.level is not Level.OK
        ],
        **remembered(decision.state),
        "gpus": [] if node is None or isinstance(node.gpus, Missing) else [_gpu(g) for g in node.gpus],
        "held": [
            {"check": f.check, "summary": f.summary, "why": why}
            for f, why in zip(decision.suppressed, decision.why_suppressed, strict=True)
        ],
        "drain": {"reason": slurm.reason, "since_unix": slurm.since} if slurm.drained else None,
        "hold": None if hold is None else dict(hold),
        "return": dict(proof) if document.policy.return_command else None,
        "slurm": {
            "error": slurm.error,
            "held": slurm.blocked_because,
            "over_budget": slurm.over_budget,
            "limit": {"kind": limit.kind.value, "name": limit.name} if (limit := slurm.limit) is not None else None,
            "topology": topology,
        },
        "worker": {"stuck": msgspec.to_builtins(node.stuck) if node is not None and node.stuck is not None else None},
        "history": [dict(event) for event in history],
        "trouble": list(trouble),
    }
    return msgspec.json.encode(data) + b"\n"


def remembered(state: PolicyState) -> Remembered:
    """Return the part of the policy's state that people may acknowledge or clear: active findings, acknowledgements, strikes,
    escalations."""
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


def _finding(finding: Finding, escalations: Mapping[str, EscalationStep], mode: str) -> StatusFinding:
    """Return a finding with its escalation step. ``id`` is the name that acknowledgements use: that of the finding as its check
    reported it, before the escalation."""
    escalated = ladder.as_escalated(finding, escalations)
    raised: Raised | None = (
        {"from": finding.action.value, "why": escalations[ladder.escalation_key(finding)].why}
        if escalated is not finding
        else None
    )
    return {**as_data(escalated), "id": identity(finding), "raised": raised, "mode": mode}


def _gpu(gpu: Gpu) -> StatusGpu:
    found: StatusGpu = {"pci": gpu.pci}
    if isinstance(gpu.serial, str):
        found["serial"] = gpu.serial
    if isinstance(gpu.uuid, str):
        found["uuid"] = gpu.uuid
    return found
