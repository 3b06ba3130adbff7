"""/run/fairlead/status.json: the agent's own account, for `fairlead status` and `fairlead why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlead import __version__
from fairlead.config import Document
from fairlead.daemon.courier import Standing
from fairlead.model.facts import StuckCall
from fairlead.model.finding import Finding, Level, as_data
from fairlead.policy import Decision, Order


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
    stuck: StuckCall | None,
    hold: Mapping[str, str] | None,
    history: Sequence[Mapping[str, object]],
    topology: str,
    trouble: Sequence[str],
) -> bytes:
    """The whole file as JSON."""
    data: dict[str, object] = {
        "schema": 1,
        "agent_version": __version__,
        "node": document.node,
        "slurm_node": document.slurm_node,
        "document": {"generation": document.generation, "profile": document.profile, "hash": document.hash},
        "sweep": sweep,
        "findings": [{**as_data(f), "mode": modes.get(f.check, "observe")} for f in findings if f.level is not Level.OK],
        "held": [
            {"check": f.check, "summary": f.summary, "why": why} for f, why in zip(decision.held, decision.why_held, strict=True)
        ],
        "drain": {"reason": standing.reason} if standing.drained else None,
        "hold": hold,
        "slurm": {
            "error": standing.error,
            "held": standing.held,
            "over_budget": standing.over_budget,
            "limit": {"kind": limit.kind.value, "name": limit.name} if (limit := standing.limit) is not None else None,
            "topology": topology,
        },
        "worker": {"stuck": msgspec.to_builtins(stuck) if stuck is not None else None},
        "history": list(history),
        "trouble": list(trouble),
    }
    return msgspec.json.encode(data) + b"\n"
