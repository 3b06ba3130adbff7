"""Finds out which user ids a user has besides his own: the ranges in /etc/subuid (subuid(5)), which newuidmap(1) gives to the
user's containers.

/etc/subuid and /etc/passwd are read once, with a size limit, and only if root alone can change them. A user's name is looked
up in /etc/passwd only, because a directory service may not answer. So for a user who is not in /etc/passwd, /etc/subuid must
have the number of the user.

If a file cannot be read, nobody has such ids. Some ids belong to nobody even if they are in a range: ids below 65536, ids in
the ranges of two users, and the user ids in /etc/passwd.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

SUBUID, PASSWD = "/etc/subuid", "/etc/passwd"
FILE_MAX_BYTES = 8 << 20  # this is room for 200,000 lines
FIRST, LAST = 1 << 16, 0xFFFFFFFE


class Range(NamedTuple):
    owner: int
    first: int
    last: int


class SubUids:
    """Holds the ranges that the files had when this object was made."""

    def __init__(self, subuid: str = SUBUID, passwd: str = PASSWD) -> None:
        accounts: dict[str, int] = {}
        for line in _lines(passwd):
            fields = line.split(":")
            if len(fields) > 2 and (uid := _number(fields[2])) is not None:
                accounts.setdefault(fields[0], uid)
        self._accounts = frozenset(accounts.values()) if accounts else None
        self._owners: dict[int, frozenset[int]] = {}
        self._ranges = [found for line in _lines(subuid) if (found := _range(line, accounts)) is not None]

    def assigned_to(self, uid: int, by: int) -> bool:
        """Say whether ``uid`` is one of the subordinate ids of user ``by``, and of nobody else."""
        if not FIRST <= uid <= LAST or self._accounts is None or uid in self._accounts:
            return False
        if uid not in self._owners:
            self._owners[uid] = frozenset(r.owner for r in self._ranges if r.first <= uid <= r.last)
        return self._owners[uid] == {by}


def _range(line: str, accounts: dict[str, int]) -> Range | None:
    """Return the range of a line NAME_OR_NUMBER:FIRST:COUNT, or None. A range of an unknown owner is returned too, so that no
    other user gets its ids."""
    fields = line.split(":")
    if len(fields) != 3:
        return None
    first, count = _number(fields[1]), _number(fields[2])
    if first is None or not count:
        return None
    owner = accounts.get(fields[0], _number(fields[0]))
    return Range(-1 if owner is None else owner, first, min(first + count - 1, LAST))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _lines(path: str) -> list[str]:
    """Return the lines of a file that only root can change, or [] for any other file and for one that is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != 0 or info.st_mode & 0o022 or info.st_size > FILE_MAX_BYTES:
            return []
        data = b""
        while len(data) <= FILE_MAX_BYTES and (more := os.read(fd, 1 << 20)):
            data += more
    except OSError:
        return []
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace").splitlines() if len(data) <= FILE_MAX_BYTES else []
