"""Runs programs that may hang or crash, with a deadline. What this process starts ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import linux

PROJECT = Path(__file__).resolve().parents[2]
KILLED_SECONDS = 2.0  # how long a killed process may take to end; one in state D does not end


@dataclass(frozen=True)
class Ended:
    """How a program ended. ``code``: as subprocess has it, None where it was killed at its deadline."""

    code: int | None
    output: str
    errors: str

    @property
    def how(self) -> str:
        """Say how it ended in words, with its last line on stderr."""
        last = (self.errors.strip().splitlines() or [""])[-1]
        if self.code is None:
            return "had not ended at its deadline and was killed"
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended with {self.code}" + (f": {last}" if last else "")


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this checkout with this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return this process's environment, in which Python finds the package and the tests."""
    return os.environ | {"PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}", "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def started(command: Sequence[str], *, errors: int | None = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a process group of its own, and kill the group at the end."""
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment(), text=True, start_new_session=True, preexec_fn=linux.die_with_parent,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS)


def ended(command: Sequence[str], seconds: float) -> Ended:
    """Run a program to its end or its deadline. Raises OSError where it cannot be started."""
    with started(command) as process:
        return after(process, seconds)


def after(process: subprocess.Popen[str], seconds: float) -> Ended:
    """Wait for the end of a process, and kill its group at the deadline."""
    try:
        output, errors = process.communicate(timeout=max(0.1, seconds))
        return Ended(process.returncode, output, errors or "")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        output, errors = process.communicate(timeout=KILLED_SECONDS)
        return Ended(None, output, errors or "")
    except subprocess.TimeoutExpired:
        return Ended(None, "", "SIGKILL does not end it: the driver sleeps uninterruptibly")
