"""Makes a node what its document says: look, plan, change, look again. The agent reports drift by the same observe and plan.

For each declared setting the report gives three layers: persisted (a file for the next boot), effective (the running
kernel or hardware, read back), pending (what must happen before it is effective). Written is not done; effective is done.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from fairlead import settings as setting_list
from fairlead.config import Document
from fairlead.errors import ConfigError, ExitCode, HostError, next_step
from fairlead.host import change as changing
from fairlead.host.clock import boottime
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.host.tree_nvml import TreeNvml as TreeNvml  # noqa: PLC0414
from fairlead.model import tuned
from fairlead.model.change import AnyChange, Disruption, File, Layer, ModuleReload, Packages, Unit
from fairlead.model.facts import Missing, Node, StuckCall, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want
from fairlead.nccl import fleet
from fairlead.nccl.fleet import Port

Phase = Literal["all", "boot"]
APPLYING = "applying"  # below the run directory: while it is there and not expired, drift drains nothing
APPLYING_SECONDS = 600
PACKAGES_SECONDS = 3600  # with packages: what apt and dkms may take
LOCK = "apply.lock"  # beside it
LOCK_SECONDS = 90.0
OURS = "# Written by fairlead"  # how each file of a setting begins
LEFT = "/etc/fairlead/left-for-boot"  # a name a line, written by `apply --root IMAGE`
_NEXT = {
    "idle": "run it again when no job runs here",
    "drain": "drain the node in Slurm, wait for its jobs to end, then run `fairlead apply --drained` there",
    "reboot": "takes effect with a reboot; drain the node in Slurm first",
}


class Answer(Protocol):
    """What NVML said in one sweep, in nvml.json form, or why it did not; and the call that has not come back."""

    @property
    def raw(self) -> Mapping[str, Any] | Missing: ...
    @property
    def stuck(self) -> StuckCall | None: ...


class Nvml(Protocol):
    """The NVML worker, or a machine tree in its place."""

    def sweep(self) -> Answer: ...
    def set(self, pci: str, what: str, value: int | str) -> None: ...
    def release(self) -> None: ...
    def reattach(self) -> None: ...


class Step(Struct, frozen=True, kw_only=True):
    """One change of the plan. done None: not tried (a dry run, or the node is busy)."""

    target: str
    why: str
    layer: Layer
    disruption: Disruption
    diff: str
    done: bool | None = None
    message: str = ""


class Item(Struct, frozen=True, kw_only=True):
    """One declared setting after the run.

    state: same, changed, would_change, deferred (a busy node, or a reboot is needed), failed, refused (the node cannot take
    the wanted value), absent (the node has no hardware for it), not_applicable (the same, and the profile says so), unreadable,
    unmanaged, left (an image: for the boot of the node). persisted: yes, no, boot (applied
    again at every boot), unknown. effective: yes, no, unknown (an image). pending: "", idle, drain, reboot, boot.
    """

    setting: str
    state: str
    persisted: str = "unknown"
    effective: str = "unknown"
    pending: str = ""
    message: str = ""
    hint: str = ""
    steps: tuple[Step, ...] = ()


class ApplyReport(Struct, frozen=True, kw_only=True):
    """What one run found and did. ``changed`` counts changes made (in a dry run: that would be made)."""

    schema: int = 1
    node: str
    generation: int
    hash: str
    phase: Phase
    dry_run: bool
    busy: bool
    drained: bool = False
    changed: int
    failed: int
    items: tuple[Item, ...]
    ports: tuple[Port, ...] = ()  # NCCL's, for the comparison of all nodes of a class

    @property
    def exit_code(self) -> ExitCode:
        states = {i.state for i in self.items}
        if states & {"failed", "unreadable"}:
            return ExitCode.UNAVAILABLE
        if "refused" in states:
            return ExitCode.CONFIG
        if "deferred" in states and not self.dry_run:
            return ExitCode.TRY_AGAIN
        return ExitCode.WARN if "absent" in states else ExitCode.OK


def chosen(document: Document, phase: Phase, left: Collection[str] = ()) -> dict[str, tuple[Setting, Want]]:
    """The declared settings of this phase by name; ``boot`` are those that a reboot loses, and those that an image ``left``."""
    every = setting_list.load()
    names = [n for n in sorted(document.settings) if phase == "all" or every[n].volatile or n in left]
    return {n: (every[n], document.settings[n]) for n in names}


def left_by_image(root: Root) -> frozenset[str]:
    """The settings that the image this node was booted from left for its boot."""
    text = root.read_text(LEFT)
    return frozenset(text.split()) if isinstance(text, str) else frozenset()


def _note_left(root: Root, items: Sequence[Item], *, image: bool) -> None:
    """In an image: what is left for the boot. On a node: that nothing of it is left any more."""
    every = setting_list.load()
    names = [i.setting for i in items if i.state == "left" and not every[i.setting].volatile]
    done = {i.setting for i in items if i.state in {"same", "changed", "unmanaged"}}
    if image and (names or root.exists(LEFT)):
        changing.write_file(root.join(LEFT), "".join(f"{name}\n" for name in names).encode() if names else None)
    elif not image and (left := left_by_image(root)) and left <= done:
        changing.write_file(root.join(LEFT), None)


def apply(
    document: Document,
    root: Root,
    *,
    dry_run: bool = False,
    phase: Phase = "all",
    busy: bool = False,
    drained: bool = False,
    nvml: Nvml | None = None,
    undo: str = changing.UNDO,
    only: Sequence[str] = (),
) -> ApplyReport:
    """Look, plan, change, look again. busy: a job runs here, so only changes that no job can notice are made. drained: none
    runs and none can come, so changes are made too that must not meet a job (Disruption.DRAIN). only: these settings, () for all
    that are declared."""
    selected = {name: pair for name, pair in chosen(document, phase, left_by_image(root)).items() if not only or name in only}
    image = changing.is_image(root)
    look = _looker(document, root, selected, nvml)
    before = look()
    plan = partial(_plan, unsupported=document.unsupported, image=image)
    plans = {name: plan(setting, want, before) for name, (setting, want) in selected.items()}
    work = {name: _Work(p, busy=busy, drained=drained) for name, p in plans.items() if isinstance(p, tuple)}
    after = before
    if not dry_run and any(w.todo for w in work.values()):
        packages = any(isinstance(c, Packages) for w in work.values() for c in w.todo)
        with applying(root, document.agent.run_dir, seconds=PACKAGES_SECONDS if packages else APPLYING_SECONDS):
            make = partial(_make, root=root, nvml=nvml, undo=undo, run_dir=document.agent.run_dir)
            after = _make_all(work, make, look, lambda name, node: plan(*selected[name], node))
    items = []
    for name, (setting, want) in selected.items():
        planned = plans[name]
        if not isinstance(planned, tuple):
            items.append(msgspec.structs.replace(planned, setting=name))
            continue
        w = work[name]
        rest = plan(setting, want, after) if w.done else w.planned
        item = _item(name, setting, planned=w.planned, todo=w.todo, outcomes=w.done, rest=rest, dry_run=dry_run)
        item = _with_rival(item, after) if setting.tuned_too else item
        items.append(msgspec.structs.replace(item, effective="unknown") if image else item)
    if not dry_run:
        _note_left(root, items, image=image)
    orphans = _undeclared(document, root, undo) if phase == "all" and not only else ()
    for path, file in orphans:
        outcome = None if dry_run else changing.undo_one(path, file, root)
        items.append(_orphan(file, outcome))
    changed = sum(len(w.todo) if dry_run else sum(o.done for o in w.done) for w in work.values())
    changed += sum(i.state in {"changed", "would_change"} for i in items[len(selected) :])
    return ApplyReport(
        node=document.node,
        generation=document.generation,
        hash=document.hash,
        phase=phase,
        dry_run=dry_run,
        busy=busy,
        drained=drained,
        changed=changed,
        failed=sum(i.state in {"failed", "refused", "unreadable"} for i in items),
        items=tuple(items),
        ports=_ports(before, selected),
    )


class _Work:
    """One setting in a run: the changes ``planned``, those of them that may be made now, and what became of these."""

    def __init__(self, planned: tuple[AnyChange, ...], *, busy: bool, drained: bool) -> None:
        self._now = {"busy": busy, "drained": drained}
        self.planned = planned
        self.todo = tuple(c for c in planned if c.disruption.allowed(**self._now))
        self.done: tuple[changing.Outcome, ...] = ()

    @property
    def stopped_a_unit(self) -> bool:
        """A unit that wrote the same values (irqbalance) may have done so once more between the first look and its end."""
        return any(isinstance(o.change, Unit) and o.done and not o.skipped for o in self.done)

    def add(self, moved: tuple[AnyChange, ...], make: Callable[[Sequence[AnyChange]], tuple[changing.Outcome, ...]]) -> bool:
        """Make what a second look found, in place of earlier changes of the same targets. Returns whether there was anything."""
        again = tuple(c for c in moved if c.disruption.allowed(**self._now))
        targets = {changing.target(c) for c in again}
        self.planned = (*(c for c in self.planned if changing.target(c) not in targets), *again)
        self.todo = (*(c for c in self.todo if changing.target(c) not in targets), *again)
        self.done = (*(o for o in self.done if changing.target(o.change) not in targets), *make(again))
        return bool(again)


def _with_rival(item: Item, after: Node) -> Item:
    """The item with a hint where tuned may set its values back."""
    rival = tuned.second_writer(after.texts) if item.steps and not item.hint else ""
    return msgspec.structs.replace(item, hint=f"{rival} and may set it back: declare settings.tuned") if rival else item


def _make_all(
    work: Mapping[str, _Work],
    make: Callable[[Sequence[AnyChange]], tuple[changing.Outcome, ...]],
    look: Callable[[], Node],
    plan: Callable[[str, Node], tuple[AnyChange, ...] | Item],
) -> Node:
    """Make what may be made now, and look again. Returns the node after it."""
    for w in work.values():
        w.done = make(w.todo)
    after = look()
    for name, w in work.items():
        if w.stopped_a_unit and isinstance(moved := plan(name, after), tuple) and w.add(moved, make):
            after = look()
    return after


def _make(
    changes: Sequence[AnyChange], *, root: Root, nvml: Nvml | None, undo: str, run_dir: str
) -> tuple[changing.Outcome, ...]:
    """Make the changes of one setting. NVML is let go of while the driver's modules are loaded anew."""
    reload = nvml is not None and any(isinstance(c, ModuleReload) for c in changes)
    if nvml is not None and reload:
        nvml.release()
    outcomes = changing.execute(changes, root, nvml_set=nvml.set if nvml else None, undo=undo, run_dir=run_dir)
    if nvml is not None and reload:
        nvml.reattach()
    return outcomes


