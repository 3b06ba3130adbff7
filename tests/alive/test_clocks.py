"""Clocks: the time of day is set, and the machine sleeps. What expires is in CLOCK_BOOTTIME, which nobody sets and which goes
on during sleep. The agent's clocks are simulated; the prolog's machine has a time namespace of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from fairlead.model.verdict import State
from tests.alive.conftest import Living, Make
from tests.daemon.conftest import XID79
from tests.lab import kernel

pytestmark = pytest.mark.root
HOUR, DAY = 3600, 86400
SWEPT = "fairlead_sweep_timestamp_seconds"


@pytest.fixture
def clocks(tmp_path: Path) -> kernel.Clocks:
    return kernel.Clocks(tmp_path / "clocks")


def ticking(living: Make, preload: Path, clocks: kernel.Clocks, **agent: float) -> Living:
    made = living(agent=agent)
    made.environment |= kernel.environment(preload, clocks=clocks)
    return made


@pytest.mark.parametrize("step", [30 * DAY, -30 * DAY, -HOUR])
def test_a_step_of_the_time_of_day(living: Make, preload: Path, clocks: kernel.Clocks, step: float) -> None:
    """NTP's first word after a dead CMOS battery, or a person with date(1): nothing expires, and nothing lasts longer."""
    agent = ticking(living, preload, clocks).start()
    agent.kernel(XID79.format(n=1, us=1_000_000))
    agent.says("Xid 79")
    clocks.step(step)
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 2, "verdicts")
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert now + 60 < agent.verdict().expires < now + 200
    agent.prolog(on_stale="refuse")
    assert "expired" not in agent.log_text()
    agent.render()
    assert agent.metric(SWEPT) == pytest.approx(time.time() + step, abs=100), "moments move with the clock"
    agent.again()
    agent.says("Xid 79")


def test_a_suspended_machine(living: Make, preload: Path, clocks: kernel.Clocks) -> None:
    """Long sweep interval: the verdict of before the sleep has expired with it, and the next comes at once, not in ten
    minutes."""
    if subprocess.run(["unshare", "--time", "--boottime", "10", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespaces here")
    agent = ticking(living, preload, clocks, interval_seconds=600.0).start()
    assert agent.verdict().state is State.OK and agent.prolog(on_stale="refuse").rc == 0
    awake = ("unshare", "--time", "--boottime", str(HOUR))
    sequence = agent.sequence()
    asleep = agent.prolog(*awake, on_stale="refuse")
    assert (asleep.rc, agent.sequence()) == (1, sequence) and "has expired" in asleep.err, asleep
    assert agent.prolog(*awake).rc == 0 and "has expired" in agent.log_text()
    clocks.suspended(HOUR)
    agent.until(lambda: agent.sequence() > sequence, "verdict after the sleep, long before the next sweep in its turn")
    assert agent.verdict().expires > time.clock_gettime(time.CLOCK_BOOTTIME) + HOUR
    (agent.run_dir / "prolog.log").unlink()
    assert agent.prolog(*awake, on_stale="refuse").rc == 0 and agent.log_text() == ""
    agent.until(lambda: "the_machine_was_suspended" in agent.log.read_text(), "word of the sleep")
