"""A kernel's clocks and log for one process, simulated by a preloaded library: what a test cannot do to this machine.

    clocks = Clocks(folder / "clocks");  clocks.suspended(3600);  clocks.step(-86400)
    log = KernelLog(folder / "kmsg");    log.say("NVRM: ...");    log.flood(100000)

``environment(...)`` is what the process needs. The log is a ring of SLOTS records: what is not read in time is lost, and the
next read says EPIPE (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.c")
SLOTS, SLOT_BYTES = 1024, 512
_HEAD = 16
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


def build(folder: Path) -> Path:
    """The library, compiled once for its source."""
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(FLAGS).encode()).hexdigest()[:16]
    library = folder / f"libsimkernel-{digest}.so"
    if not library.exists():
        fresh = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", *FLAGS, "-o", str(fresh), str(SOURCE)], check=True, timeout=120)
        fresh.rename(library)
    return library


def environment(
    library: Path, *, clocks: Clocks | None = None, log: KernelLog | None = None, death: Death | None = None
) -> dict[str, str]:
    """For a process that is to see them."""
    found = {"LD_PRELOAD": os.fspath(library)}
    if clocks is not None:
        found["FAIRLEAD_SIM_CLOCKS"] = os.fspath(clocks.path)
    if log is not None:
        found["FAIRLEAD_SIM_KMSG"] = os.fspath(log.path)
    if death is not None:
        found["FAIRLEAD_SIM_KILL"] = os.fspath(death.path)
    return found


class Death:
    """SIGKILL before a given one of the calls that change what is on a disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.never()

    def after(self, count: int) -> None:
        """So many more are made."""
        self._write(count)

    def never(self) -> None:
        self._write(-1)

    def _write(self, count: int) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, struct.pack("q", count), 0)
        finally:
            os.close(fd)


class Clocks:
    """How far a process's clocks are from the machine's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.realtime = self.boottime = 0.0
        self._write()

    def step(self, seconds: float) -> None:
        """Somebody sets the time of day."""
        self.realtime += seconds
        self._write()

    def suspended(self, seconds: float) -> None:
        """The machine has slept so long: time of day and CLOCK_BOOTTIME went on, CLOCK_MONOTONIC did not."""
        self.realtime += seconds
        self.boottime += seconds
        self._write()

    def _write(self) -> None:
        data = struct.pack("qq", int(self.realtime * 1e9), int(self.boottime * 1e9))
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)


class KernelLog:
    """The writing end of a ring of kernel records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            os.mkfifo(path)
        fd = os.open(f"{path}.ring", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, _HEAD + SLOTS * SLOT_BYTES)
        self._ring = mmap.mmap(fd, _HEAD + SLOTS * SLOT_BYTES)
        os.close(fd)
        self._news = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._next = 0

    def say(self, *texts: str) -> None:
        """Records of the kernel's own, with one word of news for all."""
        for text in texts:
            oldest = max(0, self._next + 1 - SLOTS)
            struct.pack_into("Q", self._ring, 0, oldest)  # first gone, then overwritten
            microseconds = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
            record = f"6,{self._next},{microseconds},-;{text}\n".encode()[: SLOT_BYTES - 1] + b"\0"
            at = _HEAD + self._next % SLOTS * SLOT_BYTES
            self._ring[at : at + len(record)] = record
            self._next += 1
            struct.pack_into("Q", self._ring, 8, self._next)
        try:
            os.write(self._news, b"!")
        except BlockingIOError:
            pass  # there is plenty already

    def flood(self, count: int, text: str = "usb 1-1: device descriptor read/64, error -71") -> None:
        """So many records, as fast as they can be made."""
        for start in range(0, count, 100):
            self.say(*(f"{text} {n}" for n in range(start, min(count, start + 100))))

    def close(self) -> None:
        os.close(self._news)
        self._ring.close()
