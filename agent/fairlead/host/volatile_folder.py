"""Finds out whether a folder is in memory, so that a reboot loses its files. Nodes that boot an image have such a root.

The kernel's file systems in memory are tmpfs, ramfs and rootfs (the initramfs of which the node never left; filesystems/tmpfs.rst
and filesystems/ramfs-rootfs-initramfs.rst). An overlay is in memory if its upper folder is (filesystems/overlayfs.rst). The upper
folder of an overlay may be hidden from the node. Then nothing is known, and the folder does not count as in memory.
"""

from __future__ import annotations

import os
import re

from fairlead.host import mount_table
from fairlead.host.root import Root

IN_MEMORY = ("tmpfs", "ramfs", "rootfs")
_OCTAL = re.compile(rb"\\([0-7]{3})")
_UPPER = re.compile(r"(?:^|,)upperdir=([^,]+)")


def lost_at_reboot(root: Root, folder: str) -> str:
    """Return the file system in memory that has this folder, such as "tmpfs", or "" if it is on none or that is not known."""
    found = mount_table.lines(root, "/proc/self/mountinfo")
    return kind_in_memory(found, os.path.realpath(folder)) if isinstance(found, list) else ""


def kind_in_memory(lines: list[bytes], folder: str, depth: int = 2) -> str:
    """Return what ``lost_at_reboot`` returns, from the lines of a mountinfo (proc_pid_mountinfo(5)). depth: how many overlays on
    overlays are followed."""
    best, kind, options = "", "", ""
    for line in lines:
        before, _, after = line.partition(b" - ")
        fields, rest = before.split(b" "), after.split(b" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = _OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), fields[4]).decode("utf-8", "surrogateescape")
        if len(point) >= len(best) and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            best, kind, options = point, rest[0].decode("ascii", "replace"), rest[2].decode("utf-8", "surrogateescape")
    if kind == "overlay" and depth and (upper := _UPPER.search(options)):
        below = kind_in_memory(lines, upper[1], depth - 1) if os.path.isdir(upper[1]) else ""
        return f"overlay on {below}" if below else ""
    return kind if kind in IN_MEMORY else ""
