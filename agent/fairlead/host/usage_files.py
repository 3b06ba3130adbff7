"""Keeps the usage records in files, ``STATE_DIR/usage/JOB-BEGIN.json``. BEGIN is the begin of the job in seconds of Unix time.

A file is written as a whole (rename(2)). ``UsageFiles`` does not know what is in a file. The number of files, their bytes and
their age are limited. Only root and the owner of the job can read a file (``file_acl``), and only root can list the folder. So
the owner finds the file of a job that runs by the link ``STATE_DIR/usage/JOB``. Files that are not whole, and files with other
names, are moved to the folder ``aside``, which holds at most ``ASIDE_MAX`` files. Each access runs through a ``Storage``, because
the disk may not answer.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial

from fairlead.host.atomic_file import write_atomic
from fairlead.host.bounded_disk import START_SECONDS, Storage

FOLDER = "usage"
ASIDE = "aside"
ASIDE_MAX = 100
FILES_MAX = 20_000
BYTES_MAX = 64 << 20
FILE_MAX_BYTES = 256 * 1024
PRUNE_SECONDS = 3600.0
DAY_SECONDS = 86400.0
_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,12}\.json")
_LINK = re.compile(r"[0-9]{1,10}")
_FOLDER_MODE, _FILE_MODE = 0o711, 0o600
_END = b"}\n"
_ENDED = b'"end_unix":'


class UsageFiles:
    """Writes, reads and limits the files of one node. ``trouble``: why the last access failed, in one line, or ""."""

    def __init__(self, state_dir: str, disk: Storage) -> None:
        self.folder = os.path.join(state_dir, FOLDER)
        self.trouble = ""
        self._disk = disk
        self._names: set[str] = set()
        self._pruned_at: float | None = None

    def open_files(self) -> dict[str, bytes] | None:
        """Return the content of each file of a record without an end, or None if the disk does not answer or cannot be read.

        Call this once, when the agent starts. It also moves files that are not whole to the folder ``aside``.
        """
        try:
            names, found = self._disk.do(partial(_start, self.folder), wait_seconds=START_SECONDS)
        except OSError as e:
            self._failed(e)
            return None
        self._names = names
        self.trouble = ""
        return found

    def new_name(self, job: int, begin_unix: float) -> str:
        """Return a name that no file has. If the clock was set back, BEGIN is the next number that is free."""
        begin = max(0, int(begin_unix))
        while (name := f"{job}-{begin}.json") in self._names:
            begin += 1
        self._names.add(name)
        return name

    def of_job(self, job: int) -> list[bytes]:
        """Return the content of each whole file of this job."""
        names = [name for name in self._names if name.startswith(f"{job}-")]
        try:
            found = self._disk.do(lambda: [_content(os.path.join(self.folder, name)) for name in names]) if names else []
        except OSError:
            return []
        return [data for data in found if data is not None]

    def write(self, files: Mapping[str, bytes], *, readers: Mapping[str, int], sync: bool) -> bool:
        """Write the files, each as a whole. Return False if that failed. ``readers``: the number of the user who may read a file,
        by the file's name. ``sync``: the files are on the disk on return."""
        try:
            self._disk.do(partial(_write, self.folder, dict(files), dict(readers), sync))
        except OSError as e:
            self._failed(e)
            return False
        self.trouble = ""
        return True

    def set_aside(self, name: str) -> None:
        """Move a file to the folder ``aside``, because it has no usable record."""
        with suppress(OSError):
            self._disk.do(partial(_set_aside, self.folder, name))

    def prune(self, days: float, keep: Collection[str]) -> None:
        """Once an hour, remove the files that were not written for ``days``, and the oldest beyond the limits. Files in ``keep``
        stay."""
        now = time.monotonic()
        if self._pruned_at is not None and now - self._pruned_at < PRUNE_SECONDS:
            return
        self._pruned_at = now
        try:
            self._names -= self._disk.do(partial(_prune, self.folder, time.time() - days * DAY_SECONDS, frozenset(keep)))
        except OSError as e:
            self._failed(e)

    def _failed(self, error: OSError) -> None:
        self.trouble = f"usage records: {self.folder}: {error.strerror or error}"


