"""What a node says of itself after a reboot and at its verification, and what that means for its maintenance. Pure."""

from __future__ import annotations

from fairlead.provision.maintain.maintenance_steps import Looked, Move, Plan, Step, Work


def rebooting(work: Work, look: Looked, now: float, plan: Plan) -> Move | None:
    """After the reboot was ordered: back, back as another machine, or not back yet (None)."""
    if look.stranger:
        return Move(Step.MARKING, f"not the same machine: {look.stranger}")
    if not look.trouble and look.boot and look.boot != work.boot_before:
        if work.machine and look.machine != work.machine:
            return Move(Step.MARKING, f"not the same machine: it was {work.machine}, now {look.machine or 'without a serial'}")
        return Move(Step.VERIFYING, "back")
    if now - work.since >= plan.reboot_seconds:
        why = look.trouble or "it has not rebooted"
        return Move(Step.MARKING, f"did not come back in {plan.reboot_seconds:.0f} s: {why}")
    return None


def unwell(work: Work, look: Looked, now: float) -> str:
    """Why the node is not known to be well, by its own agent since it has been verified; "" when it is."""
    if look.stranger or look.trouble:
        return look.stranger or look.trouble
    if work.machine and look.machine != work.machine:
        return f"not the same machine: it was {work.machine}, now {look.machine or 'without a serial'}"
    if work.boot_after and look.boot != work.boot_after:
        return "it has rebooted again"
    if look.verdict not in ("ok", "warn"):
        return f"the agent says {look.verdict}: {look.text}" if look.text else f"the agent says {look.verdict}"
    if look.verdict_boot and look.verdict_boot != look.boot:
        return "the agent's verdict is of an earlier boot"
    if look.age_seconds is None or look.age_seconds > now - work.since:
        return "the agent has not looked since"
    if look.worse:
        return look.worse[0]
    new = [finding for finding in look.bad if finding not in work.known]
    return f"new since the maintenance began: {new[0]}" if new else ""