def _undeclared(document: Document, root: Root, undo: str) -> tuple[tuple[str, File], ...]:
    """Our files of settings that the document does not speak of any more, with their undo records: a file that says fairlead
    keeps it is kept or goes. One that somebody has made his own since is his; what is declared unmanaged is left alone."""
    found = []
    for path, change in changing.undo_changes(root, undo):
        if isinstance(change, File) and change.setting not in document.settings:
            now = root.read_text(change.path)
            if isinstance(now, str) and now.startswith(OURS):
                found.append((path, change))
    return tuple(found)


def _orphan(file: File, outcome: changing.Outcome | None) -> Item:
    words = f"{file.path}: nothing is declared any more; " + ("removed" if file.content is None else "as it was before fairlead")
    state = "would_change" if outcome is None else "changed" if outcome.done else "failed"
    message = words if outcome is None or outcome.done else outcome.message
    step = Step(
        target=file.path,
        why=words,
        layer=file.layer,
        disruption=file.disruption,
        diff="",
        done=None if outcome is None else outcome.done,
    )
    return Item(setting=file.setting, state=state, message=message, steps=(step,))


def _ports(node: Node, selected: Mapping[str, tuple[Setting, Want]]) -> tuple[Port, ...]:
    routes = node.texts.get("/proc/net/route")
    exclude = getattr(selected["nccl"][1], "exclude", ()) if "nccl" in selected else ()
    return fleet.ports(node, exclude=exclude, routes=routes if isinstance(routes, str) else "")


