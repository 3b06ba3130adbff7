"""Detects whether slurmctld has contacted this node's slurmd, without a request to either of them.

slurmctld asks slurmd to register as soon as somebody resumes the node (seen within 2 s on 22.05, 24.11 and 26.05). Otherwise
an idle slurmd sleeps, and the number of its voluntary context switches (proc(5), status) changes only at slurmctld's pings. So
when this number changes, the agent asks slurmctld whether the drain that fairlead has set is still there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress

from fairlead.host.process import daemons

FIND_SECONDS = 20.0  # how often slurmd is searched for while there is none
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)", re.M)


class Slurmd:
    """Watches this node's slurmd. ``proc``: the path of /proc, or "" for none. It reports nothing if there is no slurmd, or if
    there are several (a test cluster)."""

    def __init__(self, proc: str = "/proc", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._pid = 0
        self._find_at = 0.0
        self._seen: tuple[int, int] | None = None

    @property
    def watched(self) -> bool:
        """Say whether the last call saw a slurmd."""
        return self._seen is not None

    def stirred(self) -> bool:
        """Return whether slurmd has been active since the last call. The first call returns False."""
        before = self._seen
        self._seen = now = self._activity()
        return now is not None and before is not None and now != before

    def reconfigured(self) -> bool:
        """Say whether slurmd was started by `scontrol reconfigure` or a SIGHUP. A slurmd of 23.11 or newer then starts itself
        again with SLURMD_RECONF=1 in its environment (src/slurmd/slurmd/slurmd.c, seen on 24.11 and 26.05)."""
        try:
            with open(f"{self._proc}/{self._find()}/environ", "rb") as f:
                return b"SLURMD_RECONF=1" in f.read(1 << 20).split(b"\0")
        except OSError:
            return False

    def _activity(self) -> tuple[int, int] | None:
        """Return slurmd's process id and the number of its voluntary context switches, or None if there is no slurmd."""
        switches = self._switches(self._pid)
        if switches is None and (now := self._clock()) >= self._find_at:
            self._pid, self._find_at = self._find(), now + FIND_SECONDS
            switches = self._switches(self._pid)
        return (self._pid, switches) if switches is not None else None

    def _switches(self, pid: int) -> int | None:
        if not pid or self._name(pid) != b"slurmd\n":
            return None
        total = 0
        with suppress(OSError):
            for thread in os.listdir(f"{self._proc}/{pid}/task"):
                with suppress(OSError), open(f"{self._proc}/{pid}/task/{thread}/status", "rb") as f:
                    found = _SWITCHES.search(f.read(8192))
                    total += int(found[1]) if found else 0
        return total

    def _find(self) -> int:
        if not self._proc:
            return 0
        pids = [pid for _, pid in daemons("slurmd", proc=self._proc) if isinstance(pid, int)]
        return pids[0] if len(pids) == 1 else 0

    def _name(self, pid: int) -> bytes:
        try:
            with open(f"{self._proc}/{pid}/comm", "rb") as f:
                return f.read(64)
        except OSError:
            return b""
