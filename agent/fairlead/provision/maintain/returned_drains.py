"""Finds drains that have come back after their run was done with the node: a killed slurmctld had not saved that they were
lifted.

slurmctld writes its state up to 5 s after a change (SAVE_MAX_WAIT, src/slurmctld/state_save.c). A run that is being driven
sees such a drain itself. After its end this module finds it. It compares the exact text, so nobody else's drain is mistaken for
one.
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
        """Return which drain is back, and the next step."""
        name, run = self.work.node, f"run {self.run}"
        back = f"{name}: the drain of {run} is back: slurmctld was killed before it had saved"
        if self.work.step is MaintenanceStep.TAKEN:
            return f"{back} what somebody did to it; check the node, then: scontrol update nodename={name} state=resume"
        return f"{back} that the drain was lifted; `fairlead maintain --resume {self.run}` lifts it again"


def returned_drains(journal: Journal, controller: Controller, listing: Listing, *, run: str = "") -> tuple[ReturnedDrain, ...]:
    """Return the drains of one run that has ended, or of all of them. Raises SlurmError."""
    drained = [name for name, node in listing.availability.items() if node.maintained]
    found = [
        ReturnedDrain(run=name, plan=plan, work=work) for name, plan, work in journal.done_with(drained) if run in ("", name)
    ]
    return tuple(
        f
        for f in found
        if f.work.step in {*LIFTED, MaintenanceStep.TAKEN} and controller.seen(f.work, listing).hand is DrainOwner.OURS
    )


def unknown_drains(journal: Journal | None, listing: Listing) -> dict[str, str]:
    """Return the reasons of maintenance in Slurm that no run of this journal has written, by Slurm name. None as journal:
    there is none. They come from another admin host, or from a journal that was lost."""
    found = {name: strip_suffixes(listing.nodes[name].reason) for name, node in listing.availability.items() if node.maintained}
    return {name: reason for name, reason in found.items() if journal is None or not journal.knows(name, reason)}


def lift(controller: Controller, found: Sequence[ReturnedDrain]) -> list[str]:
    """Lift the drains again that those runs had lifted; return lines that say so. There is one try for each. What somebody
    else had lifted is only reported. Raises SlurmError."""
    said = []
    for one in found:
        if one.work.step is MaintenanceStep.TAKEN:
            said.append(one.line)
            continue
        controller.lift(one.work, one.plan)
        left = controller.now(one.work)
        told = "resumed again" if left.hand is DrainOwner.FREE else f"not resumed: {left.who}"
        said.append(f"{one.work.node}: {told}, as run {one.run} had left it and slurmctld has forgotten")
    return said
