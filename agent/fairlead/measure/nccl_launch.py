"""Launches one command of `fairlead nccl measure` with a time limit, alone or beside a GEMM loop, and keeps what it prints.

The command runs in a process group of its own. The group is ended at the time limit, and if this program is interrupted. srun
passes SIGTERM on to its tasks.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from fairlead.errors import HostError

GRACE_SECONDS = 15.0
OUTPUT_MAX_BYTES = 64 << 20
BESIDE_READY_SECONDS = 300.0
RATES_MAX = 100_000
OWN = "FAIRLEAD_NCCL_LAUNCH"  # this variable marks the processes of a launch, so that a later run recognises them
_RECORDED = 'echo $$ >"$0.group" && exec /bin/sh -c "$1"'
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgtp]?)flop(?:s|/s)\b", re.IGNORECASE)
_FACTOR = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


class EndedLaunch(Struct, frozen=True, kw_only=True):
    """Holds how a launch ended. status: its exit status (negative: the signal), or None if it was ended at the time limit.
    rates: what the GEMM loop beside it printed while it ran, in flop/s."""

    status: int | None
    seconds: float
    rates: tuple[float, ...] = ()


def rates(text: str) -> list[float]:
    """Return each rate in a text, such as ``(431000 Gflop/s)`` of gpu_burn, in flop/s."""
    found = (float(m[1]) * _FACTOR[m[2].lower()] for m in _RATE.finditer(text))
    return [rate for rate in found if rate > 0]


def launch(command: str, environment: Mapping[str, str], base: str, seconds: float, *, beside: str = "") -> EndedLaunch:
    """Run a shell command, write its output to ``base``.out and ``base``.err, and return how it ended.

    beside: the command of a GEMM loop. It is started first, and ended when the launch has ended. Raises HostError if the loop
    prints no rate or ends.
    """
    loop = _GemmLoop(beside, environment, base) if beside else None
    try:
        if loop is not None:
            loop.wait_until_ready()
        with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
            began = time.monotonic()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _RECORDED, base, command],
                env={**environment, OWN: base},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                status = _wait(process, began + seconds, base)
            finally:
                end_group(process)
                with suppress(OSError):
                    os.unlink(f"{base}.group")
        ended = time.monotonic()
        found = loop.rates_between(began, ended) if loop is not None else ()
        return EndedLaunch(status=status, seconds=ended - began, rates=found)
    finally:
        if loop is not None:
            loop.end()


def still_running(base: str) -> int | None:
    """Return the process group of a launch that a killed run has left, or None if it has ended."""
    try:
        with open(f"{base}.group", encoding="ascii") as file:
            pid = int(file.read(20))
        with open(f"/proc/{pid}/environ", "rb") as own:
            return pid if f"{OWN}={base}".encode() in own.read().split(b"\0") else None
    except (OSError, ValueError):
        return None


def _wait(process: subprocess.Popen[bytes], deadline: float, base: str) -> int | None:
    """Return the exit status, or None after the time limit or if the command writes without end."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or os.path.getsize(f"{base}.out") > OUTPUT_MAX_BYTES:
            return None
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, 1.0))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command and all its processes. A group that has ended is left alone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _GemmLoop:
    """Runs the GEMM loop, and records each rate that it prints, with the time."""

    def __init__(self, command: str, environment: Mapping[str, str], base: str) -> None:
        self._seen: list[tuple[float, float]] = []
        self._ready = threading.Event()
        self._name = f"{base}.beside"
        with open(self._name, "wb") as err:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        rest = ""
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            *lines, rest = re.split(r"[\r\n]", rest[-4096:] + data.decode("utf-8", "replace"))
            now = time.monotonic()
            for line in lines:
                self._seen += [(now, rate) for rate in rates(line)]
            if len(self._seen) > RATES_MAX:
                del self._seen[: RATES_MAX // 2]
            if self._seen:
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> None:
        if not self._ready.wait(BESIDE_READY_SECONDS) or self._process.poll() is not None or not self._seen:
            raise HostError(
                f"the GEMM loop printed no rate such as 431000 Gflop/s: see {self._name}", hint="let it print a line every second"
            )

    def rates_between(self, began: float, ended: float) -> tuple[float, ...]:
        if self._process.poll() is not None:
            raise HostError(f"the GEMM loop ended before the launch beside it: see {self._name}", hint="let it run longer")
        return tuple(rate for when, rate in list(self._seen) if began <= when <= ended)

    def end(self) -> None:
        end_group(self._process)
        self._reader.join(GRACE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
