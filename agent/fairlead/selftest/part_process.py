"""Runs each part of the self-test in a process with a time limit, so that a part that hangs or crashes stops no other.

A part writes its rows to a pipe, one line of JSON each. Before it does something that may hang, it says so. A part that is late
is killed together with all processes that it started. A process in state D cannot be killed. Nobody waits for it, and the report
names it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_END_SECONDS = 2.0
_OUTPUT_MAX_BYTES = 4 << 20
_PROGRESS_SECONDS = 2.0

Message = dict[str, Any]


def doing(what: str) -> Message:
    """Return the message in which a part says what it is about to do."""
    return {"doing": what}


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what came of a part. ``rows``: its messages, without those of ``doing``. ``reason``: why it did not end well."""

    rows: tuple[Message, ...]
    state: Literal["done", "hung", "crashed"]
    reason: str = ""
    milliseconds: float = 0.0


def run_part(name: str, seconds: float, work: Callable[[], Iterable[Message]], say: Callable[[str], None]) -> PartResult:
    """Run ``work`` in a child process and return what it has said. Kill it after ``seconds``. ``say`` gets a line of progress
    after two seconds, and again whenever the time has doubled."""
    began = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(work, writing)
    os.close(writing)
    try:
        data, ended = _read(reading, lambda waited: say(f"{name}: {waited:.0f} s, at most {seconds:.0f} s"), began, seconds)
    finally:
        os.close(reading)
        status = _end(pid)
    rows, doing_now = _messages(data)
    took = (time.monotonic() - began) * 1000
    if ended and status == 0:
        return PartResult(rows=rows, state="done", milliseconds=took)
    while_doing = f" while it did this: {doing_now}" if doing_now else ""
    if not ended:
        reason = f"it did not end within {seconds:.0f} s{while_doing}"
        return PartResult(rows=rows, state="hung", reason=reason, milliseconds=took)
    how = signal.Signals(-status).name if -65 < status < 0 else f"status {status}"
    return PartResult(rows=rows, state="crashed", reason=f"its process ended with {how}{while_doing}", milliseconds=took)


def _child(work: Callable[[], Iterable[Message]], writing: int) -> None:
    """Run ``work`` and end this process. A library that prints something prints it to nowhere."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for ended_by in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ended_by, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for message in work():
            _write(writing, msgspec.json.encode(message) + b"\n")
        code = 0
    except Exception as e:  # a bug in one part must not stop the others
        with suppress(OSError):
            _write(writing, msgspec.json.encode({"failed": one_line(f"{type(e).__name__}: {e}", 200)}) + b"\n")
        code = 70
    finally:
        os._exit(code)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(reading: int, say: Callable[[float], None], began: float, seconds: float) -> tuple[bytes, bool]:
    """Return what the child has written, and whether it closed the pipe in time."""
    data = bytearray()
    next_line = _PROGRESS_SECONDS
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    while (waited := time.monotonic() - began) < seconds and len(data) < _OUTPUT_MAX_BYTES:
        if waited >= next_line:
            say(waited)
            next_line *= 2
        if not poller.poll(min(next_line, seconds) * 1000 - waited * 1000 + 1):
            continue
        chunk = os.read(reading, 65536)
        if not chunk:
            return bytes(data), True
        data += chunk
    return bytes(data), False


def _end(pid: int) -> int:
    """Kill the child's whole session, and return the child's status: an exit code, or less than 0 for a signal. Return -99 for a
    child that does not die."""
    end = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):  # a child that has closed its pipe is exiting, and keeps the exit code that it has
        os.killpg(pid, signal.SIGKILL)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return -99
        time.sleep(0.002)


def _messages(data: bytes) -> tuple[tuple[Message, ...], str]:
    """Return the rows, and what the part said last that it does, or "" if a row came after that."""
    rows: list[Message] = []
    now = ""
    for line in data.splitlines():
        with suppress(*NOT_JSON):
            message = msgspec.json.decode(line)
            if isinstance(message, dict):
                now = str(message.get("doing", ""))
                if "doing" not in message:
                    rows.append(message)
    return tuple(rows), now


@contextmanager
def all_ended() -> Iterator[list[str]]:
    """Yield a list. At the end of the block, kill every process that the block started and left, also those of its children, and
    put those that cannot be killed on the list. SIGTERM interrupts the block as SIGINT does."""
    left: list[str] = []
    before = _children()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
    try:
        yield left
    finally:
        left += [_name(pid) for pid in _kill_all(before)]
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if is_main:
            signal.signal(signal.SIGTERM, handler)


def _kill_all(before: set[int]) -> list[int]:
    end = time.monotonic() + _END_SECONDS
    while (remaining := _children() - before) and time.monotonic() < end:
        for pid in remaining:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    return sorted(remaining)


def _children() -> set[int]:
    """Return the children of this process (proc(5), /proc/PID/stat, the second field after the name)."""
    found = set()
    for name in os.listdir("/proc"):
        with suppress(OSError, IndexError, ValueError):
            if name.isdigit():
                with open(f"/proc/{name}/stat", "rb") as f:
                    if int(f.read(1024).rpartition(b")")[2].split()[1]) == os.getpid():
                        found.add(int(name))
    return found


def _name(pid: int) -> str:
    with suppress(OSError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as f:
            state = f.read(1024).rpartition(b")")[2].split()[0].decode("ascii", "replace")
        return f"a process in state {state}"
    return "a process"
