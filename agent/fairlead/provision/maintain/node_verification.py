"""Judges what was read from a node after its reboot and at its verification. The code is pure."""

from __future__ import annotations

from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, Move, NodeReading, NodeWork


def rebooting(work: NodeWork, reading: NodeReading, now: float, plan: MaintenancePlan) -> Move | None:
    """Return the move of a node whose reboot was ordered, or None if it is not back yet. The node fails if another machine has
    come back in its place, or if it is not back in time."""
    if reading.stranger:
        return Move(MaintenanceStep.MARKING, f"not the same machine: {reading.stranger}")
    if not reading.trouble and reading.boot and reading.boot != work.boot_before:
        if work.machine and reading.machine != work.machine:
            return Move(
                MaintenanceStep.MARKING,
                f"not the same machine: it was {work.machine}, now {reading.machine or 'without a serial'}",
            )
        return Move(MaintenanceStep.VERIFYING, "back")
    if now - work.since >= plan.reboot_seconds:
        why = reading.trouble or "it has not rebooted"
        return Move(MaintenanceStep.MARKING, f"did not come back in {plan.reboot_seconds:.0f} s: {why}")
    return None


def unwell(work: NodeWork, reading: NodeReading, now: float) -> str:
    """Return why the node is not known to be well, or "" if it is well. The node's agent must have made a sweep since the
    verification began."""
    if reading.stranger or reading.trouble:
        return reading.stranger or reading.trouble
    if work.machine and reading.machine != work.machine:
        return f"not the same machine: it was {work.machine}, now {reading.machine or 'without a serial'}"
    if work.boot_after and reading.boot != work.boot_after:
        return "it has rebooted again"
    if reading.verdict not in ("ok", "warn"):
        return f"the agent says {reading.verdict}: {reading.text}" if reading.text else f"the agent says {reading.verdict}"
    if reading.verdict_boot and reading.verdict_boot != reading.boot:
        return "the agent's verdict is of an earlier boot"
    if reading.age_seconds is None or reading.age_seconds > now - work.since:
        return "the agent has made no sweep since then"
    if reading.worse:
        return reading.worse[0]
    new = [finding for finding in reading.bad if finding not in work.known]
    return f"new since the maintenance began: {new[0]}" if new else ""
