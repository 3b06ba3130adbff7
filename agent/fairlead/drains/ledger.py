"""Keeps the ledger on persistent storage: what fairlead has done to its node in Slurm, saved before it is done.

A ledger has at most one entry, because a node has one drain. After an agent was killed, the next one finds here what the first
was about to write, and with which text. A running agent finds here what it has sent without an answer. slurmctld may still
carry that out late, after other writes.
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


LATE_SECONDS = 120.0  # slurmctld may carry out a client's request after the client gave up; longer than any site's MessageTimeout
LATE_MAX = 8
LOCK_SECONDS = 90.0  # longer than any protocol takes when slurmctld answers each call just before its deadline
LOCK_POLL_SECONDS = 0.01


class Phase(StrEnum):
    """Says how far a drain has come.

    draining: the drain may or may not have been written, or the write may still arrive. drained: a reading has shown our
    drain. resuming: the same as draining, for the resume. undoing: the agent resumes because the drain went past a limit.
    taken: a person has written a reason in place of ours; when they lift that drain, it is an acknowledgement too.
    """

    DRAINING = "draining"
    DRAINED = "drained"
    RESUMING = "resuming"
    UNDOING = "undoing"
    TAKEN = "taken"


class RebootState(StrEnum):
    """Says what is known of a reboot of the drained node.

    none: slurmctld has said nothing of a reboot. asked: slurmctld will reboot the node, or waits for its reboot. over: the
    reason has the mark of a reboot, and the drain has outlasted that reboot.
    """

    NONE = ""
    ASKED = "asked"
    OVER = "over"


class LedgerEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes one drain. ``since``: Unix seconds at which the drain was intended. ``machine``: the machine that intended it.

    Four fields are times in Unix seconds. sent: when a drain with the text of ``token`` was last about to be written, or 0
    once it was read back. unanswered: the same for a drain with a text of ``late``. lifting: when a resume was last about to
    be written, or 0 once it was read back. written: when slurmctld wrote the drain that is on the node, by its own clock, or 0
    when that is not known.

    These fields describe the last reading that showed the drain, ours or a person's in its place. seen: its time, by
    slurmctld's clock or somewhat earlier. boot: this node's boot id. reboot: what slurmctld said of a reboot. known: the names
    of the evidence that the agent knew before that reading (``policy.policy_state.identity``). A person who lifts the drain
    acknowledges them.

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
        """Say whether the node is drained by us, as far as the ledger knows."""
        return self.phase in (Phase.DRAINED, Phase.RESUMING, Phase.UNDOING)

    @property
    def manual(self) -> bool:
        """Say whether a person drained the node through fairlead. The agent does not lift such a drain."""
        return any(token.check == MANUAL for token in self.texts)

    @property
    def texts(self) -> tuple[Token, ...]:
        """Return every text of ours that may be on the node, now or later."""
        return (self.token, *(t for t in self.late if t != self.token))

    def intend(self, token: Token, now: float) -> LedgerEntry:
        """Return the entry of a drain that is about to be written, with ``token`` as its text. ``now``: Unix seconds.

        If the entry already intends a drain with the same words, that drain is written again with its old token. Every other
        text that may still arrive stays known as ours.
        """
        sent = max(self.sent, self.unanswered)
        if self.token not in self.late and self.token == replace(token, token=self.token.token):
            return replace(self, phase=Phase.DRAINING, sent=now, unanswered=sent, **_UNSEEN)
        late = self.texts[:LATE_MAX]
        changes = {"token": token, "since": now, "sent": now, "unanswered": sent, "late": late}
        return replace(self, phase=Phase.DRAINING, **changes, **_UNSEEN)

    def turned_to(self, token: Token) -> LedgerEntry:
        """Return the entry where ``token``, one of ``late``, is on the node. The text that was sent last may still arrive."""
        unanswered = max(self.sent, self.unanswered)
        return replace(self, token=token, late=self.texts[: LATE_MAX + 1], sent=0.0, unanswered=unanswered)

    def late_lift(self, now: float) -> bool:
        """Say whether a resume of ours that was sent and not answered may still arrive. ``now``: Unix seconds."""
        return abs(now - self.lifting) < LATE_SECONDS

    def dropped(self, now: float) -> LedgerEntry | None:
        """Return what the ledger keeps when the node is not drained by us any more: None, or an entry while a write of ours
        may still arrive. ``now``: Unix seconds."""
        sent = max(self.sent, self.unanswered)
        if abs(now - max(sent, self.lifting)) >= LATE_SECONDS:
            return None
        changes = {"phase": Phase.DRAINING, "late": self.texts[:LATE_MAX], "sent": 0.0, "unanswered": sent}
        return replace(self, **changes, **_UNSEEN, known=())


#: These changes to an entry say that no reading has shown its drain yet.
_UNSEEN: dict[str, Any] = {"written": 0, "seen": 0, "boot": "", "reboot": RebootState.NONE, "freed": False, "theirs": ""}


class _File(Struct, frozen=True, kw_only=True):
    schema: int = 1
    sequence: int = 0
    entry: LedgerEntry | None = None


#: It is made once, at import: msgspec learns a type at its first use, and crashes when several threads do that at the same time.
_DECODER = msgspec.json.Decoder(_File)


class Ledger:
    """Keeps the ledger of one node. When ``state_dir`` cannot be written, ``run_dir`` (tmpfs) keeps the ledger over a restart
    of the agent, but not over a reboot. ``trouble`` then says so in one line.

    An entry of another node name or of another machine (a cloned disk) is not ours and is not used.
    """

    def __init__(self, state_dir: str, run_dir: str, *, node: str, machine: str = "", disk: Storage | None = None) -> None:
        self._disks = (disk or Direct(), Direct())  # run_dir is memory
        self.folders = (state_dir, run_dir)
        self.node = node
        self.machine = machine
        self.trouble = ""
        self._sequence = 0
        self._memory: LedgerEntry | None = None
        self._saved_somewhere = True

    @contextmanager
    def locked(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Keep other processes (the commands drain, resume, hold) out of the ledger inside the ``with`` block. There is no
        lock where no file can be made.

        Raises SlurmUnavailable when another process has kept the lock for ``seconds``; somebody may have stopped it with
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
        """Return the entry that was saved last. A file that cannot be decoded is moved aside. Its drain then counts as an
        orphan, and commands show it as one."""
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
        """Replace the entry; it is on the disk when this returns. When no file can be written, the entry is kept in memory and
        ``trouble`` says so."""
        # The time of day is above the number in a file on a disk that has not answered since the start.
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
            return _DECODER.decode(disk.do(partial(_content, path)))
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
