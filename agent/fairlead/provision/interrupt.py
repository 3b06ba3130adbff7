"""Handles Ctrl-C and SIGTERM during a run: ansible-playbook and all processes that it started are killed.

Ansible's workers leave its process group, so it is not enough to kill that group. During a run fairlead's process adopts orphans
(PR_SET_CHILD_SUBREAPER, prctl(2)). After an interruption it kills every child that it did not have before the run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 5.0


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as f:
                found.update(int(pid) for pid in f.read().split())
        except OSError:
            continue
    return found


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether the run was interrupted. After an interruption no process of the run is left."""
    asked = threading.Event()
    before = _children()
    kept = {}
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, lambda *_: asked.set())
    try:
        yield asked.is_set
    except BaseException:
        asked.set()
        raise
    finally:
        if asked.is_set():  # otherwise only ssh's shared connections are left, and these are kept
            _end(before)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for number, handler in kept.items():
            signal.signal(number, handler)


def _end(before: set[int]) -> None:
    end = time.monotonic() + _END_SECONDS
    while (left := _children() - before) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue
        time.sleep(0.01)
