"""Finds drains that are back after their run has ended, because slurmctld was killed before it had saved that they were lifted.

slurmctld saves its state up to 5 s after a change (SAVE_MAX_WAIT, src/slurmctld/state_save.c). A run that is being driven lifts
such a drain again itself. After the end of the run, this module finds the drain. It compares the exact reason, so it never
mistakes another person's drain for a drain of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fairlead.policy.ownership import strip_suffixes
from fairlead.provision.maintain.controller import Controller, Listing
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_steps import LIFTED, DrainOwner, MaintenancePlan, MaintenanceStep, NodeWork


class ReturnedDrain(Struct, frozen=True, kw_only=True):
    """Describes a node whose drain is back. run: the run that had made the drain. plan: that run's plan."""

    run: str
    plan: MaintenancePlan
    work: NodeWork

    @property
    def line(self) -> str:
        """Return a line that says which drain is back and what to do next."""
        name, run = self.work.node, f"run {self.run}"
        back = f"{name}: the drain of {run} is back: slurmctld was killed before it had saved"
        if self.work.step is MaintenanceStep.TAKEN:
            return f"{back} what somebody did to it; check the node, then: scontrol update nodename={name} state=resume"
        return f"{back} that the drain was lifted; `fairlead maintain --resume {self.run}` lifts it again"


def returned_drains(journal: Journal, controller: Controller, listing: Listing, *, run: str = "") -> tuple[ReturnedDrain, ...]:
    """Return the drains that are back, of one ended run, or of all ended runs if ``run`` is "". Raises SlurmError."""
    drained = [name for name, node in listing.availability.items() if node.maintained]
    found = [
        ReturnedDrain(run=name, plan=plan, work=work) for name, plan, work in journal.done_with(drained) if run in ("", name)
    ]
    return tuple(
        f
        for f in found
        if f.work.step in {*LIFTED, MaintenanceStep.TAKEN} and controller.owner(f.work, listing) is DrainOwner.OURS
    )


def unknown_drains(journal: Journal | None, listing: Listing) -> dict[str, str]:
    """Return by Slurm name the reasons of maintenance runs that no run of this journal has written. Such a reason comes from
    another admin host, or from a journal that was lost. ``journal``: None if this host has no journal."""
    found = {name: strip_suffixes(listing.nodes[name].reason) for name, node in listing.availability.items() if node.maintained}
    return {name: reason for name, reason in found.items() if journal is None or not journal.knows(name, reason)}


def lift(controller: Controller, found: Sequence[ReturnedDrain]) -> list[str]:
    """Lift again the drains that their own runs had lifted, with one try for each. Return a line for each drain. A drain that
    somebody else had lifted is only reported. Raises SlurmError."""
    said = []
    for one in found:
        if one.work.step is MaintenanceStep.TAKEN:
            said.append(one.line)
            continue
        move = controller.lift(one.work, one.plan)
        left = controller.now(one.work)
        told = "resumed again" if left.hand is DrainOwner.FREE else f"not resumed: {(move and move.why) or left.who}"
        said.append(f"{one.work.node}: {told}, as run {one.run} had left it and slurmctld has forgotten")
    return said
