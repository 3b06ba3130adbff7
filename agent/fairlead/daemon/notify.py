"""sd_notify(3): one datagram to the socket that systemd names. Without systemd all of this does nothing."""

from __future__ import annotations

import os
import socket

READY_SECONDS = 10.0  # what a drain that the first look asks for may keep slurmd waiting


class Notify:
    """``watchdog_seconds``: how often ``WATCHDOG=1`` is due (half of WatchdogSec), 0 when systemd does not watch."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(microseconds) / 2e6 if own and microseconds.isdigit() else 0.0

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
