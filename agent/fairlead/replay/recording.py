"""Reads the recording of one node for a replay: for each boot, the kernel records that checks declare, with their times.

A recording is read from a kernel log (dmesg, journalctl, syslog, /dev/kmsg, journalctl -o json) or from an agent's history file.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from msgspec import Struct, field

from fairlead.errors import DataError, InputMissing
from fairlead.history.sqlite_file import numbers
from fairlead.host.hung_trace import HungTrace, is_ours
from fairlead.model.check_definition import KernelRecord
from fairlead.model.kernel_text import begins_with_a_name
from fairlead.replay.timestamps import NO_YEAR, Stamp, stamp
from fairlead.xid.decode import BOOT
from fairlead.xid.log_file import Messages, journal
from fairlead.xid.versions import loaded

LINE_MAX = 8192  # bytes; the longest record that /dev/kmsg gives (kernel/printk/printk.c, CONSOLE_EXT_LOG_MAX)
HIDDEN_MAX = 8  # at most this number of lines with an unknown prefix are named
LONG_UP_SECONDS = 86400.0  # if a log begins in the middle of a boot, the node is assumed to have been up for this time
_HEAD_LINES = 1000
_BACK_SECONDS = 60.0  # if a time since the boot is smaller than the last one by more than this, another boot has begun
_BETWEEN_BOOTS_SECONDS = 120.0
_MARKS = (*(mark.encode() for mark in BOOT), b"NVRM: loading NVIDIA UNIX")
_SQLITE = b"SQLite format 3\0"


class Boot(Struct, kw_only=True):
    """Describes one boot.

    began, ended: the first and the last time of this boot, in seconds of the recording's time. up_seconds: how long the node
    had been up at ``began``. records: the kernel records with their line numbers. ``KernelRecord.seconds`` is the time since
    the boot. known: the times at which a person resumed the node, which acknowledged the evidence. driver: the version of the
    NVIDIA driver, or "" if the log does not name it.
    """

    id: str
    driver: str = ""
    began: float
    up_seconds: float
    ended: float
    records: list[tuple[int, KernelRecord]] = field(default_factory=list)
    known: list[float] = field(default_factory=list)


class Recording(Struct, kw_only=True):
    """Holds the recording of one node.

    since_boot, dated: the form of the recording's times (see ``Stamp``). timed: False if the recording has no times.
    of_an_agent: True for an agent's history, False for a log. recorded: what an agent recorded at the time, as (seconds, text).
    hidden: the numbers of the first lines that have an Xid, SXid or bus loss after an unknown prefix.
    """

    name: str
    boots: list[Boot] = field(default_factory=list)
    lines: int = 0
    since_boot: bool = False
    dated: bool = True
    timed: bool = True
    of_an_agent: bool = False
    recorded: list[tuple[float, str]] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)


Progress = Callable[[str, float], None]  # called with the name of the recording and the part that is done, from 0 to 1


def read(path: str, prefixes: tuple[str, ...], progress: Progress = lambda name, part: None) -> Recording:
    """Read a recording from a file. ``prefixes``: the beginnings of the records to keep. Raises InputMissing or DataError."""
    try:
        with open(path, "rb") as f:
            if not f.peek(len(_SQLITE)).startswith(_SQLITE):  # a pipe cannot be read twice
                return read_log(f, path, prefixes, progress)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    return _history(path, prefixes)


def read_log(source: BinaryIO, name: str, prefixes: tuple[str, ...], progress: Progress = lambda name, part: None) -> Recording:
    """Read a recording from a kernel log. Raises DataError if the source is no text or has no line of a kernel log."""
    worth = tuple(prefix.encode() for prefix in prefixes)
    log = _Log(name, prefixes)
    size = _size(source)
    done = number = 0
    line = b""
    for number, line in enumerate(_lines(source, name), 1):
        done += len(line)
        if number % 20000 == 0:
            progress(name, done / size if size else 0.0)
        text = line.lstrip(b"\0")  # a power loss leaves such bytes in a file
        if b"\0" in text:
            raise DataError(
                f"{name}: line {number}: not a text file", hint="a kernel log (dmesg, journalctl -k) or history.sqlite"
            )
        text = text[:LINE_MAX]
        if (
            any(w in text for w in worth)
            or log.begins(number)
            or any(m in text for m in _MARKS)
            or text.startswith(b"{")
            or log.follows
        ):
            log.take(number, text.decode("utf-8", "replace"))
    return log.finish(number, line[:LINE_MAX].decode("utf-8", "replace"))


def _size(source: BinaryIO) -> int:
    try:
        return os.fstat(source.fileno()).st_size
    except OSError:
        return 0


LINE_MIB_MAX = 256


def _lines(source: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield each line, or only the beginning of a long line. Raises DataError for a line that does not end, as in /dev/zero."""
    while line := source.readline(1 << 20):
        yield line
        pieces = 1
        while len(line) == 1 << 20 and not line.endswith(b"\n"):
            line = source.readline(1 << 20)
            pieces += 1
            if pieces > LINE_MIB_MAX:
                raise DataError(
                    f"{name}: a line of it is longer than {LINE_MIB_MAX} MiB",
                    hint="a kernel log (dmesg, journalctl -k) or history.sqlite",
                )


