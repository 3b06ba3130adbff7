"""Removes files of settings that the document no longer declares, or restores them as they were before fairlead.

Packages that fairlead has put on hold for such a setting are no longer on hold then.
"""

from __future__ import annotations

from fairlead.apply.apply_report import AppliedStep, Item
from fairlead.config import Document
from fairlead.host import change as changing
from fairlead.host.root import Root
from fairlead.model.change import File, Packages

OURS = "Written by fairlead"  # the first line of each file of a setting has these words


def restore(document: Document, root: Root, undo: str, *, dry_run: bool) -> list[Item]:
    """Remove or restore each file of an undeclared setting, or change nothing in a dry run. Return an item for each of them."""
    items = []
    for path, change in _found(document, root, undo):
        items.append(_item(change, None if dry_run else changing.undo_one(path, change, root)))
    return items


def _found(document: Document, root: Root, undo: str) -> list[tuple[str, File | Packages]]:
    """Return (path of the undo record, change that restores) for each file of a setting that the document does not declare, and
    for the packages on hold of such a setting.

    If an admin has removed fairlead's header from a file, the file is the admin's own and is not changed. The file of a setting
    that is declared as not managed is not changed either.
    """
    found: list[tuple[str, File | Packages]] = []
    for path, change in changing.undo_changes(root, undo):
        if isinstance(change, Packages) and change.setting not in document.settings:
            found.append((path, change))
        if isinstance(change, File) and change.setting not in document.settings:
            now = root.read_text(change.path)
            others = change.lines is not None and change.content != change.before
            if others or (isinstance(now, str) and OURS in now.partition("\n")[0]):
                found.append((path, change))
    return found


def _item(change: File | Packages, outcome: changing.ChangeOutcome | None) -> Item:
    target = changing.target(change)
    removed = isinstance(change, File) and change.content is None
    words = f"{target}: nothing is declared any more; " + ("removed" if removed else "as it was before fairlead")
    state = "would_change" if outcome is None else "changed" if outcome.done else "failed"
    message = words if outcome is None or outcome.done else outcome.message
    step = AppliedStep(
        target=target,
        why=words,
        layer=change.layer,
        disruption=change.disruption,
        diff="",
        done=None if outcome is None else outcome.done,
    )
    return Item(setting=change.setting, state=state, message=message, steps=(step,))
