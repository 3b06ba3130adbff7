"""Kills and stops the NVML worker on the loaded library, and sees that the parent answers in time and heals.

A real library cannot be told to hang. SIGSTOP while the worker sweeps has the same effect on the parent: the call that the worker
named last does not return, and only SIGKILL ends the worker.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from fairlead.host.nvml import Worker
from fairlead.model.facts import Missing

READY_SECONDS = 30.0
DEADLINE_SECONDS = 1.0
KILL_AFTER_SECONDS = 2.0
ATTEMPTS = 60
LATE_SECONDS = 1.0  # how much later than its deadline an answer may come on a loaded machine


def healthy(worker: Worker, seconds: float = READY_SECONDS) -> float:
    """Sweep until NVML answers. Return the seconds that took; raises TimeoutError."""
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        worker.hurry()
        if isinstance(worker.sweep().raw, dict):
            return time.monotonic() - start
        time.sleep(0.05)
    raise TimeoutError(f"NVML did not answer again within {seconds:g} s")


def killed(worker: Worker) -> dict[str, Any]:
    """Kill the worker between two sweeps. Return how soon the parent answered, what it said, and how soon it had healed."""
    healthy(worker)
    old = worker.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    start = time.monotonic()
    result = worker.sweep()
    answered = time.monotonic() - start
    said = result.raw.detail if isinstance(result.raw, Missing) else "a snapshot of a new worker"
    healed = healthy(worker)
    return {"answered_seconds": answered, "said": said, "healed_seconds": healed, "new_worker": worker.pid != old}


def stopped(worker: Worker) -> dict[str, Any]:
    """Stop the worker during a sweep. Return what the parent said at its deadline, and how long it took to replace the worker."""
    healthy(worker)
    worker.deadline_seconds, worker.kill_after_seconds = DEADLINE_SECONDS, KILL_AFTER_SECONDS
    old, call, gpu, answered = _stop_in_a_sweep(worker)
    state = _state(old)
    start = time.monotonic()
    while worker.pid == old and time.monotonic() < start + READY_SECONDS:
        worker.sweep()
    replaced = time.monotonic() - start
    worker.deadline_seconds = READY_SECONDS
    healed = healthy(worker)
    return {"call": call, "gpu": gpu, "answered_seconds": answered, "deadline_seconds": DEADLINE_SECONDS, "state": state,
            "replaced_seconds": replaced, "healed_seconds": healed, "new_worker": worker.pid != old}  # fmt: skip


def _stop_in_a_sweep(worker: Worker) -> tuple[int, str, str, float]:
    """Stop the worker later and later in a sweep, until it has named a call. Raises TimeoutError."""
    for attempt in range(ATTEMPTS):
        old = worker.pid
        assert old is not None
        start = time.monotonic()
        worker.start_sweep(closely=True)
        time.sleep(0.0001 * (attempt % 20))
        os.kill(old, signal.SIGSTOP)
        result = None
        while result is None and time.monotonic() < start + DEADLINE_SECONDS + READY_SECONDS:
            result = worker.poll()
            time.sleep(0.005)
        answered = time.monotonic() - start
        if result is not None and result.stuck is not None and result.stuck.call:
            return old, result.stuck.call, result.stuck.gpu, answered
        os.kill(old, signal.SIGCONT)
        healthy(worker)
    raise TimeoutError(f"the worker was never stopped in a sweep in {ATTEMPTS} attempts")


def _state(pid: int) -> str:
    """Return the state letter of a process (proc(5)), or X if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"