class _Log:
    """Makes a Recording from the lines of a kernel log."""

    def __init__(self, name: str, prefixes: tuple[str, ...]) -> None:
        self.made = Recording(name=name)
        self._prefixes = prefixes
        self._messages = Messages()
        self._boot_id = ""
        self._offset = 0.0  # what is added to a stamp to get the recording's time, in which boots follow one another
        self._year = NO_YEAR
        self._raw = 0.0  # the last stamp
        self._now = 0.0
        self._stamped = False
        self._marked = False  # the next line that has a time begins a boot
        self._trace = HungTrace()

    @property
    def follows(self) -> bool:
        """Return whether the next line may belong to the trace of a hung task."""
        return self._trace.follows

    def begins(self, number: int) -> bool:
        """Return whether the time at which the log begins is still unknown."""
        return not self._stamped and number <= _HEAD_LINES

    def take(self, number: int, line: str) -> None:
        """Add a line that matters to the recording: a record to keep, or the beginning of a boot."""
        boot_id = ""
        if line.startswith("{"):
            at, text, boot_id = _journal(line)
        else:
            found = self._messages.of(number, line)
            at, text = self._stamp(line), found.text
            if found.hides_an_error and len(self.made.hidden) < HIDDEN_MAX:
                self.made.hidden.append(number)
        self._marked = self._marked or text.startswith(BOOT)
        wanted = text.startswith(self._prefixes)
        if at is None and not wanted:
            self._follow(number, text)
            return
        back = at is not None and at.since_boot and at.seconds < self._raw - _BACK_SECONDS
        other = bool(boot_id and self._boot_id and boot_id != self._boot_id)
        self._boot_id = boot_id or self._boot_id
        if self._marked or back or other or not self.made.boots:
            self._boot(at)
        elif at is not None:
            self._clock(at)
        boot = self.made.boots[-1]
        boot.ended = self._now
        boot.driver = loaded(text) or boot.driver
        record = self._record(number, text)
        if wanted and not is_ours(record):
            boot.records.append((number, record))
        self._follow(number, text)

    def _record(self, number: int, text: str) -> KernelRecord:
        boot = self.made.boots[-1]
        seconds = boot.up_seconds + self._now - boot.began
        return KernelRecord(sequence=number, seconds=seconds, priority=4, text=text, boot_id=boot.id)

    def _follow(self, number: int, text: str) -> None:
        """Pass a line to the reader of traces of hung tasks. If that returns a record of fairlead's own, add the record, as the
        agent does when it reads the kernel log (``host.kmsg``)."""
        if self.made.boots and (said := self._trace.take(number, self._record(number, text))):
            self.made.boots[-1].records.append((number, said))

    def _stamp(self, line: str) -> Stamp | None:
        at = stamp(line, self._year)
        if at is not None and not at.dated and at.seconds < self._raw - 180 * 86400:  # from December to January
            self._year += 1
            at = stamp(line, self._year)
        return at

    def _clock(self, at: Stamp) -> None:
        if not self._stamped:
            self._stamped = True
            self.made.since_boot, self.made.dated = at.since_boot, at.dated
            self._now = at.seconds
        self._raw = at.seconds
        self._now = max(self._now, at.seconds + self._offset)

    def _boot(self, at: Stamp | None) -> None:
        """Begin a new boot. This is also called for the first line of the log."""
        boots = self.made.boots
        marked, self._marked = self._marked, False
        if boots and marked and not boots[-1].records and self._now - boots[-1].began < _BACK_SECONDS:
            if at is not None:
                self._clock(at)
            return  # the journal's change of boots and the kernel's first line begin the same boot
        if boots and at is not None and at.since_boot:
            self._offset = self._now + _BETWEEN_BOOTS_SECONDS - at.seconds
            self._raw = at.seconds
        if at is not None:
            self._clock(at)
        up = LONG_UP_SECONDS if not boots and not marked else 0.0
        if at is not None and at.since_boot:
            up = at.seconds
        boots.append(Boot(id=f"boot {len(boots) + 1}", began=self._now, up_seconds=up, ended=self._now))

    def finish(self, lines: int, last: str) -> Recording:
        """Return the recording. Raises DataError if no line belongs to a kernel log."""
        at = _journal(last)[0] if last.startswith("{") else self._stamp(last)
        boots = self.made.boots
        if at is not None and boots:
            self._clock(at)
            boots[-1].ended = self._now
        if not boots:
            raise DataError(
                f"{self.made.name}: no line of it is of a kernel log", hint="dmesg, journalctl -k, /dev/kmsg, or history.sqlite"
            )
        self.made.lines = lines
        self.made.timed = self._stamped
        return self.made