def _looker(
    document: Document, root: Root, selected: Mapping[str, tuple[Setting, Want]], nvml: Nvml | None
) -> Callable[[], Node]:
    wanted = [(s, want) for s, want in selected.values() if want.managed]
    reads = tuple(dict.fromkeys(path for s, want in wanted for path in s.wanted_reads(want)))
    ask = nvml if any(s.nvml for s, _ in wanted) else None

    def look() -> Node:
        answer = ask.sweep() if ask else None
        raw = answer.raw if answer else unreadable("NVML was not asked")
        stuck = answer.stuck if answer else None
        return gather(root, raw, reads=reads, unsupported=document.unsupported, stuck=stuck)

    return look


def _plan(
    setting: Setting, want: Want, node: Node, unsupported: Collection[str], *, image: bool = False
) -> tuple[AnyChange, ...] | Item:
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
        return setting.plan(want, observed)
    except HardwareAbsent as e:
        if e.fact in unsupported:
            return Item(setting="", state="not_applicable", message=f"{e.missing}; the profile allows that")
        return Item(setting="", state="absent", persisted="no", effective="no", message=e.missing, hint=e.hint)
    except ConfigError as e:
        return Item(setting="", state="refused", persisted="no", effective="no", message=str(e), hint=e.hint)


def _item(
    name: str,
    setting: Setting,
    *,
    planned: tuple[AnyChange, ...],
    todo: tuple[AnyChange, ...],
    outcomes: tuple[changing.Outcome, ...],
    rest: tuple[AnyChange, ...] | Item,
    dry_run: bool,
) -> Item:
    results = {id(o.change): o for o in outcomes}
    steps = tuple(
        Step(
            target=changing.target(c),
            why=c.why,
            layer=c.layer,
            disruption=c.disruption,
            diff=changing.diff(c),
            done=results[id(c)].done if id(c) in results else None,
            message=results[id(c)].message if id(c) in results else "",
        )
        for c in planned
    )
    if isinstance(rest, Item):
        return msgspec.structs.replace(rest, setting=name, state="failed", steps=steps)
    left = {c.layer for c in rest}
    pending = [c.disruption.value for c in rest if c.disruption is not Disruption.NONE]
    failures = [o for o in outcomes if not o.done and not o.skipped]
    waiting = [o for o in outcomes if not o.done and o.skipped]
    deferred = len(todo) < len(planned)
    ours = [c for c in rest if not any(changing.target(c) == changing.target(d) for d in planned if d not in todo)]
    offline = any(o.skipped and o.done for o in outcomes)
    if failures:
        state, message = "failed", _first([o.message for o in failures])
    elif waiting:
        state, message = "deferred", _first([o.message for o in waiting])
    elif not planned:
        state, message = "same", ""
    elif dry_run:
        state, message = ("would_change" if todo else "deferred"), _first([c.why for c in planned])
    elif ours and not offline:
        state, message = "failed", "did not take effect: " + _first([c.why for c in ours])
    elif deferred:
        state, message = "deferred", _first([c.why for c in planned if c not in todo])
    else:
        state, message = "changed", _first([c.why for c in planned])
    waits = max(pending, key=[d.value for d in Disruption].index, default="")
    return Item(
        setting=name,
        state=state,
        persisted="boot"
        if setting.volatile
        else ("no" if Layer.PERSISTED in left or any(isinstance(c, File | Packages) for c in rest) else "yes"),
        effective="no" if left & {Layer.EFFECTIVE, Layer.PENDING_REBOOT} else "yes",
        pending=waits,
        message=message,
        hint=next((o.hint for o in failures or waiting if o.hint), "") or (_NEXT.get(waits, "") if state == "deferred" else ""),
        steps=steps,
    )


