"""Removes trees that belong to a user, who may change them meanwhile: with that user's rights on files, and no other's.

The process stays root's in everything else (setfsuid(2)): the user can neither stop nor trace it, and what it may delete the user
could delete too, whatever is moved or linked where. Every step is one name in a folder that is held open; no link is followed,
and no other file system is entered. A tree may be deeper than files can be open, and its paths longer than PATH_MAX: from a
certain depth on, folders are moved up to the top first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

DEPTH = 32  # folders that are open at once
NOBODY = 65534
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class TimeUp(Exception):
    """The removal has taken as long as it may."""


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


class Removal:
    """Of one user's trees. ``removed``: files and folders; ``stays``: why others could not be removed, in the kernel's words."""

    def __init__(self, device: int, deadline: float) -> None:
        self._device = device
        self._deadline = deadline
        self._moved = 0
        self.removed = 0
        self.stays: set[str] = set()

    def tree(self, up: int, name: str) -> None:
        """Remove what ``name`` is in the folder ``up``. Raises TimeUp."""
        try:
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=up, follow_symlinks=False).st_mode)
        except OSError as e:
            self._failed(e)
            return
        if is_folder:
            self._folder(up, name, None, 0)
        else:
            self._unlink(up, name)

    def enter(self, up: int, name: str) -> int | None:
        """The folder ``name`` of ``up``, open, with the permissions that emptying it takes; None where that cannot be."""
        handle = -1
        try:
            handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=up)
            info = os.fstat(handle)
            if info.st_dev != self._device:
                self.stays.add("another file system is mounted there")
                return None
            itself = f"/proc/self/fd/{handle}"  # not by its name, which may be another folder's by now
            if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(itself, stat.S_IRWXU)
            return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            self._failed(e)
            return None
        finally:
            if handle >= 0:
                os.close(handle)

    def _folder(self, up: int, name: str, top: int | None, depth: int) -> None:
        """As long as that removes anything: who still runs in there may add to it."""
        inner = self.enter(up, name)
        if inner is None:
            return
        try:
            while True:
                before = self.removed
                self._empty(inner, inner if top is None else top, depth)
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

    def _empty(self, folder: int, top: int, depth: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > self._deadline:
                    raise TimeUp
                if not entry.is_dir(follow_symlinks=False):
                    self._unlink(folder, entry.name)
                elif depth < DEPTH:
                    self._folder(folder, entry.name, top, depth + 1)
                else:
                    self._move_up(folder, entry.name, top)

    def _unlink(self, folder: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as e:
            self._failed(e)
        else:
            self.removed += 1

    def _move_up(self, folder: int, name: str, top: int) -> None:
        inner = self.enter(folder, name)  # a folder that its owner cannot write to cannot be moved (rename(2), EACCES)
        if inner is None:
            return
        os.close(inner)
        self._moved += 1
        try:
            os.rename(name, f".fairlead.{os.getpid()}.{self._moved}", src_dir_fd=folder, dst_dir_fd=top)
        except OSError as e:
            self._failed(e)

    def _failed(self, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            self.stays.add(error.strerror or str(error))
