"""Makes one run of apply: it observes the node, plans each setting, executes the changes that may be made now, observes the node
again to verify them, and reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fairlead import settings as setting_list
from fairlead.apply import items, metrics_folder, undeclared
from fairlead.apply.apply_report import ApplyReport, Item, Phase
from fairlead.apply.image import left_by_image, note_left
from fairlead.apply.node_lock import APPLYING_SECONDS, applying
from fairlead.apply.refused_profile import refuse_another_gpu
from fairlead.apply.work import ApplyWork, plan
from fairlead.config import Document
from fairlead.host import change as changing
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.change import AnyChange, BootLoader, ModuleReload, Packages
from fairlead.model.facts import Missing, Node, StuckCall, unreadable
from fairlead.model.node_jobs import NodeJobs
from fairlead.model.setting import Setting, Want
from fairlead.nccl import compute_ports

PACKAGES_SECONDS = 3600  # RUN_DIR/applying expires after this time if packages change, because apt and dkms are slow


class Answer(Protocol):
    """Holds the result of one NVML sweep. ``raw``: the answers in nvml.json form, or why there are none. ``stuck``: the call that
    has not returned, or None."""

    @property
    def raw(self) -> Mapping[str, Any] | Missing: ...
    @property
    def stuck(self) -> StuckCall | None: ...


class NvmlCalls(Protocol):
    """Reads and sets NVML values, by the NVML worker or in a machine tree."""

    def sweep(self) -> Answer: ...
    def set(self, pci: str, what: str, value: int | str) -> None: ...
    def release(self) -> None: ...
    def reattach(self) -> None: ...


def apply(
    document: Document,
    root: Root,
    *,
    dry_run: bool = False,
    phase: Phase = "all",
    busy: bool = False,
    drained: bool = False,
    nvml: NvmlCalls | None = None,
    undo: str = changing.UNDO,
    only: Sequence[str] = (),
    jobs: NodeJobs | None = None,
) -> ApplyReport:
    """Apply the document to a node, or to an image of a node.

    busy: a job runs here, so only changes that no job can notice are made. drained: no job runs and none can start, so changes
    that need a drained node are made too (Disruption.DRAIN). only: the names of the settings to apply, or () for all declared
    settings. jobs: the jobs that still run while no other job can start; busy and drained are then both True, and changes that
    disturb none of these jobs are made too (Disruption.DRAINING). Raise WrongProfile if the document's hardware profile is for
    another GPU.
    """
    run = ApplyRun(document, root, phase=phase, only=only, nvml=nvml, undo=undo, jobs=jobs)
    before = run.observe()
    refuse_another_gpu(document, before)
    run.plan(before, busy=busy, drained=drained)
    after = before if dry_run else run.execute(before)
    done = run.verify(after, dry_run=dry_run)
    if not dry_run:
        note_left(root, done, image=run.image)
    if phase == "all" and not only:
        restored = undeclared.restore(document, root, undo, dry_run=dry_run)
    else:
        restored = []
    if root.is_live and phase == "all":
        done += metrics_folder.items(document, root)
    return ApplyReport(
        node=document.node,
        generation=document.generation,
        hash=document.hash,
        phase=phase,
        dry_run=dry_run,
        busy=busy,
        drained=drained,
        changed=run.changes(dry_run=dry_run) + sum(i.state in {"changed", "would_change"} for i in restored),
        failed=sum(i.state in {"failed", "refused", "unreadable"} for i in [*done, *restored]),
        items=(*done, *restored),
        ports=run.ports(before),
    )


def chosen(document: Document, phase: Phase, left: Collection[str] = ()) -> dict[str, tuple[Setting, Want]]:
    """Return the declared settings of this phase by name. In the phase ``boot`` these are the volatile settings, and the settings
    that the image has left for the boot (``left``)."""
    every = setting_list.load()
    names = [n for n in sorted(document.settings) if phase == "all" or every[n].volatile or n in left]
    return {n: (every[n], document.settings[n]) for n in names}


class ApplyRun:
    """Holds the settings of one run. Its methods are called in the order of their definition."""

    def __init__(
        self, document: Document, root: Root, *, phase: Phase, only: Sequence[str], nvml: NvmlCalls | None, undo: str,
        jobs: NodeJobs | None = None,
    ) -> None:  # fmt: skip
        declared = chosen(document, phase, left_by_image(root))
        self._settings = {name: pair for name, pair in declared.items() if not only or name in only}
        self._document, self._root, self._nvml, self._undo, self._jobs = document, root, nvml, undo, jobs
        self._without_plan: dict[str, Item] = {}
        self._work: dict[str, ApplyWork] = {}
        self.image = changing.is_image(root)

    def observe(self) -> Node:
        """Read the facts of the node that the settings need."""
        wanted = [(setting, want) for setting, want in self._settings.values() if want.managed]
        reads = tuple(dict.fromkeys(path for setting, want in wanted for path in setting.wanted_reads(want)))
        ask = self._nvml if any(setting.nvml for setting, _ in wanted) else None
        answer = ask.sweep() if ask else None
        raw = answer.raw if answer else unreadable("NVML was not asked")
        stuck = answer.stuck if answer else None
        return gather(self._root, raw, reads=reads, unsupported=self._document.unsupported, stuck=stuck)

    def plan(self, node: Node, *, busy: bool, drained: bool) -> None:
        """Plan each setting, and choose the changes that may be made now."""
        for name in self._settings:
            planned = self._plan(name, node)
            if isinstance(planned, Item):
                self._without_plan[name] = msgspec.structs.replace(planned, setting=name)
            else:
                self._work[name] = ApplyWork(planned, busy=busy, drained=drained)

    def execute(self, before: Node) -> Node:
        """Make the changes that may be made now. Return the node as it is after them.

        Raises HostError if another run of apply does not end.
        """
        todo = [change for work in self._work.values() for change in work.todo]
        if not todo:
            return before
        seconds = PACKAGES_SECONDS if any(isinstance(c, Packages) for c in todo) else APPLYING_SECONDS
        with applying(self._root, self._document.agent.run_dir, seconds=seconds):
            for work in self._work.values():
                work.done = self._make(work.todo)
            after = self.observe()
            packages = any(work.moved_packages for work in self._work.values())
            stopped = any(work.stopped_a_unit for work in self._work.values())
            for name, work in self._work.items():
                # tuned writes the values of before back when it is stopped, also those that this run has just set.
                rewritten = work.stopped_a_unit or (stopped and self._settings[name][0].tuned_too)
                moved = self._plan(name, after) if rewritten or packages else ()
                if isinstance(moved, Item) or not (rewritten or any(isinstance(c, BootLoader) for c in moved)):
                    continue
                if work.add(moved, self._make):
                    after = self.observe()
        return after

    def verify(self, after: Node, *, dry_run: bool) -> list[Item]:
        """Compare the node after the run with the declaration. Return an item for each setting, in the settings' order."""
        found = []
        for name, (setting, _) in self._settings.items():
            if name in self._without_plan:
                found.append(self._without_plan[name])
                continue
            work = self._work[name]
            rest = self._plan(name, after) if work.done else work.planned
            item = items.item(name, setting, planned=work.planned, todo=work.todo, outcomes=work.done, rest=rest, dry_run=dry_run)
            item = items.with_second_writer(item, after) if setting.tuned_too else item
            found.append(msgspec.structs.replace(item, effective="unknown") if self.image else item)
        return found

    def changes(self, *, dry_run: bool) -> int:
        """Return how many changes were made, or in a dry run how many would be made."""
        return sum(len(work.todo) if dry_run else sum(o.done for o in work.done) for work in self._work.values())

    def ports(self, node: Node) -> tuple[compute_ports.Port, ...]:
        """Return NCCL's ports on this node. `fairlead provision` compares them with the ports of the class's other nodes."""
        routes = node.texts.get("/proc/net/route")
        exclude = getattr(self._settings["nccl"][1], "exclude", ()) if "nccl" in self._settings else ()
        return compute_ports.ports(node, exclude=exclude, routes=routes if isinstance(routes, str) else "")

    def _plan(self, name: str, node: Node) -> tuple[AnyChange, ...] | Item:
        setting, want = self._settings[name]
        return plan(setting, want, node, self._document.unsupported, image=self.image, jobs=self._jobs)

    def _make(self, changes: Sequence[AnyChange]) -> tuple[changing.ChangeOutcome, ...]:
        """Make the changes of one setting. NVML is released while the driver's modules are unloaded and loaded again."""
        nvml = self._nvml
        reload = nvml is not None and any(isinstance(c, ModuleReload) for c in changes)
        if nvml is not None and reload:
            nvml.release()
        run_dir = self._document.agent.run_dir
        outcomes = changing.execute(changes, self._root, nvml_set=nvml.set if nvml else None, undo=self._undo, run_dir=run_dir)
        if nvml is not None and reload:
            nvml.reattach()
        return outcomes