def _first(words: Sequence[str]) -> str:
    """The first of them, and how many others there are."""
    different = len(set(words))
    return words[0] + (f" (and {different - 1} more)" if different > 1 else "")


@contextmanager
def applying(root: Root, run_dir: str, seconds: int = APPLYING_SECONDS) -> Iterator[None]:
    """While this runs, RUN_DIR/applying says so: ``1 PID EXPIRES`` (CLOCK_BOOTTIME seconds), for a run that is killed."""
    path = root.join(f"{run_dir}/{APPLYING}")
    try:
        lock = _alone(root.join(f"{run_dir}/{LOCK}"))
        try:
            expires = int(boottime()) + seconds
            changing.write_file(path, f"1\t{os.getpid()}\t{expires}\n".encode())
        except OSError:
            os.close(lock)
            raise
    except OSError as e:
        raise HostError(f"{e.filename or path}: {e.strerror}", hint=next_step(e) or "is this run by root?") from None
    try:
        yield
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass
        os.close(lock)


def _alone(path: str) -> int:
    """One run at a time: the boot unit's and that of `fairlead provision` write the same files. Gives the locked file, which
    the kernel unlocks with the end of the process. Raises HostError when another run does not end, OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    end = time.monotonic() + LOCK_SECONDS
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(lock)
                words = f"another fairlead apply runs here for more than {LOCK_SECONDS:.0f} s"
                raise HostError(words, hint="look at it, then try again") from None
            time.sleep(0.05)
