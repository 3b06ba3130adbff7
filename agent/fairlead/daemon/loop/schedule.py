"""Keeps the times at which the loop's own work is due, in CLOCK_MONOTONIC seconds, and detects that the machine was suspended."""

from __future__ import annotations

import random
import time

from fairlead.host.boot_clock import asleep

TICK_SECONDS = 2.0  # job records and files of people's commands are read this often, and with each sweep
# people's requests in the state directory are read this often, and at once after SIGUSR1, which the requesting command sends
REQUESTS_SECONDS = 1.5
SUSPENDED_SECONDS = 1.0  # a shorter time is only a difference between two clocks


class Schedule:
    """Keeps the times. When the agent starts, everything is due at once. ``swept_from``: when the last sweep began."""

    def __init__(self) -> None:
        self.swept_from = 0.0
        self._sweep_at = self._tick_at = self._requests_at = 0.0
        self._now = 0.0  # the time of the last tick_due()
        self._asleep = asleep()

    def next(self) -> float:
        """Return when the next sweep or tick is due."""
        return min(self._sweep_at, self._tick_at)

    def sweep_now(self) -> None:
        """Make a sweep due at once."""
        self._sweep_at = 0.0

    def read_requests_now(self) -> None:
        """Make a sweep due at once that also reads the requests."""
        self._sweep_at = self._requests_at = 0.0

    def sweep_due(self) -> bool:
        """Return whether a sweep was due at the last ``tick_due()``, or was made due since then."""
        return self._now >= self._sweep_at

    def begin_sweep(self) -> None:
        """Record that a sweep begins."""
        self.swept_from = time.monotonic()

    def requests_due(self) -> bool:
        """Return whether the sweep that begins must read the requests, and set the next time for them."""
        if self.swept_from < self._requests_at:
            return False
        self._requests_at = self.swept_from + REQUESTS_SECONDS
        return True

    def set_next_sweep(self, interval_seconds: float) -> None:
        """Make the next sweep due one interval after the present sweep began. The interval varies at random, so that the sweeps
        of agents that started together drift apart."""
        self._sweep_at = self.swept_from + interval_seconds * random.uniform(0.95, 1.05)

    def tick_due(self) -> bool:
        """Return whether a tick is due, and if so set the time of the next tick. A tick is also due with each sweep, so that one
        turn of the loop does both."""
        self._now = time.monotonic()
        if self._now < self.next():
            return False
        self._tick_at = self._now + TICK_SECONDS
        return True

    def suspended_seconds(self) -> float:
        """Return how long the machine was suspended since the last call, or 0.0 if it was not suspended."""
        now = asleep()
        if now <= self._asleep + SUSPENDED_SECONDS:
            return 0.0
        seconds, self._asleep = now - self._asleep, now
        return seconds
