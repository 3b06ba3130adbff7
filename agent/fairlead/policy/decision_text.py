"""Writes a decision as text: the summary of the drain's reason and the verdict's line, with the worst finding first."""

from __future__ import annotations

from enum import StrEnum

from fairlead.model.finding import Finding, Service
from fairlead.policy.policy_state import Now, Proof


class Order(StrEnum):
    """Names what fairlead is to do in Slurm. KEEP means nothing."""

    KEEP = "keep"
    DRAIN = "drain"
    RESUME = "resume"


_FIRST = ("xid", "gpu_count", "row_remap", "ecc", "nvml_responsive")


def weight(finding: Finding) -> tuple[bool, int, str, str]:
    """Return the sort key of a finding in texts. Findings that drain at once come first. Then come checks that name the cause
    best (``_FIRST``), and then all others by name."""
    index = _FIRST.index(finding.check) if finding.check in _FIRST else len(_FIRST)
    return (finding.service is not Service.DRAIN_NOW, index, finding.check, finding.device)


def summary(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return ""
    return findings[0].summary + (f" (+{len(findings) - 1} more)" if len(findings) > 1 else "")


def proof_words(now: Now) -> str:
    """Return the state of the return-to-service command as text."""
    if now.job_running:
        return "the return command waits for the job to end"
    said = {Proof.RUNNING: "runs", Proof.FAILED: "has failed and is tried again", Proof.PASSED: "has passed"}
    return f"well again, the return command {said.get(now.proof, 'is due')}"


def line(
    *,
    order: Order,
    drains: tuple[Finding, ...],
    due: bool,
    suppressed: list[tuple[Finding, str]],
    unknown: list[Finding],
    warned: list[Finding],
    drained: bool,
    manual: bool,
    back: str,
) -> str:
    """Return the verdict's line, with the worst finding first and at most one finding of each kind. ``back`` is the reason why a
    drained node that is well is not resumed, or "" while it recovers. ``manual`` says that a person drained the node through
    fairlead, so the agent does not resume it."""
    parts: list[str] = []
    if order is Order.RESUME and not manual:
        parts.append("well again, resuming")
    elif drains:
        first = f"{drains[0].check}: {summary(drains)}"
        if drained:
            parts.append(first)
        else:
            parts.append(f"drain pending{'' if due else ', waits for the job to end'}: {first}")
    elif drained and not manual:
        parts.append(f"drained by fairlead, {back or 'recovering'}")
    if suppressed:
        parts.append(f"{suppressed[0][0].check}: {suppressed[0][0].summary} ({suppressed[0][1]})")
    if unknown:
        more = f" (+{len(unknown) - 1} more)" if len(unknown) > 1 else ""
        parts.append(f"{unknown[0].check}: {unknown[0].summary}{more}")
    if warned and not suppressed:
        parts.append(f"{warned[0].check}: {warned[0].summary}")
    return "; ".join(parts)
