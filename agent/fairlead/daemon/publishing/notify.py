"""Tells systemd that the agent is ready and alive (sd_notify(3)), in datagrams to the socket that systemd names. Without
systemd, this module does nothing."""

from __future__ import annotations

import os
import socket
import time

READY_SECONDS = 10.0  # a drain that the first sweep orders delays the start of slurmd by at most this time


class Notify:
    """Sends the datagrams. ``watchdog_seconds``: half of WatchdogSec, or 0 if systemd does not watch the agent. ``WATCHDOG=1``
    is due twice in that time. ``watchdog_at``: when ``WATCHDOG=1`` is due next (CLOCK_MONOTONIC seconds)."""

    def __init__(self) -> None:
        self._ready_by = 0.0
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(microseconds) / 2e6 if own and microseconds.isdigit() else 0.0
        self.watchdog_at = 0.0 if self.watchdog_seconds else float("inf")

    def first_sweep_done(self) -> None:
        """Allow ``ready`` to send READY=1 from now on."""
        self._ready_by = time.monotonic() + READY_SECONDS

    def ready(self, *, wait: bool) -> None:
        """Send READY=1 once, after the first sweep. systemd then starts slurmd.

        ``wait``: True while a drain is being set. READY=1 is then delayed until slurmctld has the drain, but at most by
        ``READY_SECONDS``.
        """
        if self._ready_by and not (wait and time.monotonic() < self._ready_by):
            self._ready_by = 0.0
            self.send("READY=1")

    def feed_watchdog(self) -> None:
        """Send ``WATCHDOG=1`` if it is due, to tell systemd that the main loop still runs."""
        if (now := time.monotonic()) >= self.watchdog_at:
            self.watchdog_at = now + self.watchdog_seconds / 2
            self.send("WATCHDOG=1")

    def send(self, state: str) -> None:
        """Send lines such as ``READY=1``. Errors are ignored, because the agent works without systemd too."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.sendto(state.encode(), address)
        except OSError:
            pass
