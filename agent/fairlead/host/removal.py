"""Removes trees that belong to a user, who may change them meanwhile: with that user's rights on files, and no other's.

The process stays root's in everything else (setfsuid(2)): the user can neither stop nor trace it, and what it may delete the user
could delete too, whatever is moved or linked where. Every step is one name in a folder that is held open; no link is followed,
and no other file system is entered. A tree may be deeper than files can be open, and its paths longer than PATH_MAX: from a
certain depth on, folders are moved up to the top first.

A container of the user's leaves folders whose owner is one of the user's subordinate ids (``subuids``). What is in such a folder
goes with the rights of that id: the user could take them too (newuidmap(1)). Since nobody may move a folder from one owner's to
another's, each change of the owner on the way down begins a top of its own, of which there may be so many and no more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

DEPTH = 32  # folders that are open at once, below one top
TOPS = 8
OTHERS_SHOWN = 3
NOBODY = 65534
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class TimeUp(Exception):
    """The removal has taken as long as it may."""


class FolderPosition(NamedTuple):
    """Where the walk is. top: the folder that others are moved up to; rights: whose it is; depth: below it; tops: so far."""

    top: int
    rights: int
    depth: int
    tops: int


@contextmanager
def file_rights_of(uid: int) -> Iterator[None]:
    """Meanwhile files are accessed as this user, in no group of root's. Raises PermissionError where the kernel refuses that."""
    groups = os.getgroups()
    os.setgroups([])
    _set("setfsgid", NOBODY)
    _set("setfsuid", uid)
    try:
        yield
    finally:
        _set("setfsuid", os.geteuid())
        _set("setfsgid", os.getegid())
        os.setgroups(groups)


def _set(name: str, value: int) -> None:
    """setfsuid(2) reports no error: a second call, which changes nothing, tells what is in force."""
    function = getattr(_LIBC, name)
    function.argtypes, function.restype = [ctypes.c_uint32], ctypes.c_uint32
    function(value)
    if function(0xFFFFFFFF) != value:
        raise PermissionError(errno.EPERM, f"{name} was refused")


def _holds_none(uid: int) -> bool:
    return False


class Removal:
    """Of one user's trees, within ``file_rights_of(uid)``. ``holds``: whether a user id is one of the user's subordinate ones.
    ``removed``: files and folders; ``stays``: why others could not be removed, in the kernel's words; ``others``: users of whom
    there is a folder among them."""

    def __init__(self, uid: int, device: int, deadline: float, holds: Callable[[int], bool] = _holds_none) -> None:
        self.uid = uid
        self._device = device
        self.deadline = deadline
        self._holds = holds
        self._moved = 0
        self.removed = 0
        self.stays: set[str] = set()
        self.others: set[int] = set()

    def tree(self, up: int, name: str) -> None:
        """Remove what ``name`` is in the folder ``up`` of the user's. Raises TimeUp."""
        self.stays.clear()
        self.others.clear()
        try:
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=up, follow_symlinks=False).st_mode)
        except OSError as e:
            self._failed(e)
            return
        if is_folder:
            self._folder(up, name, FolderPosition(-1, self.uid, 0, 0))
        else:
            self._unlink(up, name)

    def enter(self, up: int, name: str) -> tuple[int, int] | None:
        """The folder ``name`` of ``up``, open, with the permissions that emptying it takes, and the user with whose rights that
        can be done; None where it cannot be. ``up`` is of the user whose rights are in force."""
        handle = -1
        try:
            handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=up)
            info = os.fstat(handle)
            if info.st_dev != self._device:
                self.stays.add("another file system is mounted there")
                return None
            rights = info.st_uid if info.st_uid != self.uid and self._holds(info.st_uid) else self.uid
            if info.st_uid != rights and len(self.others) < OTHERS_SHOWN:
                self.others.add(info.st_uid)
            with self._rights(rights):
                itself = f"/proc/self/fd/{handle}"  # not by its name, which may be another folder's by now
                if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(itself, stat.S_IRWXU)
                return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), rights
        except OSError as e:
            self._failed(e)
            return None
        finally:
            if handle >= 0:
                os.close(handle)

    @contextmanager
    def _rights(self, uid: int) -> Iterator[None]:
        """Meanwhile those of another user; the ones before come back."""
        before = _LIBC.setfsuid(0xFFFFFFFF) & 0xFFFFFFFF
        if uid == before:
            yield
            return
        _set("setfsuid", uid)
        try:
            yield
        finally:
            _set("setfsuid", before)

    def _folder(self, up: int, name: str, position: FolderPosition) -> None:
        """As long as that removes anything: who still runs in there may add to it."""
        found = self.enter(up, name)
        if found is None:
            return
        inner, rights = found
        try:
            if position.top < 0 or rights != position.rights:
                position = FolderPosition(inner, rights, 0, position.tops + 1)
            if position.tops > TOPS:
                self.stays.add(f"more than {TOPS} changes of the owner, one folder in the other")
                return
            while True:
                before = self.removed
                with self._rights(rights):
                    self._empty(inner, position)
                try:
                    os.rmdir(name, dir_fd=up)
                except OSError as e:
                    if self.removed == before:
                        self._failed(e)
                        return
                else:
                    self.removed += 1
                    return
        finally:
            os.close(inner)

    def _empty(self, folder: int, position: FolderPosition) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > self.deadline:
                    raise TimeUp
                if not entry.is_dir(follow_symlinks=False):
                    self._unlink(folder, entry.name)
                elif position.depth < DEPTH or not self._move_up(folder, entry.name, position):
                    self._folder(folder, entry.name, position._replace(depth=position.depth + 1))

    def _unlink(self, folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as e:
            self._failed(e)
        else:
            self.removed += 1

    def _move_up(self, folder: int, name: str, position: FolderPosition) -> bool:
        """False for a folder of another owner's, which begins a top of its own."""
        found = self.enter(folder, name)  # a folder that its owner cannot write to cannot be moved (rename(2), EACCES)
        if found is None:
            return True
        os.close(found[0])
        if found[1] != position.rights:
            return False
        self._moved += 1
        try:
            os.rename(name, f".fairlead.{os.getpid()}.{self._moved}", src_dir_fd=folder, dst_dir_fd=position.top)
        except OSError as e:
            self._failed(e)
        return True

    def _failed(self, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            self.stays.add(error.strerror or str(error))
