"""Stores the ledger on disk: what fairlead has written about its node to slurmctld. Every write is saved there before it is sent.

"Our drain" is a drain that fairlead has set on this node. The ledger has at most one entry, because a node has at most one
drain. If an agent was killed, the next agent finds in the ledger what the killed agent was about to write, and with which
reason. A running agent finds in the ledger which requests were not answered. slurmctld may still carry out such a request late,
after other writes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fairlead.errors import SlurmUnavailable
from fairlead.host.atomic_file import write_atomic
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.host.root import Root
from fairlead.model.json_text import NOT_JSON
from fairlead.policy.ownership import MANUAL, Token

FILE = "ledger.json"
SCHEMA = 1


# slurmctld may carry out a request up to this time after the client gave up. It is longer than any site's MessageTimeout.
LATE_SECONDS = 120.0
LATE_MAX = 8
LOCK_SECONDS = 90.0  # longer than any protocol takes when slurmctld answers each call just before its deadline
LOCK_POLL_SECONDS = 0.01


class Phase(StrEnum):
    """Names how far a drain has come.

    draining: the drain may or may not have been written, or the write may still arrive. drained: a reading has shown our
    drain. resuming: the resume may or may not have been written, or the write may still arrive. undoing: the agent lifts our
    drain because it exceeds a drain limit. taken: a person has replaced our reason. When a person lifts that drain, this is an
    acknowledgement too.
    """

    DRAINING = "draining"
    DRAINED = "drained"
    RESUMING = "resuming"
    UNDOING = "undoing"
    TAKEN = "taken"


class RebootState(StrEnum):
    """Names what is known about a reboot of the drained node.

    none: slurmctld has reported no reboot. asked: slurmctld will reboot the node, or waits for the node's reboot. over: the
    reason has slurmctld's mark of a reboot, and the drain is still set after that reboot.
    """

    NONE = ""
    ASKED = "asked"
    OVER = "over"


class LedgerEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes one drain. ``since``: when fairlead decided to drain (Unix seconds). ``machine``: the machine that decided it.
    ``late``: earlier texts of ours whose write may still arrive.

    Four fields are times in Unix seconds. sent: when a drain with the text of ``token`` was last about to be written, or 0
    once that drain was read back. unanswered: when a drain with a text in ``late`` was last about to be written, or 0. lifting:
    when a resume was last about to be written, or 0 once the resume was read back. written: when slurmctld wrote the drain that
    is on the node, by slurmctld's clock, or 0 if that is not known.

    Four fields describe the last reading that showed the drain, which is our drain or a person's drain in its place. seen: the
    time of that reading by slurmctld's clock, or a little earlier. boot: this node's boot id. reboot: what slurmctld reported
    about a reboot. known: the names of the evidence that the agent knew before that reading
    (``policy.policy_state.identity``). A person who lifts the drain acknowledges this evidence.

    freed: a person has lifted the drain with `fairlead resume`. theirs: the reason of a person's drain that our resume has
    lifted by mistake, and that has to be written again.
    """

    node: str
    phase: Phase
    token: Token
    since: float
    machine: str = ""
    sent: float = 0.0
    unanswered: float = 0.0
    lifting: float = 0.0
    written: int = 0
    late: tuple[Token, ...] = ()
    seen: int = 0
    boot: str = ""
    reboot: RebootState = RebootState.NONE
    known: tuple[str, ...] = ()
    freed: bool = False
    theirs: str = ""

    @property
    def ours(self) -> bool:
        """Return whether our drain is on the node, according to the ledger."""
        return self.phase in (Phase.DRAINED, Phase.RESUMING, Phase.UNDOING)

    @property
    def manual(self) -> bool:
        """Say whether a person drained the node through fairlead. The agent does not lift such a drain."""
        return any(token.check == MANUAL for token in self.texts)

    @property
    def texts(self) -> tuple[Token, ...]:
        """Return every text of ours that is on the node or may still be written there."""
        return (self.token, *(t for t in self.late if t != self.token))

    def intend(self, token: Token, now: float) -> LedgerEntry:
        """Return the entry of a drain that is about to be written, with ``token`` as its text. ``now``: Unix seconds.

        If the entry is already for a drain with the same words, that drain is written again with its old token. Every other
        text that may still arrive stays in ``late``, so that fairlead recognises it.
        """
        sent = max(self.sent, self.unanswered)
        if self.token not in self.late and self.token == replace(token, token=self.token.token):
            return replace(self, phase=Phase.DRAINING, sent=now, unanswered=sent, **_UNSEEN)
        late = self.texts[:LATE_MAX]
        changes = {"token": token, "since": now, "sent": now, "unanswered": sent, "late": late}
        return replace(self, phase=Phase.DRAINING, **changes, **_UNSEEN)

    def turned_to(self, token: Token) -> LedgerEntry:
        """Return the entry for the case that ``token``, which is one of ``late``, is on the node. The text that was sent last may
        still arrive."""
        unanswered = max(self.sent, self.unanswered)
        return replace(self, token=token, late=self.texts[: LATE_MAX + 1], sent=0.0, unanswered=unanswered)

    def late_lift(self, now: float) -> bool:
        """Return whether a resume of ours that was not answered may still arrive at slurmctld. ``now``: Unix seconds."""
        return abs(now - self.lifting) < LATE_SECONDS

    def dropped(self, now: float) -> LedgerEntry | None:
        """Return the entry to save when our drain is not on the node any more. While a write of ours may still arrive, return an
        entry, else None. ``now``: Unix seconds."""
        sent = max(self.sent, self.unanswered)
        if abs(now - max(sent, self.lifting)) >= LATE_SECONDS:
            return None
        changes = {"phase": Phase.DRAINING, "late": self.texts[:LATE_MAX], "sent": 0.0, "unanswered": sent}
        return replace(self, **changes, **_UNSEEN, known=())


