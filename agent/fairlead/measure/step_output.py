"""Runs many commands at once, and reads a bounded part of what each writes. Each command has its own deadline."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from msgspec import Struct

OUT_MAX = 1 << 20  # bytes of standard output, and of standard error, that are kept of one command
KILL_SECONDS = 20.0  # from SIGTERM to SIGKILL; srun needs some seconds to end a step
POLL_SECONDS = 0.5
SPARE_FILES = 64  # files that this process may open beside two pipes for each command


class StepOutput(Struct, kw_only=True):
    """Holds what a command wrote, its exit status (None if it did not start) and how long it ran. late: it met its deadline. cut:
    it wrote more than is kept."""

    out: bytes = b""
    err: bytes = b""
    status: int | None = None
    seconds: float = 0.0
    late: bool = False
    cut: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        return self.out.decode("utf-8", "replace"), self.err.decode("utf-8", "replace")


class _Running(Struct, kw_only=True):
    process: subprocess.Popen[bytes]
    output: StepOutput
    began: float
    term_at: float
    kill_at: float


def run_all(
    commands: Mapping[str, Sequence[str]],
    *,
    seconds: float,
    environment: Mapping[str, str],
    stopped: Callable[[], bool] = lambda: False,
    ended: Callable[[str, StepOutput], None] = lambda name, output: None,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, StepOutput]:
    """Run the commands at once, and return what each wrote, by its name.

    stopped: if it returns True, all commands are ended. ended: is called with each command that has ended. waiting: is called
    twice a second. The commands are ended if this function raises an error.
    """
    _allow_files(len(os.listdir("/proc/self/fd")) + 2 * len(commands) + SPARE_FILES)
    running: dict[str, _Running] = {}
    found: dict[str, StepOutput] = {}
    selector = selectors.DefaultSelector()
    try:
        for name, command in commands.items():
            found[name] = output = StepOutput()
            try:
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C must reach this program only, which then ends the steps
                )
            except OSError as e:
                output.err = f"{command[0]}: {e.strerror}".encode()
                ended(name, output)
                continue
            now = time.monotonic()
            running[name] = _Running(
                process=process, output=output, began=now, term_at=now + seconds, kill_at=now + seconds + KILL_SECONDS
            )
            for stream, kind in ((process.stdout, "out"), (process.stderr, "err")):
                assert stream is not None  # noqa: S101  # both are pipes
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, (name, kind))
        _watch(running, selector, stopped, ended, waiting)
    finally:
        for each in running.values():
            _signal(each.process, signal.SIGKILL)
            each.process.wait()
            for stream in (each.process.stdout, each.process.stderr):
                if stream is not None:
                    stream.close()
        selector.close()
    return found


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files, which is 1,024 on most hosts. 512 pairs have as many pipes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard))


def _watch(
    running: dict[str, _Running],
    selector: selectors.BaseSelector,
    stopped: Callable[[], bool],
    ended: Callable[[str, StepOutput], None],
    waiting: Callable[[], None],
) -> None:
    while running:
        for key, _ in selector.select(POLL_SECONDS):
            name, kind = key.data
            _read(running[name].output, kind, key.fileobj, selector)  # type: ignore[arg-type]
        now, stop = time.monotonic(), stopped()
        for name, each in list(running.items()):
            if each.process.poll() is not None:
                for stream, kind in ((each.process.stdout, "out"), (each.process.stderr, "err")):
                    if stream is not None and not stream.closed:
                        _read(each.output, kind, stream, selector, last=True)
                each.output.status, each.output.seconds = each.process.returncode, now - each.began
                del running[name]
                ended(name, each.output)
            elif now >= each.kill_at:
                _signal(each.process, signal.SIGKILL)
            elif (stop or now >= each.term_at) and not each.output.late:
                each.output.late = True
                each.kill_at = min(each.kill_at, now + KILL_SECONDS)
                _signal(each.process, signal.SIGTERM)
        waiting()


def _read(output: StepOutput, kind: str, stream: IO[bytes], selector: selectors.BaseSelector, *, last: bool = False) -> None:
    """Read what there is. What is beyond the limit is read and dropped, so that the command does not block. At the end the
    stream is closed."""
    chunk: bytes | None = None
    with suppress(BlockingIOError):
        for _ in range(64 if last else 1):  # a child of the command may hold the pipe open and write for ever
            chunk = os.read(stream.fileno(), 1 << 16)
            had = getattr(output, kind)
            room = OUT_MAX - len(had)
            output.cut |= len(chunk) > room
            setattr(output, kind, had + chunk[:room])
            if not chunk:
                break
    if last or chunk == b"":
        with suppress(KeyError):
            selector.unregister(stream)
        stream.close()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the command and its children, which are in a session of their own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
