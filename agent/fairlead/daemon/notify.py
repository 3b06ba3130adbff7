"""sd_notify(3): one datagram to the socket that systemd names. Without systemd all of this does nothing."""

from __future__ import annotations

import os
import socket
import time

READY_SECONDS = 10.0  # what a drain that the first look asks for may keep slurmd waiting


class Notify:
    """``watchdog_seconds``: how often ``WATCHDOG=1`` is due (half of WatchdogSec), 0 when systemd does not watch."""

    def __init__(self) -> None:
        self._ready_by = 0.0
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(microseconds) / 2e6 if own and microseconds.isdigit() else 0.0

    def looked(self) -> None:
        """The first look is done: ``ready`` may say so."""
        self._ready_by = time.monotonic() + READY_SECONDS

    def ready(self, *, wait: bool) -> None:
        """READY=1, once, after the first look. slurmd starts after it: with a drain under way (``wait``) it is held back until
        slurmctld has that, for a bounded time."""
        if self._ready_by and not (wait and time.monotonic() < self._ready_by):
            self._ready_by = 0.0
            self.send("READY=1")

    def send(self, state: str) -> None:
        """Send lines such as ``READY=1``; a systemd that does not listen is not our trouble."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.sendto(state.encode(), address)
        except OSError:
            pass
