"""The machine's clocks. Everything that expires is in CLOCK_BOOTTIME: it goes on during suspend and is never set."""

from __future__ import annotations

import time

from fairlead.host.root import Root
from fairlead.model.facts import Missing


def boottime() -> float:
    """Seconds since boot, suspend included (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def asleep() -> float:
    """Seconds of this boot that the machine was suspended: CLOCK_MONOTONIC stands still then."""
    return boottime() - time.monotonic()


def boot_id(root: Root) -> str:
    """The random id of this boot (/proc/sys/kernel/random/boot_id), or "" when it cannot be read."""
    value = root.value("/proc/sys/kernel/random/boot_id")
    return "" if isinstance(value, Missing) else value
