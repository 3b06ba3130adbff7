"""Reads a mount table (/proc/PID/mountinfo, /proc/mounts) line by line, without the FUSE mounts of users.

A user who has fusermount(1) may mount a file system on a folder of his own. The user chooses its path, its source
(``fsname=``) and the end of its type (``subtype=``), each up to some thousand characters. Such a mount says nothing about the
machine, so its line is left out. fairlead recognises it by its type and by ``user_id=``, which the kernel writes
(fs/fuse/inode.c, fuse_show_options). A line that is too long is left out too. The other lines remain. The kernel escapes
blanks and line feeds inside a field (fs/proc_namespace.c, mangle).
"""

from __future__ import annotations

import os

from fairlead.host import mount_lines
from fairlead.host.root import ABSENT, Root
from fairlead.model.facts import Missing, unreadable


def lines(root: Root, path: str) -> list[bytes] | Missing | None:
    """Return the lines of the table at ``path`` of the node, or None when there is no such file."""
    try:
        fd = root.open(path)
    except OSError as e:
        return None if e.errno in ABSENT else unreadable(f"{path}: {e.strerror}")
    try:
        found = mount_lines.read(fd)
        return unreadable(f"{path}: larger than {mount_lines.TABLE_MAX_BYTES} bytes") if found is None else found
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    finally:
        os.close(fd)


def text(root: Root, path: str) -> str | Missing | None:
    """Return the result of ``lines()`` as one text."""
    found = lines(root, path)
    return b"".join(line + b"\n" for line in found).decode("utf-8", "replace") if isinstance(found, list) else found


def has_fuse(root: Root, path: str) -> bool:
    """Return whether the mount table at ``path`` has any FUSE mount, made by a user or not."""
    try:
        fd = root.open(path)
    except OSError:
        return False
    try:
        before = b""
        while data := os.read(fd, 1 << 20):
            if b" - fuse " in before + data or b" - fuse." in before + data:
                return True
            before = data[-16:]
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
