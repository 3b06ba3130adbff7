"""A real agent keeps the usage record of a job, and a SIGKILL at any moment leaves one whole record."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.jobs.usage_record import UsageRecord, decoded
from tests.daemon.conftest import Agent

Make = Callable[..., Agent]


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def record_of(agent: Agent, job: int) -> UsageRecord | None:
    """The only usage record of a job, or None. A file that is not whole fails here."""
    found = [decoded(path.read_bytes()) for path in (agent.state_dir / "usage").glob(f"{job}-*.json")]
    assert len(found) < 2
    return found[0] if found else None


def job_record(agent: Agent, job: int, begin: float, end: float | None = None) -> None:
    state, last = ("running", "-") if end is None else ("ended", f"{end}")
    (agent.run_dir / "jobs" / str(job)).write_text(f"1\t{state}\t1000\t0,3\t{begin}\t{last}\t-\t.\n")


def finished(agent: Agent, job: int) -> bool:
    record = record_of(agent, job)
    return record is not None and record.ended_by != ""


def test_a_job_has_a_record_from_its_begin_to_its_end(agents: Make) -> None:
    agent = agents(agent={"gpustat_dir": ""}).start()
    begin = uptime()
    job_record(agent, 7, begin)
    agent.until(lambda: (found := record_of(agent, 7)) is not None and len(found.gpus) == 2, "a record with two GPUs")
    job_record(agent, 7, begin, end=uptime())
    agent.until(lambda: finished(agent, 7), "the end of the record")
    record = record_of(agent, 7)
    assert record is not None and record.ended_by == "epilog" and record.end_boot is not None
    assert record.alloc_seconds == pytest.approx(record.end_boot - begin)
    assert [gpu.gres_index for gpu in record.gpus] == [0, 3]
    assert all(gpu.seen_seconds + gpu.gap_seconds == pytest.approx(record.alloc_seconds, abs=1) for gpu in record.gpus)
    agent.until(lambda: not (agent.run_dir / "jobs/7").exists(), "the job record's removal")


@pytest.mark.slow
def test_killed_at_many_moments(agents: Make) -> None:
    """Seeds are fixed, moments are not: what runs beside the test moves them."""
    chance, stat = random.Random(7), "gpustat"
    agent = agents()
    agent.write_document(agent={"gpustat_dir": str(agent.folder / stat), "interval_seconds": 0.2})
    agent.start()
    begin = uptime()
    job_record(agent, 7, begin)
    agent.until(lambda: record_of(agent, 7) is not None, "a record")
    first = record_of(agent, 7)
    assert first is not None
    last = 0.0
    for _ in range(15):
        time.sleep(chance.random() * 0.8)
        agent.end(signal.SIGKILL)
        found = record_of(agent, 7)
        assert found is not None and found.begin_unix == first.begin_unix and not found.ended_by
        assert found.alloc_seconds >= last
        last = found.alloc_seconds
        agent.start(wait=False)
    agent.until(lambda: (agent.folder / stat / "0").exists(), "the file for jobstats' exporter")
    end = uptime()
    job_record(agent, 7, begin, end=end)
    agent.until(lambda: finished(agent, 7), "the end of the record")
    record = record_of(agent, 7)
    assert record is not None and record.ended_by == "epilog"
    assert record.alloc_seconds == pytest.approx(end - begin, abs=0.01)
    agent.until(lambda: not list((agent.folder / stat).iterdir()), "the removal of the files for jobstats' exporter")
    assert not list((agent.state_dir / "usage").glob("*.tmp")) and not (agent.state_dir / "usage/aside").exists()


def test_a_killed_agents_job_that_is_gone_is_lost(agents: Make) -> None:
    agent = agents().start()
    job_record(agent, 7, uptime())
    agent.until(lambda: record_of(agent, 7) is not None, "a record")
    agent.end(signal.SIGKILL)
    (agent.run_dir / "jobs/7").unlink()
    agent.start()
    agent.until(lambda: finished(agent, 7), "the end of the record")
    record = record_of(agent, 7)
    assert record is not None and record.ended_by == "lost"
