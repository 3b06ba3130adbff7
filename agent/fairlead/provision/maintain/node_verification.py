"""Judges what a node says after a reboot and at its verification, and what that means for its maintenance. Pure."""

from __future__ import annotations

from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, Move, NodeReading, NodeWork


def rebooting(work: NodeWork, reading: NodeReading, now: float, plan: MaintenancePlan) -> Move | None:
    """Return the move after the reboot was ordered: the node is back, or back as another machine. None means that it is not
    back yet."""
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
    """Return why the node is not known to be well, by what its own agent says since the verification began; "" when it is
    well."""
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
