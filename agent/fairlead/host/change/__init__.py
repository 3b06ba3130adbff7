"""Makes Changes: files by temp and rename, kernel values and config space by write and read-back, units by systemctl.

Before anything is changed for the first time, what was there is noted below ``UNDO``, so a run that is killed at any point
leaves either the old or the new state and always a way back. Written is not done: a value that does not read back as
wanted is a failure, said in one line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from msgspec import Struct

from fairlead.errors import FairleadError, HostError, next_step
from fairlead.host.atomic_file import write_file
from fairlead.host.change import apt_transaction, gpus, nvml_release, reload
from fairlead.host.change.change_text import diff, target, verbs
from fairlead.host.change.gpus import NvmlSet
from fairlead.host.change.tools import commands, enable_in_image, is_image, made_anew, systemctl
from fairlead.host.change.undo import UNDO, remember, undo_changes
from fairlead.host.change.values import RefusedError, current_choice, write_bits, write_kernel_value
from fairlead.host.root import Root
from fairlead.model.change import (
    AnyChange,
    BootLoader,
    Disruption,
    File,
    KernelValue,
    Layer,
    Module,
    ModuleReload,
    Nvml,
    Packages,
    PciBits,
    Reboot,
    Unit,
)

__all__ = [
    "UNDO",
    "NvmlSet",
    "Outcome",
    "current_choice",
    "diff",
    "execute",
    "is_image",
    "systemctl",
    "target",
    "undo_all",
    "undo_changes",
    "undo_one",
    "write_file",
]

# What was there before is in a file of theirs, was nothing, or (packages) is the former set, declared again.
NOT_UNDONE = Unit | Module | BootLoader | Reboot | Packages | ModuleReload


class ChangeOutcome(Struct, frozen=True, kw_only=True):
    """What became of one change. ``message`` is one line: what was done, or why it was not; ``hint``: what to do about that.
    ``skipped``: not for here (done), or not now (not done)."""

    change: AnyChange
    done: bool
    message: str
    skipped: bool = False
    hint: str = ""


def execute(
    changes: Iterable[AnyChange],
    root: Root,
    *,
    nvml_set: NvmlSet | None = None,
    undo: str = UNDO,
    run_dir: str = nvml_release.RUN_DIR,
) -> tuple[ChangeOutcome, ...]:
    """Make the changes in order. One that fails does not stop the others, but that what the kernel refused is not persisted:
    no file of the same setting is written after it, and that nothing follows packages that did not move. Nothing is raised for
    a failure."""
    with gpus.setting(nvml_set, root, run_dir) as nvml:
        return _execute(changes, root, nvml, undo, run_dir)


def _execute(
    changes: Iterable[AnyChange], root: Root, nvml_set: NvmlSet | None, undo: str, run_dir: str
) -> tuple[ChangeOutcome, ...]:
    outcomes: list[ChangeOutcome] = []
    refused: set[str] = set()
    unmoved: set[str] = set()
    for change in changes:
        if change.setting in unmoved:
            words = f"{target(change)}: waits for the packages"
            outcomes.append(ChangeOutcome(change=change, done=False, skipped=True, message=words))
            continue
        if change.setting in refused and change.layer is Layer.PERSISTED:
            words = f"{target(change)}: not written, since the running system refused it"
            outcomes.append(ChangeOutcome(change=change, done=False, message=words))
            continue
        record = ""
        try:
            if not isinstance(change, NOT_UNDONE):
                record = remember(change, root, undo)
            outcomes.append(_make(change, root, nvml_set, run_dir))
        except (OSError, FairleadError) as e:
            if record and isinstance(e, RefusedError):
                os.unlink(record)  # nothing was changed, so there is nothing to undo, and a later reset takes nothing away
            words = f"{e.strerror or e}" if isinstance(e, OSError) else str(e)
            later = isinstance(e, apt_transaction.LaterError | reload.BusyError)
            if isinstance(change, Packages):
                unmoved.add(change.setting)
            if isinstance(change, KernelValue | Nvml):
                refused.add(change.setting)
                if isinstance(change, KernelValue) and isinstance(e, OSError) and e.errno == errno.EINVAL:
                    words = f"the kernel refuses {change.value!r} ({words})"
            hint = e.hint if isinstance(e, FairleadError) else next_step(e)
            message = f"{target(change)}: {words}"
            outcomes.append(ChangeOutcome(change=change, done=False, skipped=later, message=message, hint=hint))
    return tuple(outcomes)


def _make(change: AnyChange, root: Root, nvml_set: NvmlSet | None, run_dir: str = nvml_release.RUN_DIR) -> ChangeOutcome:
    match change:
        case File():
            write_file(root.join(change.path), _bytes(change.content), change.mode)
            return ChangeOutcome(
                change=change, done=True, message=f"{change.path}: {'removed' if change.content is None else 'written'}"
            )
        case KernelValue():
            write_kernel_value(change, root)
            return ChangeOutcome(change=change, done=True, message=f"{change.path}: {change.before or '?'} -> {change.value}")
        case PciBits():
            word = write_bits(change, root)
            return ChangeOutcome(change=change, done=True, message=f"{target(change)}: {change.before:#06x} -> {word:#06x}")
        case Nvml():
            if nvml_set is None:
                return ChangeOutcome(change=change, done=False, message=f"{target(change)}: NVML is not at hand")
            nvml_set(change.pci, change.what, change.value)
            return ChangeOutcome(change=change, done=True, message=f"{target(change)}: {change.before} -> {change.value}")
        case Unit():
            if is_image(root) and change.enabled is not None:
                enable_in_image(change, root)
                words = f"{change.name}: {'enabled' if change.enabled else 'disabled'} in the image"
                return ChangeOutcome(change=change, done=True, skipped=True, message=words)
            if not root.is_live:
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{change.name}: not a running system")
            for argv in commands(change):
                systemctl(argv)
            return ChangeOutcome(change=change, done=True, message=f"{change.name}: {', '.join(verbs(change))}")
        case Reboot():
            return ChangeOutcome(change=change, done=False, skipped=True, message=f"{change.what}: waits for a reboot")
        case Packages():
            if not apt_transaction.has_apt(root):
                if root.is_live:
                    raise HostError("no apt on this node", hint="only apt can be driven: docs/how-to/driver.md")
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: no apt in this tree")
            return ChangeOutcome(change=change, done=True, message=f"{target(change)}: {apt_transaction.install(change, root)}")
        case ModuleReload():
            if not root.is_live:
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: not a running system")
            return ChangeOutcome(change=change, done=True, message=reload.reload(change, root, run_dir))
        case Module() | BootLoader():
            if not root.is_live:
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: not a running system")
            made_anew(change)
            return ChangeOutcome(change=change, done=True, message=f"{target(change)}: done")


def _bytes(content: str | None) -> bytes | None:
    return None if content is None else content.encode("utf-8", "surrogateescape")


def undo_all(
    root: Root, *, nvml_set: NvmlSet | None = None, undo: str = UNDO, busy: bool = False, drained: bool = False
) -> tuple[ChangeOutcome, ...]:
    """Bring back the state before fairlead, last change first; the record of what came back is removed.

    busy, drained: as for apply; what may not be changed now stays, with its record, and its outcome is ``skipped``.
    """
    outcomes: list[ChangeOutcome] = []
    for path, change in reversed(undo_changes(root, undo)):
        if not change.disruption.allowed(busy=busy, drained=drained):
            words = f"{target(change)}: waits for {'a drained' if change.disruption is Disruption.DRAIN else 'an idle'} node"
            outcomes.append(ChangeOutcome(change=change, done=False, skipped=True, message=words))
            continue
        outcomes.append(undo_one(path, change, root, nvml_set))
    return tuple(outcomes)


def undo_one(path: str, change: AnyChange, root: Root, nvml_set: NvmlSet | None = None) -> ChangeOutcome:
    """Bring back one state that ``undo_changes`` gave with its record's ``path``; the record goes once that is done."""
    try:
        with gpus.setting(nvml_set, root, nvml_release.RUN_DIR) as nvml:
            outcome = _make(change, root, nvml)
    except (OSError, FairleadError) as e:
        outcome = ChangeOutcome(change=change, done=False, message=f"{target(change)}: {e}")
    if outcome.done:
        os.unlink(path)
    return outcome
