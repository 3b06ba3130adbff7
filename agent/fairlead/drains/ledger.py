"""Keeps the ledger: what fairlead has done to its node in Slurm, on persistent storage, saved before it is done.

It has one entry at most, as a node has one drain. An agent that was killed finds here what it was about to write, and with what
text. One that runs finds what it has sent and had no answer to: slurmctld may carry that out late, after other writes.
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


LATE_SECONDS = 120.0  # slurmctld may still carry out what a client sent that gave up: longer than any site's MessageTimeout
LATE_MAX = 8
LOCK_SECONDS = 90.0  # longer than any protocol takes with a slurmctld that just meets the deadline of every call
LOCK_POLL_SECONDS = 0.01


class Phase(StrEnum):
    """Says how far a drain has come.

    draining: the write may or may not have happened, or may yet arrive. drained: read back as ours. resuming: as draining,
    for the way back. undoing: resuming because the drain went past the budget. taken: a person has put words of theirs in
    place of ours; when they lift it, that is an acknowledgement too."""

    DRAINING = "draining"
    DRAINED = "drained"
    RESUMING = "resuming"
    UNDOING = "undoing"
    TAKEN = "taken"


class RebootState(StrEnum):
    """Says what is known of a reboot of the drained node.

    none: slurmctld has said nothing of one. asked: it is to reboot the node, or waits for it. over: the reason has the mark
    of a reboot that the drain has outlasted."""

    NONE = ""
    ASKED = "asked"
    OVER = "over"


class LedgerEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes one drain. ``since`` is Unix time of the intent, in seconds; ``machine`` the machine it was made on.

    sent: when a drain with this text was last about to be written, 0 once it was read back. unanswered: when one with a
    text of ``late`` was. lifting: when a resume was last about to be written, 0 once it was read back. All Unix time.
    written: when the drain on the node was written, by slurmctld's clock; 0 where that is not known.

    Of the last reading that showed it on the node, ours or a person's in its place: seen, its time, by slurmctld's clock or
    somewhat earlier; boot, this node's boot id; reboot, what slurmctld said of a reboot; known, the names of the evidence
    that the agent knew before it (``policy.policy_state.identity``), which is what a person acknowledges who lifts the drain.
    freed: a person has lifted it with `fairlead resume`. theirs: words of a person that our resume has lifted by mistake
    and that are to be put back.
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
        """Say whether the node is drained by us, as far as known."""
        return self.phase in (Phase.DRAINED, Phase.RESUMING, Phase.UNDOING)

    @property
    def manual(self) -> bool:
        """Say whether a person drained it through fairlead; the agent does not lift that."""
        return any(token.check == MANUAL for token in self.texts)

    @property
    def texts(self) -> tuple[Token, ...]:
        """Return every text of ours that may be on the node, now or later."""
        return (self.token, *(t for t in self.late if t != self.token))

    def intend(self, token: Token, now: float) -> LedgerEntry:
        """Return the entry of a drain about to be written. An intent that may not have been written yet is
        repeated with its own text where that still says the same; every other text that may still arrive stays known as ours."""
        sent = max(self.sent, self.unanswered)
        if self.token not in self.late and self.token == replace(token, token=self.token.token):
            return replace(self, phase=Phase.DRAINING, sent=now, unanswered=sent, **_UNSEEN)
        late = self.texts[:LATE_MAX]
        changes = {"token": token, "since": now, "sent": now, "unanswered": sent, "late": late}
        return replace(self, phase=Phase.DRAINING, **changes, **_UNSEEN)

    def turned_to(self, token: Token) -> LedgerEntry:
        """Return the entry where another of ``late`` is on the node; the text that was sent last may still arrive."""
        unanswered = max(self.sent, self.unanswered)
        return replace(self, token=token, late=self.texts[: LATE_MAX + 1], sent=0.0, unanswered=unanswered)

    def late_lift(self, now: float) -> bool:
        """Say whether a resume of ours, sent before and not answered, may still arrive."""
        return abs(now - self.lifting) < LATE_SECONDS

    def dropped(self, now: float) -> LedgerEntry | None:
        """Return what is left of it when the node is not drained by us: None, unless something sent may still arrive."""
        sent = max(self.sent, self.unanswered)
        if abs(now - max(sent, self.lifting)) >= LATE_SECONDS:
            return None
        changes = {"phase": Phase.DRAINING, "late": self.texts[:LATE_MAX], "sent": 0.0, "unanswered": sent}
        return replace(self, **changes, **_UNSEEN, known=())


#: What is known of a drain that no reading has shown yet, as changes to an entry.
_UNSEEN: dict[str, Any] = {"written": 0, "seen": 0, "boot": "", "reboot": RebootState.NONE, "freed": False, "theirs": ""}


class _File(Struct, frozen=True, kw_only=True):
    schema: int = 1
    sequence: int = 0
    entry: LedgerEntry | None = None


#: Made here, once: msgspec learns a type at its first use, and several threads that use it first at the same time may crash it.
_DECODER = msgspec.json.Decoder(_File)


class Ledger:
    """Keeps the ledger of one node. Where ``state_dir`` cannot be written, ``run_dir`` (tmpfs) keeps it over a restart of the
    agent, though not over a reboot; ``trouble`` says so in one line.

    An entry of another node name or machine (a cloned disk) is not ours and is not read.
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
        """Keep other processes (the commands drain, resume, hold) off until done. Where no file can be made: no lock.

        Raises SlurmUnavailable when another one has held it for so long: it was stopped, with Ctrl-Z perhaps.
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
        """Load the entry that was saved last. A file that cannot be decoded is moved aside: its drain becomes an
        orphan, visible as such."""
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
        """Replace the entry, on disk when this returns; what no file takes is kept in memory and said in ``trouble``."""
        # by the time of day, so that it is above that of a file on a disk that has not answered since the start
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
    """Return what this machine is, for the ledger: the board's or instance's UUID, else /etc/machine-id, else ""."""
    for path in ("/sys/class/dmi/id/product_uuid", "/etc/machine-id"):
        value = root.value(path)
        if isinstance(value, str):
            return value
    return ""
