"""Stores people's requests to the agent in a spool. Each request is one file, which is written whole. The agent applies the
requests in the order in which they were made.

The spool is ``STATE_DIR/requests``, or ``RUN_DIR/requests`` if the disk cannot be written. A command writes its request to the
spool before it answers the person. So the request is applied whether the agent runs, starts or is stopped. The agent applies
a request, saves the state with the request's id, and only then removes the file. An agent that is killed in between finds the
file again. It does not apply a request twice, because it knows the id.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from fairlead.daemon.requests.audit_trail import Trail
from fairlead.errors import DataError, HostError
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.host.atomic_file import write_atomic
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.policy import PolicyState
from fairlead.policy.state_requests import BYTES_MAX, Ack, Clear, Request, Undo, apply, decode, encode

FOLDER = "requests"
WAITING_MAX = 1000  # requests that wait for an agent


def put(state_dir: str, run_dir: str, request: Request) -> str:
    """Write a request to the spool, and return the file's path when the file is on the disk. Raises HostError if neither folder
    can be written."""
    troubles = []
    for base in (state_dir, run_dir):
        folder = os.path.join(base, FOLDER)
        path = os.path.join(folder, f"{time.time_ns():020d}-{request.id}.json")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if len(os.listdir(folder)) >= WAITING_MAX:
                troubles.append(f"{folder}: {WAITING_MAX} requests wait already: no agent has taken them")
                continue
            write_atomic(path, encode(request), mode=0o600, sync=True)
        except OSError as e:
            troubles.append(f"{path}: {e.strerror}")
        else:
            return path
    raise HostError("; ".join(troubles), hint="the agent did not get the request; make room and ask again")


class Requests:
    """Applies the requests in the spool for the agent."""

    def __init__(self, state_dir: str, run_dir: str, trail: Trail, disk: Storage | None = None) -> None:
        self._disk = disk or Direct()
        self.folders = tuple(os.path.join(base, FOLDER) for base in (state_dir, run_dir))
        self.trail = trail
        self._refused: set[str] = set()

    def take(
        self, state: PolicyState, history: History, boot_id: str, beside: Callable[[], object] = lambda: None
    ) -> PolicyState:
        """Apply the waiting requests, save the new state and return it. Without a new request, return ``state`` itself.

        If the history cannot be written, the files of the requests stay for the next start. ``beside``: something else to read
        from the same disk in the same access, because each access is a change to another thread and back.
        """
        found = self._found(beside)
        if not found:
            return state
        new = [r for _, r in found if r.id not in state.requests]
        made = state
        for request in new:
            if isinstance(request, Clear):
                request = _dated(request, history, boot_id)  # noqa: PLW2901
                history.forget(request.devices, everything=request.everything)
            made = apply(made, request)
        if new:
            history.save_state(made)
        history.commit()
        if history.on_disk:
            with suppress(OSError):  # if the disk does not answer, the files are found again, but their ids are then known
                self._disk.do(lambda: _remove(path for path, _ in found))
        for request in new:
            self._tell(request, history)
        return made

    def _found(self, beside: Callable[[], object]) -> list[tuple[str, Request]]:
        """Return the waiting requests with their paths, in the order in which they were made. A file that is not a request from
        root is renamed and reported once."""
        found: list[tuple[str, Request]] = []
        wrong: list[tuple[str, str]] = []

        def of_state_dir() -> tuple[list[tuple[str, Request]], list[tuple[str, str]]]:
            beside()
            return _waiting(self.folders[0])

        for disk, act in ((self._disk, of_state_dir), (Direct(), partial(_waiting, self.folders[1]))):
            with suppress(OSError):
                read, refused = disk.do(act)
                found += read
                wrong += refused
        for path, why in wrong:
            self._refuse(path, why)
        return sorted(found, key=lambda each: os.path.basename(each[0]))

    def _refuse(self, path: str, why: str) -> None:
        if path not in self._refused:
            self._refused.add(path)
            log.line(log.ERROR, "request refused", file=path, error=why)
            self.trail.agent("request refused", detail=f"{path}: {why}")

    def _tell(self, request: Request, history: History) -> None:
        what, detail = _words(request)
        log.line(log.NOTICE, what, by=request.who, why=request.why, detail=detail)
        history.event(what, f"{detail} ({request.who}: {request.why})")
        self.trail.agent(what, detail=detail, why=request.why, args={"for": request.who, "request": request.id})


def _waiting(folder: str) -> tuple[list[tuple[str, Request]], list[tuple[str, str]]]:
    """Return the requests of a folder with their paths, and the path of each file that is not a valid request, with the reason.
    Such a file is renamed to ``*.bad``. Raises OSError if the folder cannot be listed."""
    found: list[tuple[str, Request]] = []
    wrong: list[tuple[str, str]] = []
    for path in (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")):
        try:
            found.append((path, _read(path)))
        except (OSError, DataError) as e:
            wrong.append((path, getattr(e, "strerror", None) or str(e)))
            with suppress(OSError):
                os.replace(path, path + ".bad")
    return found, wrong


def _read(path: str) -> Request:
    """Read one request. Raises OSError, DataError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()):
            raise DataError("not a regular file of root's")
        return decode(os.read(fd, BYTES_MAX + 1))
    finally:
        os.close(fd)


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _dated(request: Clear, history: History, boot_id: str) -> Clear:
    """Return the request with a sequence number. If it has none, add that of the last kernel record that the agent has read."""
    if request.sequence >= 0:
        return request
    last = max((r.sequence for r in history.past().records), default=-1)
    return Clear(
        id=request.id,
        who=request.who,
        why=request.why,
        devices=request.devices,
        everything=request.everything,
        boot_id=request.boot_id or boot_id,
        sequence=last,
        boot_seconds=request.boot_seconds,
    )


def _words(request: Request) -> tuple[str, str]:
    match request:
        case Ack(evidence=evidence):
            return "acknowledged", ", ".join(evidence)
        case Undo(evidence=evidence):
            return "acknowledgement undone", ", ".join(evidence)
        case Clear(devices=devices, everything=everything):
            return "closed as repaired", "the whole node" if everything else ", ".join(devices)
