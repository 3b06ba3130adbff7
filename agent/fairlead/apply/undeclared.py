"""Removes files of settings that the document no longer declares, or makes them again as they were before fairlead."""

from __future__ import annotations

from fairlead.apply.report import AppliedStep, Item
from fairlead.config import Document
from fairlead.host import change as changing
from fairlead.host.root import Root
from fairlead.model.change import File

OURS = "# Written by fairlead"  # how each file of a setting begins


def restore(document: Document, root: Root, undo: str, *, dry_run: bool) -> list[Item]:
    """Remove or restore each of these files; in a dry run say what would be done. Returns an item for each file."""
    items = []
    for path, file in _found(document, root, undo):
        items.append(_item(file, None if dry_run else changing.undo_one(path, file, root)))
    return items


def _found(document: Document, root: Root, undo: str) -> list[tuple[str, File]]:
    """The undo records of settings that the document does not declare, with their files.

    A file from which an admin has removed the header is the admin's own and is left alone. So is the file of a setting that is
    declared as not managed.
    """
    found = []
    for path, change in changing.undo_changes(root, undo):
        if isinstance(change, File) and change.setting not in document.settings:
            now = root.read_text(change.path)
            if isinstance(now, str) and now.startswith(OURS):
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
