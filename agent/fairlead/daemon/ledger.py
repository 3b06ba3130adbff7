"""The ledger: what this agent has done to its node in Slurm, on persistent storage, saved before it is done.

One entry at most: a node has one drain. A killed agent finds here what it was about to write, and with what text.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec
from msgspec import Struct

from fairlead.daemon.publish import write_atomic
from fairlead.policy.ownership import Token

FILE = "ledger.json"


class Phase(StrEnum):
    """draining: the write may or may not have happened. drained: read back as ours. resuming: as draining, for the way
    back. undoing: resuming because the drain went past the budget."""

    DRAINING = "draining"
    DRAINED = "drained"
    RESUMING = "resuming"
    UNDOING = "undoing"


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One drain. ``since`` is Unix time of the intent, in seconds; ``machine`` the machine it was made on."""

    node: str
    phase: Phase
    token: Token
    since: float
    machine: str = ""


class _File(Struct, frozen=True, kw_only=True):
    schema: int = 1
    sequence: int = 0
    entry: Entry | None = None


class Ledger:
    """The ledger of one node. Where ``state_dir`` cannot be written, ``run_dir`` (tmpfs) keeps it over a restart of the
    agent, though not over a reboot; ``trouble`` says so in one line.

    An entry of another node name or machine (a cloned disk) is not ours and is not read.
    """

    def __init__(self, state_dir: str, run_dir: str, *, node: str, machine: str = "") -> None:
        self.folders = (state_dir, run_dir)
        self.node = node
        self.machine = machine
        self.trouble = ""
        self._sequence = 0
        self._memory: Entry | None = None
        self._saved_somewhere = True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes (the commands drain, resume, hold) off until done. Where no file can be made: no lock."""
        try:
            lock = os.open(os.path.join(self.folders[1], "ledger.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def load(self) -> Entry | None:
        """The entry that stands. A file that cannot be decoded is moved aside: its drain becomes an orphan, visible as such."""
        files = [file for folder in self.folders if (file := self._read(os.path.join(folder, FILE))) is not None]
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

    def save(self, entry: Entry | None) -> None:
        """Replace the entry, on disk when this returns; what no file takes is kept in memory and said in ``trouble``."""
        self._sequence += 1
        self._memory = entry
        data = msgspec.json.encode(_File(sequence=self._sequence, entry=entry)) + b"\n"
        errors = []
        for folder in self.folders:
            path = os.path.join(folder, FILE)
            try:
                write_atomic(path, data, mode=0o600, sync=True)
            except OSError as e:
                errors.append(f"{path}: {e.strerror}")
            else:
                break
        self.trouble = f"ledger: {'; '.join(errors)}" if errors else ""

    def _read(self, path: str) -> _File | None:
        try:
            with open(path, "rb") as f:
                return msgspec.json.decode(f.read(1 << 20), type=_File)
        except FileNotFoundError:
            return None
        except OSError as e:
            self.trouble = f"ledger: {path}: {e.strerror}"
            return None
        except msgspec.DecodeError as e:
            self.trouble = f"ledger: {path} is damaged and was moved aside ({e}); see `fairlead resume --adopt`"
            try:
                os.replace(path, path + ".bad")
            except OSError:
                pass
            return None
