"""How often a worker is started into a driver that hangs: seldom, and at once when there is reason to hope."""

from __future__ import annotations

import time

from fairlead.host.nvml import BACKOFF_SECONDS, Worker
from tests.lab.faults import Faults


def test_a_driver_that_hangs_is_asked_seldom_and_at_once_when_there_is_hope(faults: Faults) -> None:
    worker = Worker(deadline_seconds=20.0)
    try:
        assert isinstance(worker.sweep().raw, dict)
        worker.deadline_seconds, worker.kill_after_seconds = 0.3, 3.0
        faults.hang("nvmlDeviceGetTemperature", 3)
        tried, end = {worker.pid}, time.monotonic() + 90
        while (len(tried) < 2 or worker.pid is not None) and time.monotonic() < end:
            worker.sweep()
            tried |= {worker.pid} - {None}
            time.sleep(0.1)
        assert len(tried) == 2, "the one that hung, and at once the one after it"
        rest = time.monotonic() + min(3.0, BACKOFF_SECONDS[1] - 1)
        while time.monotonic() < rest:
            result = worker.sweep()
            assert worker.pid is None and result.stuck is not None and result.stuck.call == "nvmlDeviceGetTemperature"
            time.sleep(0.1)
        faults.clear()
        worker.hurry()
        worker.deadline_seconds = worker.kill_after_seconds = 20.0
        assert isinstance(worker.sweep().raw, dict)
    finally:
        faults.clear()
        worker.close()
