"""Removes files of settings that the document no longer declares, or restores them as they were before fairlead."""

from __future__ import annotations

from fairlead.apply.report import AppliedStep, Item
from fairlead.config import Document
from fairlead.host import change as changing
from fairlead.host.root import Root
from fairlead.model.change import File

OURS = "Written by fairlead"  # the first line of each file of a setting has these words


def restore(document: Document, root: Root, undo: str, *, dry_run: bool) -> list[Item]:
    """Remove or restore each file of an undeclared setting, or change nothing in a dry run. Return an item for each file."""
    items = []
    for path, file in _found(document, root, undo):
        items.append(_item(file, None if dry_run else changing.undo_one(path, file, root)))
    return items


def _found(document: Document, root: Root, undo: str) -> list[tuple[str, File]]:
    """Return (path of the undo record, file to restore) for each file of a setting that the document does not declare.

    If an admin has removed fairlead's header from a file, the file is the admin's own and is not changed. The file of a setting
    that is declared as not managed is not changed either.
    """
    found = []
    for path, change in changing.undo_changes(root, undo):
        if isinstance(change, File) and change.setting not in document.settings:
            now = root.read_text(change.path)
            others = change.lines is not None and change.content != change.before
            if others or (isinstance(now, str) and OURS in now.partition("\n")[0]):
                found.append((path, change))
    return found


def _item(file: File, outcome: changing.ChangeOutcome | None) -> Item:
    words = f"{file.path}: nothing is declared any more; " + ("removed" if file.content is None else "as it was before fairlead")
    state = "would_change" if outcome is None else "changed" if outcome.done else "failed"
    message = words if outcome is None or outcome.done else outcome.message
    step = AppliedStep(
        target=file.path,
        why=words,
        layer=file.layer,
        disruption=file.disruption,
        diff="",
        done=None if outcome is None else outcome.done,
    )
    return Item(setting=file.setting, state=state, message=message, steps=(step,))
