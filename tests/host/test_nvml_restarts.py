"""How long a worker that hangs is left alone, and how often one is started: seldom, and soon when there is reason to hope."""

from __future__ import annotations

import time

from fairlead.host.nvml import BACKOFF_SECONDS, KILL_SECONDS, Worker
from tests.lab.faults import Faults


def sweeps(worker: Worker, seconds: float) -> set[int | None]:
    """Asks again and again for so long; the processes that were asked, None for none."""
    found, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        result = worker.sweep()
        assert result.stuck is not None and result.stuck.call == "nvmlDeviceGetTemperature", result
        found.add(worker.pid)
        time.sleep(0.1)
    return found


def test_a_worker_that_hangs_is_left_alone_until_there_is_hope(faults: Faults) -> None:
    worker = Worker(deadline_seconds=20.0)
    try:
        assert isinstance(worker.sweep().raw, dict)
        assert worker.kill_after_seconds == KILL_SECONDS
        first = worker.pid
        faults.hang("nvmlDeviceGetTemperature", 3)
        worker.deadline_seconds = 0.3
        while (stuck := worker.sweep().stuck) is None or not stuck.call:
            time.sleep(0.05)
        assert sweeps(worker, 3.0) == {first}, "ten deadlines"
        worker.hurry()
        end = time.monotonic() + 90
        while worker.pid == first and time.monotonic() < end:
            worker.sweep()
            time.sleep(0.05)
        while (stuck := worker.sweep().stuck) is None or worker.pid is None:
            time.sleep(0.05)
        second = worker.pid
        assert first != second and sweeps(worker, 2.0) == {second}, "one is tried, and left alone like the one before"
        faults.lift()
        end = time.monotonic() + 50
        while not isinstance(worker.sweep().raw, dict) and time.monotonic() < end:
            time.sleep(0.05)
        assert time.monotonic() < end and worker.pid == second, "it comes back with the driver"
    finally:
        faults.clear()
        worker.close()


def test_into_a_driver_that_kills_it_a_worker_is_started_seldom_and_at_once_when_there_is_hope(faults: Faults) -> None:
    worker = Worker(deadline_seconds=20.0)
    try:
        assert isinstance(worker.sweep().raw, dict)
        faults.crash("nvmlDeviceGetTemperature", 3)
        for number in (1, 2):
            assert worker.sweep().stuck is not None
            assert worker.crashes == number, "the one that died, and at once the one after it"
        assert sweeps(worker, min(3.0, BACKOFF_SECONDS[1] - 1)) == {None}
        faults.clear()
        worker.hurry()
        assert isinstance(worker.sweep().raw, dict)
    finally:
        faults.clear()
        worker.close()
