"""Writes and reads the audit trail: who changed what about this node's service, when, why, and with which outcome.

``STATE_DIR/audit.jsonl`` has one JSON object per line. ``add`` only appends to the file (open(2), O_APPEND), and returns when
the line is on the disk (fsync(2)). The trail is a file of its own, because the history may be damaged, moved or deleted, and
the trail must survive that. A person needs only `tail` to read it. When the file reaches ROTATE_BYTES, it is renamed and
replaces the earlier ``audit.jsonl.1``. So both files together are never larger than twice ROTATE_BYTES.

A command writes its entry twice under one id: before it begins, and with the outcome. A command that is killed in between
leaves the first entry, so every action is in the trail. If the disk cannot be written, the line is written to
``RUN_DIR/audit.jsonl`` (tmpfs), and ``trouble`` describes the failure in one line. The command continues. The line is moved to
the disk with the next line that can be written there.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
from msgspec import Struct, field

from fairlead.host.bounded_disk import Direct, Storage
from fairlead.model.json_text import NOT_JSON
from fairlead.model.verdict import one_line

FILE = "audit.jsonl"
ROTATE_BYTES = 1 << 20
TEXT_MAX = 1000  # characters of a reason or a detail
LOCK_SECONDS = 2.0  # after this time of waiting for another writer, a line is appended without the lock, in one write(2)
ASKED = "asked"


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one action.

    unix: the Unix time in seconds. who: a login name, or "agent". uid: the user id of the process. tty, client: the person's
    terminal and the address of the ssh client, or "" if unknown. what: the command, or what the agent did. args: the important
    arguments. why: the reason that the person stated. outcome: one word, which is ASKED until the outcome is known. detail:
    one line.
    """

    unix: float
    id: str
    what: str
    who: str
    uid: int = 0
    tty: str = ""
    client: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    outcome: str = ASKED
    detail: str = ""


def new_id() -> str:
    """Return a random id for an entry or a request."""
    return secrets.token_hex(8)


class Trail:
    """Appends to and reads the trail of one node."""

    def __init__(self, state_dir: str, run_dir: str, disk: Storage | None = None) -> None:
        self._disk = disk or Direct()
        self.path = os.path.join(state_dir, FILE)
        self.spare = os.path.join(run_dir, FILE)
        self.trouble = ""

    def add(self, entry: AuditEntry) -> None:
        """Append an entry. This never raises. ``trouble`` describes what could not be written, or is ""."""
        line = _line(entry)
        try:
            spared = self._read_spare()
            self._disk.do(lambda: _append(self.path, spared + line))
        except OSError as e:
            self.trouble = f"audit: {self.path}: {e.strerror}"
        else:
            self.trouble = ""
            if spared:
                with suppress(OSError):
                    os.unlink(self.spare)
            return
        try:
            _append(self.spare, line)
            self.trouble += f"; written to {self.spare}, which a reboot clears"
        except OSError as e:
            self.trouble += f"; nor {self.spare}: {e.strerror}: this is not in the trail"

    def heal(self) -> None:
        """Move the lines in ``RUN_DIR/audit.jsonl`` to the disk, if the disk can be written again. Without ``trouble``, do
        nothing."""
        if not self.trouble:
            return
        spared = self._read_spare()
        with suppress(OSError):
            if spared:
                self._disk.do(lambda: _append(self.path, spared))
                os.unlink(self.spare)
            else:
                self._disk.do(lambda: os.stat(os.path.dirname(self.path)))
            self.trouble = ""

    def agent(self, what: str, *, detail: str = "", why: str = "", args: Mapping[str, str] | None = None) -> None:
        """Append an entry for an action of the agent itself."""
        entry = AuditEntry(
            unix=time.time(), id=new_id(), what=what, who="agent", args=args or {}, why=why, outcome="done", detail=detail
        )
        self.add(entry)

    def read(self, since: float = 0.0) -> list[AuditEntry]:
        """Return every entry since a Unix time, oldest first. Entries with the same id become one entry with the last outcome.

        A file or line that cannot be read is left out, also a line that a crash has cut short. ``trouble`` reports it.
        """
        found: dict[str, AuditEntry] = {}
        broken = 0
        self.trouble = ""
        for path in (self.path + ".1", self.path, self.spare):
            try:
                data = self._disk.do(partial(_content, path))
            except FileNotFoundError:
                continue
            except OSError as e:
                self.trouble = f"audit: {path}: {e.strerror}"
                continue
            for text in data.splitlines():
                try:
                    entry = msgspec.json.decode(text, type=AuditEntry)
                except NOT_JSON:
                    broken += bool(text.strip())
                    continue
                first = found.get(entry.id)
                if first is not None:
                    entry = msgspec.structs.replace(first, outcome=entry.outcome, detail=entry.detail)
                found[entry.id] = entry
        if broken and not self.trouble:
            self.trouble = f"audit: {self.path}: {broken} line{'s' * (broken != 1)} left out: cut short or not fairlead's"
        return sorted((e for e in found.values() if e.unix >= since), key=lambda e: e.unix)

    def _read_spare(self) -> bytes:
        try:
            with open(self.spare, "rb") as f:
                return f.read(ROTATE_BYTES)
        except OSError:
            return b""


def _line(entry: AuditEntry) -> bytes:
    cut = {key: one_line(value)[:TEXT_MAX] for key, value in entry.args.items()}
    why, detail = one_line(entry.why)[:TEXT_MAX], one_line(entry.detail)[:TEXT_MAX]
    return msgspec.json.encode(msgspec.structs.replace(entry, args=cut, why=why, detail=detail)) + b"\n"


def _content(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read(4 * ROTATE_BYTES)


def _append(path: str, data: bytes) -> None:
    """Append whole lines or nothing. Raises OSError if the file cannot be written."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with _locked(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(fd).st_size
            if size + len(data) > ROTATE_BYTES and size:
                os.rename(path, path + ".1")
                os.close(fd)
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
                size = 0
            if size and not _ends_a_line(path):
                data = b"\n" + data  # a crash has cut the last line short
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)


def _ends_a_line(path: str) -> bool:
    with open(path, "rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read(1) == b"\n"


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock the folder of the file, so that only one writer at a time appends or rotates. A lock on the folder needs no space on
    a full disk."""
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)
