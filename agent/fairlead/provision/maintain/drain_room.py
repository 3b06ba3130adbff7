"""Decides whether the limits of a maintenance run allow the drain of a node, before the drain and again after it.

The decision uses a listing of all nodes, and the reasons that earlier runs have written to nodes. "Our drain" is the drain that
this run has set on a node.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from statistics import median

from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.begin_limits import BeginChoice, BrokenFloor, Budget, bound, choose, in_work, overshoot
from fairlead.provision.maintain.controller import Controller, Listing
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, Move, NodeWork

EXPECTED_SECONDS = {False: 60.0, True: 900.0}
#: No node begins for this long after a drain was undone. The time is random between these two, because otherwise two runs
#: would collide again and again.
AGAIN_SECONDS = (2.0, 8.0)


class DrainRoom:
    """Applies the limits of a run. ``earlier_reasons``: by Slurm name, the reasons that ended runs of the same journal have
    written to a node. ``budgets``: by Slurm name, the drain budget of a node's document."""

    def __init__(
        self, controller: Controller, budgets: Mapping[str, Budget], earlier_reasons: Mapping[str, frozenset[str]]
    ) -> None:
        self._controller = controller
        self._budgets = budgets
        self._earlier_reasons = earlier_reasons
        self._contested: dict[str, float] = {}
        self._again_at = 0.0

    def choice(self, works: Sequence[NodeWork], plan: MaintenancePlan, listing: Listing, now: float) -> BeginChoice:
        """Return which nodes may begin now."""
        if time.monotonic() < self._again_at:
            return BeginChoice(waits_because="another maintenance run takes nodes at the same time")
        took = [w.ended - w.idle for w in works if w.step is MaintenanceStep.DONE and 0 < w.idle <= w.ended]
        expected = median(took) if took else EXPECTED_SECONDS[plan.reboot]
        return choose(works, listing.availability, plan, now, budgets=self._budgets, expected_seconds=expected)

    def none(self, work: NodeWork, works: Sequence[NodeWork], plan: MaintenancePlan, listing: Listing) -> str:
        """Return why a chosen node that is not drained yet may not be drained now, or "" if it may. A node that has lost our
        drain may always be drained, because it may be half changed."""
        gone = {w.slurm for w in works if in_work(w) and w.slurm != work.slurm}
        budget = self._budgets.get(work.slurm, Budget())
        return "" if work.drained else bound(listing.availability[work.slurm], listing.availability, gone, plan, budget)

    def refusal(self, work: NodeWork, listing: Listing) -> Move | None:
        """Return the move ``skipped`` and its reason for a queued node that must not be touched, or None if it may be drained."""
        if work.slurm not in listing.nodes:
            return Move(MaintenanceStep.SKIPPED, "not touched: slurmctld has no such node in any partition")
        move = maintenance_steps.before_drain(
            work, self._controller.seen(work, listing), adopt=bool(self.replaceable_reason(work, listing))
        )
        # The other moves say that the node already has our drain. slurmctld may have forgotten that this drain was undone, or
        # the listing is older than that. The node may be drained then.
        return move if move is not None and move.step is MaintenanceStep.SKIPPED else None

    def replaceable_reason(self, work: NodeWork, listing: Listing) -> str:
        """Return the reason of an earlier maintenance run that the node has and that we may replace, or "" if it has none."""
        texts = self._earlier_reasons.get(work.slurm, frozenset()) | frozenset({work.replaced_reason} - {""})
        return self._controller.left_by(listing.nodes[work.slurm], texts)

    def below(self, work: NodeWork, plan: MaintenancePlan, listing: Listing) -> BrokenFloor | None:
        """Return the floor that our drain has broken together with other drains, or None if no floor is broken. ``listing`` was
        read after our drain."""
        since = self._contested.setdefault(work.slurm, now := time.monotonic())
        over = overshoot(work.slurm, listing.availability, plan, waited=now - since)
        if over is None or not over.wait:
            del self._contested[work.slurm]
        return over

    def undone(self) -> None:
        """Record that a drain of ours was undone."""
        self._again_at = time.monotonic() + random.uniform(*AGAIN_SECONDS)
