"""Reads the machine's clocks. Times of expiry are in CLOCK_BOOTTIME, which goes on during suspend and is never set."""

from __future__ import annotations

import time

from fairlead.host.root import Root
from fairlead.model.facts import Missing

_APART_SECONDS = 0.01
_TRIES = 10


def boottime() -> float:
    """Return the seconds since boot, suspend included (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def both_clocks() -> tuple[float, float]:
    """Return CLOCK_BOOTTIME and the system clock of one moment, both in seconds. If the process is interrupted between the two
    readings, it reads them again, so that nobody takes the interruption for a step of the system clock."""
    readings = []
    for _ in range(_TRIES):
        before, unix, after = boottime(), time.time(), boottime()
        readings.append((after - before, after, unix))
        if after - before < _APART_SECONDS:
            break
    _, boot, unix = min(readings)
    return boot, unix


def asleep() -> float:
    """Return for how many seconds of this boot the machine was suspended. CLOCK_MONOTONIC does not advance in that time."""
    return boottime() - time.monotonic()


def boot_id(root: Root) -> str:
    """Return the random id of this boot (/proc/sys/kernel/random/boot_id), or "" when it cannot be read."""
    value = root.value("/proc/sys/kernel/random/boot_id")
    return "" if isinstance(value, Missing) else value
