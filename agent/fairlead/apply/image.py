"""Reads and writes the list of settings that cannot be applied to an image, and are applied when a node boots from the image.

The list is a file in the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead import settings as setting_list
from fairlead.apply.apply_report import Item
from fairlead.host import change as changing
from fairlead.host.root import Root

LEFT = "/etc/fairlead/left-for-boot"  # one name per line, written by `apply --root IMAGE`


def left_by_image(root: Root) -> frozenset[str]:
    """Return the names of the settings that the image of this node has left for the boot."""
    text = root.read_text(LEFT)
    return frozenset(text.split()) if isinstance(text, str) else frozenset()


def note_left(root: Root, items: Sequence[Item], *, image: bool) -> None:
    """In an image, write the settings that are left for the boot. On a node, remove the list when all of them
    have been applied."""
    every = setting_list.load()
    names = [i.setting for i in items if i.state == "left" and not every[i.setting].volatile]
    done = {i.setting for i in items if i.state in {"same", "changed", "unmanaged"}}
    if image and (names or root.exists(LEFT)):
        changing.write_file(root.join(LEFT), "".join(f"{name}\n" for name in names).encode() if names else None)
    elif not image and (left := left_by_image(root)) and left <= done:
        changing.write_file(root.join(LEFT), None)
