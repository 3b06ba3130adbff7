"""Removes trees that belong to a user, who may change them meanwhile, with that user's rights on files and nobody else's.

In everything else the process remains root's (setfsuid(2)), so the user can neither stop nor trace it. Even if the user moves
folders or makes links meanwhile, the process can delete only what the user could delete. Every step uses one name in an open
folder. No link is followed, and no other file system is entered. A tree may have more levels than a process may have open
files, and its paths may be longer than PATH_MAX. So a folder at level DEPTH is first moved up to the top of the tree.

A user's container leaves folders that belong to one of the user's subordinate ids (``subuids``). The content of such a folder
is removed with the rights of that id, which the user could get too (newuidmap(1)). A folder cannot be moved into a folder of
another owner. So a folder whose parent has another owner is a new top, which the folders below are moved up to. At most TOPS
tops may be nested.
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

DEPTH = 32  # at most this many folders are open at once below one top
TOPS = 8
OTHERS_SHOWN = 3
NOBODY = 65534
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class TimeUp(Exception):
    """The removal has reached its deadline."""


class FolderPosition(NamedTuple):
    """Describes the position of a folder in the tree. top: the descriptor of the folder that deep folders are moved up to.
    rights: the id of the user whose rights are needed. depth: the levels below top. tops: how many tops are nested here."""

    top: int
    rights: int
    depth: int
    tops: int


@contextmanager
def file_rights_of(uid: int) -> Iterator[None]:
    """Access files as this user inside the ``with`` block, without root's groups. Raises PermissionError if the kernel refuses
    to change the ids."""
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
    """Set an id with ``name`` and check it. setfsuid(2) reports no error. So a second call, which changes nothing, reads the id
    in force."""
    function = getattr(_LIBC, name)
    function.argtypes, function.restype = [ctypes.c_uint32], ctypes.c_uint32
    function(value)
    if function(0xFFFFFFFF) != value:
        raise PermissionError(errno.EPERM, f"{name} was refused")


def _holds_none(uid: int) -> bool:
    return False


class Removal:
    """Removes trees of one user. It must be used within ``file_rights_of(uid)``. ``holds``: returns whether a user id is one of
    the user's subordinate ids.

    ``removed``: the number of removed files and folders. ``stays``: why some files or folders could not be removed (mostly error
    messages of the kernel). ``others``: ids of other users who own a folder that could not be removed.
    """

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
        """Remove the file or folder ``name`` from the user's folder ``up``. Raises TimeUp."""
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
        """Open the folder ``name`` of ``up`` with the permissions that are needed to empty it. Return its descriptor and the id
        of the user whose rights are needed, or None if it cannot be opened. ``up`` must belong to the user whose rights are in
        force."""
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
                itself = f"/proc/self/fd/{handle}"  # by now the name may belong to another folder
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
        """Use the rights of another user inside the ``with`` block, and restore the earlier rights after it."""
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
        """Empty and remove a folder. A running process may add files meanwhile, so try again as long as files are removed."""
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
        """Move a folder up to the top. Return False if it has another owner, because it must then become a new top."""
        found = self.enter(folder, name)  # the owner must be able to write to a folder that is moved (rename(2), EACCES)
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
