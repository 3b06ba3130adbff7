"""Keeps the journal of idle jobs: one line for each event, on the disk before the program goes on. It is the audit file too.

A file holds the events of one month (UTC). The newest ``MONTHS`` files are kept. A line is written with one write(2) and
fsync(2). A process that is killed while it writes leaves at most a torn last line, and has then not yet done what the line says.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from fairlead.errors import HostError, NodeBusy, next_step
from fairlead.host.atomic_file import sync_folder
from fairlead.host.file_lock import locked_within
from fairlead.jobs.idle_stages import IdleEvent

MONTHS = 13
LOCK = "lock"  # of the folder, which a run of `fairlead idle` holds
ERASED = "erased"
FILE_MAX_BYTES = 1 << 30
_NAME = re.compile(r"idle-[0-9]{4}-[0-9]{2}\.jsonl")
_DECODER = msgspec.json.Decoder(IdleEvent)


class IdleJournal:
    """Reads and writes the journal in a folder. unread: how many lines could not be read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.unread = 0

    def read(self) -> list[IdleEvent]:
        """Return the events of the last ``MONTHS`` months, the oldest first. Raises HostError."""
        self.unread = 0
        return [event for path in self.files()[-MONTHS:] for event in self._events(path)]

    def files(self) -> list[str]:
        """Return the files of the journal, the oldest first. Raises HostError."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []
        except OSError as e:
            raise HostError(f"{self.folder}: {e.strerror}", hint=next_step(e)) from None
        return [os.path.join(self.folder, name) for name in names]

    def _events(self, path: str) -> list[IdleEvent]:
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_MAX_BYTES + 1)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}") from None
        if len(data) > FILE_MAX_BYTES:
            raise HostError(f"{path}: larger than {FILE_MAX_BYTES >> 30} GiB", hint="move it away, and find out who wrote it")
        found = []
        for line in data.split(b"\n"):
            try:
                if line:
                    found.append(_DECODER.decode(line))
            except msgspec.MsgspecError:
                self.unread += 1
        return found

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep `fairlead idle` and every other writer away. Raises NodeBusy, HostError."""
        path = os.path.join(self.folder, LOCK)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                owner = os.stat(self.folder)
                if os.geteuid() == 0:
                    os.fchown(fd, owner.st_uid, owner.st_gid)
                if not locked_within(fd, 10.0, take=fcntl.flock):
                    raise NodeBusy(f"{self.folder}: a run of fairlead idle is under way", hint="try again when it has ended")
                yield
            finally:
                os.close(fd)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None

    def erase_user(self, names: Collection[str]) -> int:
        """Remove these names of users from the journal, and lines that cannot be read. Return how many lines have changed. The
        number of the job stays, so that an act has its line. Raises HostError, NodeBusy."""
        changed = 0
        with self.alone():
            for path in self.files():
                self.unread = 0
                events = self._events(path)
                found = sum(event.user in names for event in events)
                if found or self.unread:
                    changed += found + self.unread
                    left = [replace(event, user=ERASED if event.user in names else event.user) for event in events]
                    _rewrite(path, b"".join(msgspec.json.encode(event) + b"\n" for event in left))
        return changed

    def append(self, event: IdleEvent) -> None:
        """Write an event. It is on the disk when this function returns. Raises HostError."""
        name = time.strftime("idle-%Y-%m.jsonl", time.gmtime(event.at_unix))
        path = os.path.join(self.folder, name)
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            new = not os.path.exists(path)
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                line = msgspec.json.encode(event) + b"\n"
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the torn line of a killed process stays apart
                if os.write(fd, line) != len(line):
                    raise HostError(f"{path}: the disk is full", hint="make room there")
                os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                for old in sorted(each for each in os.listdir(self.folder) if _NAME.fullmatch(each))[:-MONTHS]:
                    os.unlink(os.path.join(self.folder, old))  # nothing reads it any more
                sync_folder(self.folder)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None


def _rewrite(path: str, data: bytes) -> None:
    """Replace a file as a whole. It keeps its owner."""
    new = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                owner = os.stat(path)
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, path)
        except BaseException:
            os.unlink(new)
            raise
        sync_folder(os.path.dirname(path))
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
