"""Between two looks of somebody who waits."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_SECONDS = 0.5


def pause(began: float, least: float = 0.05) -> None:
    """Sleep for ``least`` seconds, or for twice as long as the look that ``began`` (CLOCK_MONOTONIC seconds) has taken: a look
    that starts a program costs some 20 ms of a processor, and on a busy machine those who wait must not be what keeps it busy."""
    time.sleep(max(least, min(MOST_SECONDS, 2 * (time.monotonic() - began))))


def until(met: Callable[[], object], what: str, seconds: float = 90) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if met():
            return
        assert began < deadline, f"no {what} in {seconds:g} s"
        pause(began)
