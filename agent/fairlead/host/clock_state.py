"""Reads the state of the kernel's clock (adjtimex), MemTotal and the number of CPUs that are online.

adjtimex(2) with ``modes`` 0 only reads and needs no privilege. struct timex: include/uapi/linux/timex.h.
"""

from __future__ import annotations

import time

from fairlead.host import boot_clock
from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist
from fairlead.model.facts import Missing, unreadable
from fairlead.model.host_facts import Clock

_STA_UNSYNC = 0x0040
_TIME_ERROR = 5


def kernel_clock() -> Clock | Missing:
    """Return the state of this machine's clock now."""
    import ctypes

    class Timex(ctypes.Structure):
        """Describes the first fields of struct timex. ``rest`` is room for the other fields, which the kernel writes too."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_long * 40),
        )

    timex = Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError) as e:
        return unreadable(f"adjtimex: {e}")
    if state < 0:
        return unreadable(f"adjtimex: errno {ctypes.get_errno()}")
    return Clock(
        synchronised=state != _TIME_ERROR and not timex.status & _STA_UNSYNC,
        maximum_error_seconds=timex.maxerror / 1e6,
        estimated_error_seconds=timex.esterror / 1e6,
        offset_seconds=time.time() - boot_clock.boottime(),
    )


def memory_bytes(root: Root) -> int | Missing:
    """Return MemTotal in bytes. The kernel counts some percent less than the memory that is plugged in."""
    data = root.read_bytes("/proc/meminfo", 4096, head=True)
    if not isinstance(data, bytes):
        return data if isinstance(data, Missing) else unreadable("/proc/meminfo: no such file")
    for line in data.decode("ascii", "replace").splitlines():
        words = line.split()
        if line.startswith("MemTotal:") and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return unreadable("/proc/meminfo: no MemTotal")


def cpus_online(root: Root) -> int | Missing:
    text = root.value("/sys/devices/system/cpu/online")
    if isinstance(text, Missing):
        return text
    try:
        return len(parse_cpulist(text))
    except ValueError:
        return unreadable(f"/sys/devices/system/cpu/online: {text[:40]!r}")
