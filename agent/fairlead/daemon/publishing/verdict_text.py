"""Writes the verdict's text for hooks and people."""

from __future__ import annotations

from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.policy import Decision, Order


def verdict_text(decision: Decision, slurm: SlurmState) -> str:
    """Return the verdict's text in one line: the decision's text, and why slurmctld has not carried out the decision yet."""
    parts = [decision.text]
    if decision.order is not Order.KEEP:
        if slurm.error:
            parts.append("slurmctld does not answer, the agent tries again")
        elif slurm.foreign:
            parts.append("somebody else has drained the node in Slurm")
        elif slurm.blocked_because:
            parts.append(f"waits: {slurm.blocked_because}")
    if slurm.manual:
        parts.append("drained by hand with `fairlead drain`")
    return "; ".join(part for part in parts if part)
