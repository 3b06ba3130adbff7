"""Reads the machine's clocks. Times of expiry are in CLOCK_BOOTTIME, which goes on during suspend and is never set."""

from __future__ import annotations

import time

from fairlead.host.root import Root
from fairlead.model.facts import Missing


def boottime() -> float:
    """Return the seconds since boot, suspend included (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def asleep() -> float:
    """Return for how many seconds of this boot the machine was suspended. CLOCK_MONOTONIC does not advance in that time."""
    return boottime() - time.monotonic()


def boot_id(root: Root) -> str:
    """Return the random id of this boot (/proc/sys/kernel/random/boot_id), or "" when it cannot be read."""
    value = root.value("/proc/sys/kernel/random/boot_id")
    return "" if isinstance(value, Missing) else value
