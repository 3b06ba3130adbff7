"""Follows the kernel log: /dev/kmsg, or a FIFO or a file with records in the same form.

Record form: Documentation/ABI/testing/dev-kmsg, "6,339,5140900,-;text". Lines that start with a space continue a record. A
read of /dev/kmsg returns one record. EPIPE means that records were overwritten before they were read. Only records of
facility 0 (kernel) are used. A process that writes to /dev/kmsg cannot choose this facility.

This module drops three kinds of records, because a user may have chosen the beginning of their text (``model.kernel_text``):

- records that begin with a task's name;
- records that begin like a driver's message about a device, but do not name the device;
- fragments.

A fragment (flag "c") is text that printk() should have appended to a message and could not, because another CPU had printed in
between. The out-of-memory killer appends names of cgroups in this way. Complete messages of the NVIDIA driver also have the
flag "c", and are kept. They are dropped only in the FOLLOWED records after a record that ends where a cgroup's name is appended.

The kernel escapes a line break within a record. This module replaces the line break by a blank, so that text after it cannot
look like the beginning of a record.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time

from fairlead.host.hung_trace import HungTrace, is_ours
from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import Missing, unreadable
from fairlead.model.kernel_text import begins_with_a_name, is_whole, lacks_its_device, name_follows
from fairlead.model.plain_text import printable

RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX; a smaller buffer gives EINVAL
BATCH_RECORDS = 2000
_CHUNK_BYTES = 65536
_PARTIAL_MAX_BYTES = 16384
_RETRY_SECONDS = 1.0
FOLLOWED = 8
_FRAGMENTS = (b"c", b"+")  # "+" was used up to Linux 4.8
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def parse(line: bytes, boot_id: str = "", *, names_devices: bool = False, cut: bool = False) -> KernelRecord | None:
    """Return one record, or None if it is malformed or of a kind that is dropped (see the module's docstring). Never raises.

    ``names_devices``: ``line`` is the whole record with the lines that continue it, as /dev/kmsg returns it. ``cut``: one of
    the last FOLLOWED records ended where a cgroup's name is appended.
    """
    prefix, mark, rest = line.partition(b";")
    fields = prefix.split(b",")
    if not mark or len(fields) < 3:
        return None
    try:
        level, sequence, microseconds = int(fields[0]), int(fields[1]), int(fields[2])
    except ValueError:
        return None
    if level < 0 or level >> 3 or sequence < 0 or microseconds < 0 or len(prefix) > 120:
        return None
    text, _, more = rest.partition(b"\n")
    if b"\\x" in text:
        text = _ESCAPE.sub(lambda m: bytes((int(m[1], 16),)), text)
    decoded = text.decode("utf-8", "replace")
    if len(fields) > 3 and fields[3] in _FRAGMENTS and (cut or not is_whole(decoded)):
        return None
    if begins_with_a_name(decoded) or (names_devices and lacks_its_device(decoded, _device(more))):
        return None
    shown = printable(decoded).rstrip()
    return KernelRecord(sequence=sequence, seconds=microseconds / 1e6, priority=level & 7, text=shown, boot_id=boot_id)


def _device(more: bytes) -> str:
    """Return the value of DEVICE= in the lines that continue a record, or "" if there is none."""
    _, found, value = (b"\n" + more).partition(b"\n DEVICE=")
    return value.partition(b"\n")[0].decode("ascii", "replace") if found else ""


class Follower:
    """Follows one source of kernel records.

    ``fileno()`` is readable when ``read()`` has records. If it is -1, call ``read()`` from time to time. ``cursor``: the last
    sequence number that was read from a character device. The next Follower *of the same boot* gets it, so that no record
    counts twice. ``overruns``: how many records were overwritten before they were read. ``state``: None, or why the source
    cannot be read. While it cannot be read, ``read()`` tries to open it again, at most once a second.
    """

    def __init__(self, path: str = "/dev/kmsg", boot_id: str = "", cursor: int | None = None) -> None:
        self.path = path
        self.boot_id = boot_id
        self.cursor = cursor
        self.overruns = 0
        self.state: Missing | None = unreadable(f"{path}: not opened")
        self._fd = -1
        self._is_device = False
        self._is_fifo = False
        self._identity = (0, 0)
        self._partial = b""
        self._skipping = False
        self._cut_until = -1  # up to this sequence number a fragment may be the name of a cgroup
        self._trace = HungTrace()
        self._next_try = 0.0
        self._open()

    def fileno(self) -> int:
        """Return the descriptor to wait on, or -1 for a regular file and for a source that cannot be read."""
        return self._fd if self._is_device or self._is_fifo else -1

    def read(self) -> list[KernelRecord]:
        """Return the records that have come in, oldest first, at most about BATCH_RECORDS. Never blocks and never raises."""
        if self._fd < 0 and not self._open():
            return []
        try:
            return self._read_device() if self._is_device else self._read_lines()
        except OSError as e:
            self._lost(f"{self.path}: {e.strerror}")
            return []

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        now = time.monotonic()
        if now < self._next_try:
            return False
        self._next_try = now + _RETRY_SECONDS
        try:
            mode = os.stat(self.path).st_mode
            if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
                raise OSError(errno.EINVAL, "neither a character device nor a FIFO nor a file")
            # The FIFO is opened for writing too, so that it always has a writer: reads see no end of file when others close it.
            flags = os.O_RDWR if stat.S_ISFIFO(mode) else os.O_RDONLY
            fd = os.open(self.path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as e:
            self.state = unreadable(f"{self.path}: {e.strerror}")
            return False
        info = os.fstat(fd)
        self._fd = fd
        self._is_device = stat.S_ISCHR(info.st_mode)
        self._is_fifo = stat.S_ISFIFO(info.st_mode)
        self._identity = (info.st_dev, info.st_ino)
        self._partial = b""
        self._skipping = False
        self.state = None
        return True

    def _lost(self, why: str) -> None:
        self.close()
        self.state = unreadable(why)

    def _read_device(self) -> list[KernelRecord]:
        found: list[KernelRecord] = []
        for _ in range(10 * BATCH_RECORDS):  # a record of another facility takes a read too
            if len(found) >= BATCH_RECORDS:
                break
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the next read returns the oldest record left, and its number says how many were lost
                self.overruns += self.cursor is None
                continue
            if not data:
                break
            self._take_record(data, found)
        return found

    def _parse(self, data: bytes, *, names_devices: bool = False) -> KernelRecord | None:
        number = _sequence(data) if self._cut_until >= 0 or b"cpuset=" in data else None
        cut = number is not None and number <= self._cut_until
        if number is not None and name_follows(data.partition(b"\n")[0].decode("utf-8", "replace")):
            self._cut_until = number + FOLLOWED
        return parse(data, self.boot_id, names_devices=names_devices, cut=cut)

    def _take_record(self, data: bytes, found: list[KernelRecord]) -> None:
        record = self._parse(data, names_devices=True)
        sequence = record.sequence if record is not None else _sequence(data)
        if sequence is not None:
            if self.cursor is not None and sequence <= self.cursor:
                return
            if self.cursor is not None:
                self.overruns += sequence - self.cursor - 1
            self.cursor = sequence
        self._add(record, sequence, found)

    def _add(self, record: KernelRecord | None, sequence: int | None, found: list[KernelRecord]) -> None:
        """Add a record, and after it the record that ``HungTrace`` makes from it, if there is one."""
        if record is not None and not is_ours(record):
            found.append(record)
        said = self._trace.take(sequence, record) if sequence is not None else None
        if said is not None:
            found.append(said)

    def _read_lines(self) -> list[KernelRecord]:
        found: list[KernelRecord] = []
        while len(found) < BATCH_RECORDS:
            try:
                data = os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                data = b""
            if not data:
                if self._partial and not self._is_fifo:
                    data = b"\n"  # a file may end without a line break
                else:
                    self._check_replaced()
                    break
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                if self._skipping:
                    self._skipping = False
                elif line and not line.startswith(b" "):
                    record = self._parse(line)
                    sequence = record.sequence if record is not None else _sequence(line)
                    self._add(record, sequence, found)
            if len(self._partial) > _PARTIAL_MAX_BYTES:
                self._partial = b""
                self._skipping = True
        return found

    def _check_replaced(self) -> None:
        """Open the path again if somebody has replaced the FIFO or file. If it was removed, the source cannot be read."""
        now = time.monotonic()
        if now < self._next_try:
            return
        self._next_try = now + _RETRY_SECONDS
        try:
            info = os.stat(self.path)
        except OSError as e:
            self._lost(f"{self.path}: {e.strerror}")
            return
        if (info.st_dev, info.st_ino) != self._identity:
            self._lost(f"{self.path}: replaced")
            self._next_try = 0.0
            self._open()


def _sequence(data: bytes) -> int | None:
    """Return the sequence number of a record of any facility, or None if the record is malformed."""
    fields = data.partition(b";")[0].split(b",", 3)
    if len(fields) < 3 or b";" not in data:
        return None
    return int(fields[1]) if fields[1].isdigit() else None


def past_now(path: str, boot_id: str) -> Past:
    """Return the kernel records that are in the log now. If the log is missing, the result reports this."""
    try:
        mode = os.stat(path).st_mode
    except OSError as e:
        return Past(available=False, log=unreadable(f"{path}: {e.strerror}"))
    if stat.S_ISFIFO(mode):
        return Past(available=False)  # the agent reads this FIFO, and would lose the records that are read here
    follower = Follower(path, boot_id)
    try:
        records = []
        while batch := follower.read():
            records += batch
        return Past(available=False, records=tuple(records), log=follower.state)
    finally:
        follower.close()