def _start(folder: str) -> tuple[set[str], dict[str, bytes]]:
    """Return the names of all whole files, and the content of those without an end."""
    _make_folder(folder)
    names: set[str] = set()
    found: dict[str, bytes] = {}
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".tmp"):
            with suppress(OSError):
                os.unlink(os.path.join(folder, entry))  # an agent was killed while it wrote the file
        elif _LINK.fullmatch(entry) and os.path.islink(os.path.join(folder, entry)):
            os.unlink(os.path.join(folder, entry))  # the next write of an open record makes it again
        elif entry != ASIDE:
            data = _content(os.path.join(folder, entry)) if _NAME.fullmatch(entry) else None
            if data is None:
                _set_aside(folder, entry)
                continue
            names.add(entry)
            if _ENDED not in data:
                found[entry] = data
    return names, found


def _content(path: str) -> bytes | None:
    """Return the content of a file that is whole, or None if it is torn, too long, or no regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_mode & 0o007:
            os.fchmod(fd, _FILE_MODE)  # an earlier fairlead let everybody read it
        with open(fd, "rb", closefd=False) as f:
            data = f.read(FILE_MAX_BYTES + 1)
    finally:
        os.close(fd)
    return data if data.endswith(_END) and len(data) <= FILE_MAX_BYTES else None


def _set_aside(folder: str, name: str) -> None:
    aside = os.path.join(folder, ASIDE)
    os.makedirs(aside, mode=0o700, exist_ok=True)
    os.rename(os.path.join(folder, name), os.path.join(aside, name))
    there = [os.path.join(aside, each) for each in os.listdir(aside)]
    for path in sorted(there, key=lambda path: os.lstat(path).st_mtime)[:-ASIDE_MAX]:
        with suppress(OSError):
            os.unlink(path)


def _make_folder(folder: str) -> None:
    """Make the folder, or correct its mode."""
    os.makedirs(folder, mode=_FOLDER_MODE, exist_ok=True)
    if stat.S_IMODE(os.stat(folder).st_mode) != _FOLDER_MODE:
        os.chmod(folder, _FOLDER_MODE)


def _write(folder: str, files: Mapping[str, bytes], readers: Mapping[str, int], sync: bool) -> None:
    _make_folder(folder)
    for name, data in files.items():
        write_atomic(os.path.join(folder, name), data, mode=_FILE_MODE, sync=sync, reader=readers.get(name))
        _link(os.path.join(folder, name.partition("-")[0]), name, is_open=_ENDED not in data)


def _link(path: str, name: str, *, is_open: bool) -> None:
    """Let the link of a job lead to its open record, and remove the link with the end of the record."""
    try:
        there = os.readlink(path)
    except FileNotFoundError:
        there = ""
    if is_open and there != name:
        temporary = f"{path}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(name, temporary)
        os.rename(temporary, path)
    elif not is_open and there == name:
        os.unlink(path)


def _prune(folder: str, before: float, keep: frozenset[str]) -> set[str]:
    """Remove files that are too old or too many, and return their names. ``before``: seconds of Unix time."""
    with os.scandir(folder) as entries:
        found = [
            (s.st_mtime, s.st_size, e.name) for e in entries if _NAME.fullmatch(e.name) and (s := e.stat(follow_symlinks=False))
        ]
    removed: set[str] = set()
    count, size = len(found), sum(each for _, each, _ in found)
    for written, bytes_, name in sorted(found):
        if written >= before and count <= FILES_MAX and size <= BYTES_MAX:
            break
        if name not in keep:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
            removed.add(name)
            count, size = count - 1, size - bytes_
    return removed
