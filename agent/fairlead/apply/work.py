"""Plans the changes of one setting in a run of apply, and holds the planned changes, those that may be made now, and their
outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from fairlead.apply.apply_report import Item
from fairlead.errors import ConfigError
from fairlead.host import change as changing
from fairlead.model.change import AnyChange, Packages, Unit
from fairlead.model.facts import Missing, Node
from fairlead.model.node_jobs import NodeJobs
from fairlead.model.setting import HardwareAbsent, Setting, Want


def plan(
    setting: Setting, want: Want, node: Node, unsupported: Collection[str], *, image: bool = False, jobs: NodeJobs | None = None
) -> tuple[AnyChange, ...] | Item:
    """Plan the changes of one setting, or say in an item why there is no plan.

    unsupported: the facts that the hardware profile allows to be absent. image: ``node`` was read from an image, which is a
    folder with a system that does not run. jobs: the jobs on a node that is drained while they run, else None.
    """
    if not want.managed:
        return Item(setting="", state="unmanaged", message="declared as not managed")
    if image and (setting.volatile or setting.nvml or setting.live):
        kept = "boot" if setting.volatile else "no"
        return Item(setting="", state="left", persisted=kept, pending="boot", message="left for the boot of the node")
    if image and setting.as_wanted:
        node = msgspec.structs.replace(node, texts={**node.texts, **setting.as_wanted(want)})
    observed = setting.observe(node)
    if isinstance(observed, Missing):
        return Item(setting="", state="unreadable", message=f"cannot be read: {observed.detail}")
    try:
        if jobs is not None and setting.plan_among_jobs is not None:
            return setting.plan_among_jobs(want, observed, jobs)
        return setting.plan(want, observed)
    except HardwareAbsent as e:
        if e.fact in unsupported:
            return Item(setting="", state="not_applicable", message=f"{e.missing}; the profile allows that")
        return Item(setting="", state="absent", persisted="no", effective="no", message=e.missing, hint=e.hint)
    except ConfigError as e:
        return Item(setting="", state="refused", persisted="no", effective="no", message=str(e), hint=e.hint)


class ApplyWork:
    """Holds the changes of one setting. ``planned``: all changes. ``todo``: the changes that may be made now. ``done``: the
    outcomes of ``todo``."""

    def __init__(self, planned: tuple[AnyChange, ...], *, busy: bool, drained: bool) -> None:
        self._now = {"busy": busy, "drained": drained}
        self.planned = planned
        self.todo = tuple(c for c in planned if c.disruption.allowed(**self._now))
        self.done: tuple[changing.ChangeOutcome, ...] = ()

    @property
    def stopped_a_unit(self) -> bool:
        """Return whether a unit was changed. A unit that was stopped (irqbalance) may have written the same values before."""
        return any(isinstance(o.change, Unit) and o.done and not o.skipped for o in self.done)

    @property
    def moved_packages(self) -> bool:
        """Return whether packages were installed or removed. Their scripts may have changed files that other settings keep:
        NVIDIA's nvidia-kmod-common changes the kernel command line."""
        return any(isinstance(o.change, Packages) and o.done and not o.skipped for o in self.done)

    def add(
        self, moved: tuple[AnyChange, ...], make: Callable[[Sequence[AnyChange]], tuple[changing.ChangeOutcome, ...]]
    ) -> bool:
        """Make the changes of a second plan. They replace earlier changes of the same targets. Return whether there were any."""
        again = tuple(c for c in moved if c.disruption.allowed(**self._now))
        targets = {changing.target(c) for c in again}
        self.planned = (*(c for c in self.planned if changing.target(c) not in targets), *again)
        self.todo = (*(c for c in self.todo if changing.target(c) not in targets), *again)
        self.done = (*(o for o in self.done if changing.target(o.change) not in targets), *make(again))
        return bool(again)
