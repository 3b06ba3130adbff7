"""Reads the lines of a mount table without the FUSE mounts of users (for the reason see ``mount_table``). This module uses the
standard library only, because the program that removes the leftover files of jobs uses it too."""

from __future__ import annotations

import os
import re

LINE_MAX_BYTES = 64 << 10  # two paths and a source of 4096 bytes each, with every byte escaped, are 48 KiB
TABLE_MAX_BYTES = 128 << 20  # far more than 1000 such lines, the limit of fusermount (fuse.conf(5), mount_max)
_USER_ID = re.compile(rb"(?:^|,)user_id=(\d{1,10})(?:,|$)")
_USERS_FROM = 1000  # lower ids are of system services (UID_MIN in login.defs(5)), which may mount for all users


def read(fd: int) -> list[bytes] | None:
    """Return the lines of an open table, or None for a table that is larger than TABLE_MAX_BYTES. Raises OSError."""
    kept: list[bytes] = []
    rest, size = b"", 0
    while data := os.read(fd, 1 << 20):
        size += len(data)
        if size > TABLE_MAX_BYTES:
            return None
        parts = (rest + data).split(b"\n")
        rest = parts.pop()[: LINE_MAX_BYTES + 1]  # enough to find later that the line is too long
        kept += [line for line in parts if len(line) <= LINE_MAX_BYTES and not _is_a_users(line)]
    if rest and len(rest) <= LINE_MAX_BYTES and not _is_a_users(rest):
        kept.append(rest)
    return kept


def _is_a_users(line: bytes) -> bool:
    """Return whether a line of mountinfo or /proc/mounts describes a FUSE mount that a user made."""
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
