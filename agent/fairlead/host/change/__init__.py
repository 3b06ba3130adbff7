"""Executes changes of a node.

A file is replaced by rename(2). A kernel value or a register of config space is written and read back. If it does not read
back as written, the change has failed. Units are changed by systemctl.

Before fairlead changes a file, a value or a register for the first time, it saves the old state below ``UNDO``. So a run that
is killed at any point leaves either the old or the new state, and the old state can be restored.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from msgspec import Struct

from fairlead.errors import FairleadError, HostError, next_step
from fairlead.host.atomic_file import write_file
from fairlead.host.change import apt_transaction, dnf_transaction, gpus, nvml_release, reload
from fairlead.host.change.change_text import diff, target, verbs
from fairlead.host.change.gpus import NvmlSet
from fairlead.host.change.package_command import LaterError
from fairlead.host.change.tools import commands, enable_in_image, is_image, made_anew, systemctl
from fairlead.host.change.undo import UNDO, present_text, remember, undo_changes
from fairlead.host.change.values import RefusedError, current_choice, write_bits, write_kernel_value
from fairlead.host.root import Root
from fairlead.model import dnf_hold
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

# These changes have no undo record. Their earlier state is in a file that has a record, or there was none.
NOT_UNDONE = Unit | Module | BootLoader | Reboot | ModuleReload


class ChangeOutcome(Struct, frozen=True, kw_only=True):
    """Holds the result of one change.

    ``message``: one line with what was done, or why nothing was done. ``hint``: what a person can do about a failure.
    ``skipped``: if ``done``, this system needs no (further) step, because it does not run. If not ``done``, the change waits.
    """

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
    """Execute the changes in order, and return their outcomes. A failed change raises nothing and does not stop the others.

    There are two exceptions. If a kernel value or an NVML value was refused, the later files of its setting are not written, so
    that the refused value is not persisted. If a change of packages failed, the later changes of its setting are skipped.
    """
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
            if not isinstance(change, NOT_UNDONE) and not (isinstance(change, Packages) and not change.hold):
                record = remember(change, root, undo)
            outcomes.append(_make(change, root, nvml_set, run_dir))
        except (OSError, FairleadError) as e:
            if record and isinstance(e, RefusedError):
                os.unlink(record)  # nothing was changed, so there is nothing to undo
            words = _said(e, change, root) if isinstance(e, OSError) else str(e)
            later = isinstance(e, LaterError | reload.BusyError)
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


def _said(error: OSError, change: AnyChange, root: Root) -> str:
    """Return the system's words for an error, with the file if it is not the target of the change itself."""
    words, file = error.strerror or str(error), error.filename
    if not isinstance(file, str) or (isinstance(change, File | KernelValue) and os.path.dirname(file) == _folder(change, root)):
        return words
    return f"{file}: {words}"


def _folder(change: File | KernelValue, root: Root) -> str:
    return os.path.dirname(root.join(change.path))


def _make(change: AnyChange, root: Root, nvml_set: NvmlSet | None, run_dir: str = nvml_release.RUN_DIR) -> ChangeOutcome:
    match change:
        case File():
            path = root.join(change.path)
            if change.lines is not None and root.is_live:
                path = os.path.realpath(path)  # others write to the file that their link names
            write_file(path, _content(change, root), change.mode)
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
            return _change_packages(change, root)
        case ModuleReload():
            if not root.is_live:
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: not a running system")
            return ChangeOutcome(change=change, done=True, message=reload.reload(change, root, run_dir))
        case Module() | BootLoader():
            if not root.is_live:
                return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: not a running system")
            made_anew(change)
            return ChangeOutcome(change=change, done=True, message=f"{target(change)}: done")


def _change_packages(change: Packages, root: Root) -> ChangeOutcome:
    """Change the packages by apt or dnf, as their format is. A tree without this program is left as it is."""
    by_dnf = any(p.format == "rpm" for p in change.allowed)
    program = "dnf" if by_dnf else "apt"
    if not (dnf_transaction.has_dnf(root) if by_dnf else apt_transaction.has_apt(root)):
        if root.is_live:
            raise HostError(f"no {program} on this node", hint="only apt and dnf can be driven: docs/how-to/driver.md")
        return ChangeOutcome(change=change, done=True, skipped=True, message=f"{target(change)}: no {program} in this tree")
    done = dnf_transaction.install(change, root) if by_dnf else apt_transaction.install(change, root)
    return ChangeOutcome(change=change, done=True, message=f"{target(change)}: {done}")


def _content(change: File, root: Root) -> bytes | None:
    """Return what the file is to have. Of a file that others write too, their lines are read now, as they may have changed."""
    text = change.content if change.lines is None else dnf_hold.with_lines(present_text(change.path, root), change.lines)
    return None if text is None else text.encode("utf-8", "surrogateescape")


def undo_all(
    root: Root, *, nvml_set: NvmlSet | None = None, undo: str = UNDO, busy: bool = False, drained: bool = False
) -> tuple[ChangeOutcome, ...]:
    """Restore the state before fairlead, from the undo records in the reverse order of their names.

    ``busy``: a job runs on the node. ``drained``: the node is drained. A state that may not be restored now keeps its record,
    and its outcome is ``skipped``. The record of a restored state is removed.
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
    """Execute one change of ``undo_changes``, and remove its undo record ``path`` if the change succeeds."""
    try:
        with gpus.setting(nvml_set, root, nvml_release.RUN_DIR) as nvml:
            outcome = _make(change, root, nvml)
    except (OSError, FairleadError) as e:
        outcome = ChangeOutcome(change=change, done=False, message=f"{target(change)}: {e}")
    if outcome.done:
        os.unlink(path)
    return outcome
