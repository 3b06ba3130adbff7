"""A mount table (/proc/PID/mountinfo, /proc/mounts) line by line, without the FUSE mounts of users.

Whoever has fusermount(1) may mount a file system of their own on a folder of theirs, and chooses its path, its source
(``fsname=``) and the end of its type (``subtype=``), each up to some thousand characters. Such a mount says nothing about the
machine, so its line is left out: by its type and by ``user_id=``, which the kernel writes (fs/fuse/inode.c, fuse_show_options).
A line that is too long is left out too, and takes no other with it. Blanks and line feeds inside a field are escaped by the
kernel (fs/proc_namespace.c, mangle).
"""

from __future__ import annotations

import os
import re

from fairlead.host.root import ABSENT, Root
from fairlead.model.facts import Missing, unreadable

LINE_MAX_BYTES = 64 << 10  # two paths and a source of 4096 bytes each, all of them escaped, are 48 KiB
_TABLE_MAX_BYTES = 128 << 20  # far above 1000 such lines, which is what fusermount allows (fuse.conf(5), mount_max)
_USER_ID = re.compile(rb"(?:^|,)user_id=(\d{1,10})(?:,|$)")
_USERS_FROM = 1000  # below are accounts of the system (UID_MIN in login.defs(5)): a service may mount for all


def lines(root: Root, path: str) -> list[bytes] | Missing | None:
    """The lines of the table at ``path`` of the node; None when there is no such file."""
    try:
        fd = root.open(path)
    except OSError as e:
        return None if e.errno in ABSENT else unreadable(f"{path}: {e.strerror}")
    try:
        return _lines(fd, path)
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    finally:
        os.close(fd)


def _lines(fd: int, path: str) -> list[bytes] | Missing:
    kept: list[bytes] = []
    rest, size = b"", 0
    while data := os.read(fd, 1 << 20):
        size += len(data)
        if size > _TABLE_MAX_BYTES:
            return unreadable(f"{path}: larger than {_TABLE_MAX_BYTES} bytes")
        parts = (rest + data).split(b"\n")
        rest = parts.pop()[: LINE_MAX_BYTES + 1]  # as much as shows that it is too long
        kept += [line for line in parts if len(line) <= LINE_MAX_BYTES and not _is_a_users(line)]
    if rest and len(rest) <= LINE_MAX_BYTES and not _is_a_users(rest):
        kept.append(rest)
    return kept


def _is_a_users(line: bytes) -> bool:
    """Whether a line of either layout is a FUSE mount that a user made."""
    if b" fuse" not in line:
        return False
    _, separator, after = line.partition(b" - ")
    kind, options = (after.split(b" ")[at] if after.count(b" ") > 1 else b"" for at in (0, 2))
    if not separator:
        kind, options = (line.split(b" ")[at] if line.count(b" ") > 2 else b"" for at in (2, 3))
    if kind != b"fuse" and not kind.startswith(b"fuse."):
        return False
    owner = _USER_ID.search(options)
    return owner is None or int(owner[1]) >= _USERS_FROM


def text(root: Root, path: str) -> str | Missing | None:
    """The same as one text."""
    found = lines(root, path)
    return b"".join(line + b"\n" for line in found).decode("utf-8", "replace") if isinstance(found, list) else found


def has_fuse(root: Root, path: str) -> bool:
    """Whether any FUSE mount is in that table, a user's or not."""
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
