"""/run/fairlead/status.json: the agent's own account, for `fairlead status` and `fairlead why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlead import __version__
from fairlead.config import Document
from fairlead.daemon.courier import Standing
from fairlead.model.facts import StuckCall
from fairlead.model.finding import Finding, Level
from fairlead.policy import Decision


def finding_data(finding: Finding, mode: str) -> dict[str, object]:
    """A finding as plain data; ``mode`` of its check."""
    return {
        "check": finding.check,
        "level": finding.level.word,
        "device": finding.device,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "action": finding.action.value,
        "needs_history": finding.needs_history,
        "mode": mode,
    }


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
        "findings": [finding_data(f, modes.get(f.check, "observe")) for f in findings if f.level is not Level.OK],
        "held": [
            {"check": f.check, "summary": f.summary, "why": why} for f, why in zip(decision.held, decision.why_held, strict=True)
        ],
        "drain": {"reason": standing.reason} if standing.drained else None,
        "hold": hold,
        "slurm": {"error": standing.error, "held": standing.held, "over_budget": standing.over_budget},
        "worker": {"stuck": msgspec.to_builtins(stuck) if stuck is not None else None},
        "history": list(history),
        "trouble": list(trouble),
    }
    return msgspec.json.encode(data) + b"\n"