#: An entry with these values is one whose drain no reading has shown yet.
_UNSEEN: dict[str, Any] = {"written": 0, "seen": 0, "boot": "", "reboot": RebootState.NONE, "freed": False, "theirs": ""}


class _File(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    sequence: int = 0
    entry: LedgerEntry | None = None


#: The decoder is made once, at import. msgspec analyses a type at its first use, and crashes if several threads do that at once.
_DECODER = msgspec.json.Decoder(_File)
_NEWER = msgspec.json.Decoder(dict[str, Any])


class Ledger:
    """Reads and writes the ledger of one node.

    A ledger of a newer release is kept as ``ledger.json.schemaN`` before this release writes one. Its drain counts, if the fields
    that this release knows can be read (decision 56).

    If ``state_dir`` cannot be written, the ledger is written to ``run_dir`` (tmpfs). There it survives a restart of the agent,
    but no reboot. ``trouble`` then describes the failure in one line. An entry of another node name or of another machine (on a
    cloned disk) is not used.
    """

    def __init__(self, state_dir: str, run_dir: str, *, node: str, machine: str = "", disk: Storage | None = None) -> None:
        self._disks = (disk or Direct(), Direct())  # run_dir is in memory, so it is accessed directly
        self.folders = (state_dir, run_dir)
        self.node = node
        self.machine = machine
        self.trouble = ""
        self._sequence = 0
        self._memory: LedgerEntry | None = None

    @contextmanager
    def locked(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Lock the ledger against other processes (the commands drain, resume, hold) inside the ``with`` block. If the lock file
        cannot be created, nothing is locked.

        Raises SlurmUnavailable if another process has had the lock for ``seconds``. Somebody may have stopped that process with
        Ctrl-Z.
        """
        path = os.path.join(self.folders[1], "ledger.lock")
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            deadline = time.monotonic() + seconds
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise SlurmUnavailable(
                        f"another fairlead command has held {path} for {seconds:.0f} s", hint=f"`fuser -v {path}` names it"
                    )
                time.sleep(LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(lock)

    def load(self) -> LedgerEntry | None:
        """Return the entry that was saved last. A file that cannot be decoded is renamed to ``*.bad``. Its drain then counts as
        an orphan, which is a drain with a reason of fairlead's form that is not in the ledger."""
        places = [(os.path.join(folder, FILE), disk) for folder, disk in zip(self.folders, self._disks, strict=True)]
        files = [file for path, disk in places if (file := self._read(path, disk)) is not None]
        newest = max(files, key=lambda f: f.sequence, default=None)
        if newest is None or newest.sequence < self._sequence:
            return self._memory
        self._sequence = newest.sequence
        entry = newest.entry
        if entry is not None and (entry.node != self.node or entry.machine != self.machine):
            self.trouble = f"ledger: its drain belongs to node {entry.node} on another machine; not ours"
            entry = None
        self._memory = entry
        return entry

    def save(self, entry: LedgerEntry | None) -> None:
        """Replace the entry. When this returns, the entry is on the disk. If no file can be written, the entry is only in memory
        and ``trouble`` describes the failure."""
        # If a disk has not answered since the start, the sequence number in its file is not known. The Unix time is higher.
        self._sequence = max(self._sequence + 1, int(time.time()))
        self._memory = entry
        data = msgspec.json.encode(_File(sequence=self._sequence, entry=entry)) + b"\n"
        errors = []
        for folder, disk in zip(self.folders, self._disks, strict=True):
            path = os.path.join(folder, FILE)
            try:
                disk.do(partial(write_atomic, path, data, mode=0o600, sync=True))
            except OSError as e:
                errors.append(f"{path}: {e.strerror}")
            else:
                break
        self.trouble = f"ledger: {'; '.join(errors)}" if errors else ""

    def _read(self, path: str, disk: Storage) -> _File | None:
        try:
            data = disk.do(partial(_content, path))
            schema = _schema_of(data)
            return self._read_newer(path, data, schema, disk) if schema > SCHEMA else _DECODER.decode(data)
        except FileNotFoundError:
            return None
        except OSError as e:
            self.trouble = f"ledger: {path}: {e.strerror}"
            return None
        except NOT_JSON as e:
            self.trouble = f"ledger: {path} is damaged and was moved aside ({e}); see `fairlead resume --adopt`"
            with suppress(OSError):
                disk.do(partial(os.replace, path, path + ".bad"))
            return None

    def _read_newer(self, path: str, data: bytes, schema: int, disk: Storage) -> _File | None:
        """Return what this release understands of a newer release's ledger, and keep that file. Without a token that can be read,
        the file is renamed, and its drain counts as an orphan. Raises OSError."""
        kept, by = f"{path}.schema{schema}", f"ledger: {path} was written by a newer fairlead (schema {schema})"
        try:
            found = _known_part(data)
        except NOT_JSON as e:
            disk.do(partial(os.replace, path, kept))
            self.trouble = f"{by} and cannot be read ({e}); it is kept as {kept}; see `fairlead resume --adopt`"
            return None
        disk.do(partial(_keep, path, kept))
        self.trouble = f"{by}; what this release knows of it counts, and it is kept as {kept}"
        return found


def _schema_of(data: bytes) -> int:
    """Return the schema number of a ledger, or 0 if it cannot be read."""
    try:
        schema = _NEWER.decode(data).get("schema")
    except NOT_JSON:
        return 0
    return schema if isinstance(schema, int) else 0


def _known_part(data: bytes) -> _File:
    """Return a newer ledger without the fields that this release does not know. Raises msgspec's errors."""
    found = _NEWER.decode(data)
    if isinstance(entry := found.get("entry"), dict):
        found["entry"] = {name: value for name, value in entry.items() if name in LedgerEntry.__struct_fields__}
    return msgspec.convert(found, _File)


def _keep(path: str, kept: str) -> None:
    """Give the file a second name, which stays when another file gets the first one. A file of that name is replaced."""
    if not (os.path.exists(kept) and os.path.samefile(path, kept)):
        with suppress(FileNotFoundError):
            os.unlink(kept)
        os.link(path, kept)


def _content(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read(1 << 20)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def machine_id(root: Root) -> str:
    """Return the id of this machine for the ledger: the UUID of the mainboard or instance, else /etc/machine-id, else ""."""
    for path in ("/sys/class/dmi/id/product_uuid", "/etc/machine-id"):
        value = root.value(path)
        if isinstance(value, str):
            return value
    return ""
