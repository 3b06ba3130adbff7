"""Lets signals stop a run, so that it cancels its jobs and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP set ``stop`` in the ``with`` block. A second signal has no further effect. Outside the main
    thread nothing changes, because Python handles signals only there."""
    kept = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            kept[number] = signal.signal(number, lambda *_: stop.set())
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