def _journal(line: str) -> tuple[Stamp | None, str, str]:
    """Return time, message and boot id of a line of ``journalctl -o json`` (systemd.journal-fields(7)). For a line that is not
    from the kernel, return None and two empty texts."""
    found = journal(line)
    return (None, "", "") if found is None else (Stamp(found[0]), found[1], found[2])


def _history(path: str, prefixes: tuple[str, ...]) -> Recording:
    """Read an agent's history file from a copy: the file may be in use, and is never written to."""
    with tempfile.TemporaryDirectory(prefix="fairlead-replay-") as folder:
        copy = os.path.join(folder, "history")
        try:
            for suffix in ("", "-wal"):
                if not suffix or os.path.exists(path + suffix):
                    shutil.copyfile(path + suffix, copy + suffix)
            db = sqlite3.connect(copy)
            try:
                return _from_tables(db, path, prefixes)
            finally:
                db.close()
        except OSError as e:
            raise InputMissing(f"{path}: {e.strerror or e}") from None
        except (sqlite3.Error, ValueError, TypeError) as e:
            raise DataError(f"{path}: not a history of the agent's, or damaged: {e}") from None


def _from_tables(db: sqlite3.Connection, path: str, prefixes: tuple[str, ...]) -> Recording:
    attributed = any(row[1] == "uids" for row in db.execute("PRAGMA table_info(record)"))  # since schema 2
    whose = "jobs, uids" if attributed else "'', ''"
    rows = db.execute(
        f"SELECT boot_id, sequence, seconds, priority, text, {whose} FROM record ORDER BY seconds, sequence"  # noqa: S608
    ).fetchall()
    began = {
        str(key).partition(" ")[2]: float(value)
        for key, value in db.execute("SELECT key, value FROM kept WHERE key LIKE 'began %'").fetchall()
    }
    events = db.execute("SELECT unix_seconds, event, text FROM event ORDER BY rowid").fetchall()
    made = Recording(name=path, lines=len(rows), since_boot=not began, of_an_agent=True)
    for boot_id in dict.fromkeys([*began, *(row[0] for row in rows)]):
        start = began.get(boot_id, 0.0)
        boot = Boot(id=boot_id, began=start, up_seconds=0.0, ended=start)
        for number, (of, sequence, seconds, priority, text, jobs, uids) in enumerate(rows, 1):
            if of == boot_id and str(text).startswith(prefixes) and not begins_with_a_name(str(text)):
                record = KernelRecord(
                    sequence=sequence,
                    seconds=seconds,
                    priority=priority,
                    text=text,
                    boot_id=boot_id,
                    jobs=numbers(jobs),
                    uids=numbers(uids),
                    attributed=bool(jobs),
                )
                boot.records.append((number, record))
                boot.ended = max(boot.ended, start + seconds)
        made.boots.append(boot)
    told = [
        (float(at), f"{event}: {text}") for at, event, text in events if event in ("drained", "not drained by us", "acknowledged")
    ]
    if began:
        made.recorded = told
        for boot in made.boots:
            boot.known = [at for at, text in told if text.startswith("acknowledged: a person resumed") and at >= boot.began]
            boot.ended = max([boot.ended, *boot.known])
    return made
