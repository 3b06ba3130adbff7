"""The agent on this machine itself, with the simulated driver: what a call that hangs does to it, and what does not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.verdict import State, Verdict
from tests.daemon.conftest import Agent
from tests.lab.faults import Faults
from tests.lab.nvml.library import build, write_conf
from tests.lab.trees import MACHINES

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def agent(tmp_path: Path, library: Path) -> Iterator[Agent]:
    made = Agent(tmp_path, Path("/"), agent={"nvml_deadline_seconds": 1.0}, slurm={"bin_dir": "/nowhere"})
    (tmp_path / "control").write_text("")
    made.environment = {
        "LD_LIBRARY_PATH": str(library),
        "FAIRLEAD_SIM_NVML": str(write_conf(MACHINES / "hgx-h100", tmp_path / "nvml.conf")),
        "FAIRLEAD_SIM_CONTROL": str(tmp_path / "control"),
    }
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def named(verdict: Verdict) -> bool:
    return verdict.state is State.UNKNOWN and "nvmlDeviceGetTemperature" in verdict.text


def test_a_call_that_hangs_is_named_and_blocks_nothing(agent: Agent, tmp_path: Path) -> None:
    faults = Faults(tmp_path / "control")
    agent.start()
    agent.until(lambda: 'fairlead_gpu_lost{index="0",pci="0000:1b:00.0"' in (agent.run_dir / "metrics.prom").read_text(), "GPUs")
    faults.hang("nvmlDeviceGetTemperature", 3)
    agent.until(lambda: named(agent.verdict()), "the call's name, and that no more is known")
    agent.until(lambda: agent.status()["worker"]["stuck"] is not None, "the call in the status")
    stuck = agent.status()["worker"]["stuck"]
    assert stuck["call"].startswith("nvmlDeviceGetTemperature") and stuck["gpu"]
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 1, "later verdicts")
    assert agent.verdict().expires > time.clock_gettime(time.CLOCK_BOOTTIME) + 60
    faults.lift()
    agent.until(lambda: "nvmlDeviceGetTemperature" not in agent.verdict().text, "a driver that answers")


def test_it_ends_while_the_driver_hangs(agent: Agent, tmp_path: Path) -> None:
    agent.start()
    Faults(tmp_path / "control").hang("*")
    agent.until(lambda: agent.verdict().state is State.UNKNOWN, "unknown")
    assert agent.end(signal.SIGTERM) == 0
