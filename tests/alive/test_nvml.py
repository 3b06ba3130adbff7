"""NVML that hangs, dies, errs or loses a GPU under the real agent: the prolog answers, the metrics show the age, and when
the fault is over all is well again by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.host.change import nvml_release
from fairlead.model.verdict import State
from tests.alive.conftest import Living, Make
from tests.daemon.conftest import NO_SLOW_CHECKS
from tests.simulation.test_dstate import frozen, state

pytestmark = pytest.mark.root
AGE = 'fairlead_source_timestamp_seconds{source="nvml"}'
HASTY = {"nvml_deadline_seconds": 0.5}
BUSY = {"nvml_deadline_seconds": 1.5}  # killed after three times as long, which is more than its start takes
QUICK = {"nvml_responsive": {"slow_seconds": 4.0, "stuck_seconds": 1.0, "boot_grace_seconds": 0}}


@pytest.fixture(scope="module")
def agent(living: Make) -> Living:
    return living(checks=QUICK, agent=BUSY).start()


@pytest.fixture(autouse=True)
def healed(agent: Living) -> Iterator[None]:
    """Whatever was done is taken back, and the agent gets over it; by itself, only its worker is not waited for half a minute."""
    yield
    agent.faults.clear()
    agent.send(signal.SIGUSR1)
    agent.well()


def ages(agent: Living) -> None:
    """NVML's last answer stays where it was while the agent goes on, and the worker is said to be stuck or gone."""
    agent.render()
    before = agent.metric(AGE), agent.metric("fairlead_sweep_timestamp_seconds")
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 5, "more verdicts")
    agent.render()
    assert agent.metric(AGE) - before[0] < 0.5 < agent.metric("fairlead_sweep_timestamp_seconds") - before[1]
    assert agent.verdict().expires > time.clock_gettime(time.CLOCK_BOOTTIME), "an agent that answers is not stale"


def unknown_lets_jobs_on(agent: Living, word: str) -> None:
    assert agent.verdict().state is State.UNKNOWN, agent.verdict()
    assert agent.prolog().rc == 0
    assert "\tallowed\t" in agent.log_text() and "does not know the state" in agent.log_text()
    refused = agent.prolog(on_stale="refuse")
    assert refused.rc == 1 and word in refused.err, refused


def stuck_after(agent: Living, seconds: float) -> None:
    """Only after so long is a call that has not come back one that does not: a busy machine is not hurried through the time
    between."""
    waits = {"slow_seconds": seconds, "stuck_seconds": seconds}
    checks = NO_SLOW_CHECKS | {"nvml_responsive": {**QUICK["nvml_responsive"], **waits}}
    agent.write_document(agent={"interval_seconds": 0.3, **BUSY}, checks=checks)
    before = agent.log.read_text().count("document_loaded")
    agent.send(signal.SIGHUP)
    agent.until(lambda: agent.log.read_text().count("document_loaded") > before, "the document being loaded")


def test_a_call_that_hangs(agent: Living) -> None:
    stuck_after(agent, 3600)
    agent.faults.hang("nvmlDeviceGetPowerUsage", 5)
    agent.says("nvmlDeviceGetPowerUsage on GPU 0000:c3:00.0 has not come back yet")
    unknown_lets_jobs_on(agent, "does not know the state")
    ages(agent)
    stuck_after(agent, 4)
    agent.says("nvmlDeviceGetPowerUsage on GPU 0000:c3:00.0 does not come back", "drain pending")
    assert agent.prolog().rc == 0, "drain is said only once slurmctld has accepted it"
    assert agent.metric("fairlead_nvml_worker_stuck") == 1
    agent.faults.lift()
    agent.well()
    assert agent.metric("fairlead_nvml_worker_stuck") == 0


def test_nvml_that_does_not_even_start(agent: Living) -> None:
    """A worker is started anew into a library that hangs in its first call: one worker, no more."""
    agent.faults.crash("nvmlDeviceGetCount")
    agent.says("the NVML worker died")
    agent.faults.hang("nvmlInit")
    agent.faults.clear()
    agent.faults.hang("nvmlInit")
    agent.says("nvmlInit_v2", "come back")
    ages(agent)
    assert agent.prolog().rc == 0


def test_a_call_that_kills_the_worker(agent: Living) -> None:
    stuck_after(agent, 3600)
    agent.faults.crash("nvmlDeviceGetMemoryInfo", 2)
    agent.says("the NVML worker died in nvmlDeviceGetMemoryInfo_v2 on GPU 0000:52:00.0")
    unknown_lets_jobs_on(agent, "does not know the state")
    ages(agent)
    assert agent.metric("fairlead_nvml_worker_crashes_total") >= 1
    stuck_after(agent, 4)
    agent.says("again and again", "drain pending")


@pytest.mark.parametrize("code", [15, 999])
def test_every_call_on_one_gpu_fails(agent: Living, code: int) -> None:
    """The others' values are fresh all the while."""
    agent.faults.error(4, "*", code)
    agent.says("0000:9d:00.0", "drain pending")
    agent.render()
    assert agent.metric(AGE) == pytest.approx(agent.metric("fairlead_sweep_timestamp_seconds"), abs=20)
    assert agent.prolog().rc == 0


def test_a_gpu_lost_in_the_middle_of_a_sweep(agent: Living) -> None:
    """The sweep has the GPU's first calls behind it and waits in one when the GPU goes."""
    agent.faults.hang("nvmlDeviceGetTemperature", 3)
    agent.says("nvmlDeviceGetTemperature on GPU 0000:61:00.0 has not come back yet")
    agent.faults.lost(3)
    agent.faults.lift()
    agent.says("GPU 0000:61:00.0 is lost", "drain pending")
    sequence = agent.sequence()
    assert agent.prolog().rc == 0
    agent.until(lambda: agent.sequence() > sequence + 1, "a sweep")
    agent.render()
    assert agent.metric("fairlead_gpu_lost", pci="0000:61:00.0") == 1
    assert agent.metric("fairlead_gpu_lost", pci="0000:c3:00.0") == 0
    uuid = uuid_of(agent, "0000:61:00.0")
    assert agent.metric("fairlead_gpu_lost", pci="0000:61:00.0", index="3", uuid=uuid) == 1


def uuid_of(agent: Living, pci: str) -> str:
    gpus = json.loads((agent.tree / "nvml.json").read_text())["gpus"]
    return str(next(g["uuid"] for g in gpus if g["pci"] == pci))


def test_a_lost_gpu_keeps_its_labels_over_a_restart_of_the_agent(living: Make) -> None:
    """The new worker has never read the GPU, and the driver does not tell it the UUID."""
    agent = living(checks=QUICK, agent=BUSY).start()
    try:
        agent.faults.error(3, "*", 15)
        agent.says("GPU 0000:61:00.0 is lost")
        agent.again()
        agent.says("GPU 0000:61:00.0 is lost")
        agent.until(lambda: agent.status()["pid"] == getattr(agent.process, "pid", 0), "status of the new agent")
        agent.until(lambda: {"pci": "0000:61:00.0"} in agent.status()["gpus"], "the GPU without its UUID in the status")
        agent.render()
        agent.until(lambda: agent.metric("fairlead_gpu_lost", pci="0000:61:00.0") == 1, "the GPU in the metrics")
        labels = {"pci": "0000:61:00.0", "index": "3", "uuid": uuid_of(agent, "0000:61:00.0")}
        assert agent.metric("fairlead_gpu_lost", **labels) == 1
    finally:
        agent.end(signal.SIGKILL)


def test_the_driver_goes_away_and_comes_back(agent: Living) -> None:
    agent.faults.error(None, "nvmlDeviceGetCount", 9)
    agent.faults.error(None, "nvmlInit", 9)
    agent.says("NVML does not answer")
    ages(agent)
    assert agent.prolog().rc == 0


@pytest.mark.skipif(not shutil.which("mkfs.ext4"), reason="needs mkfs.ext4 (e2fsprogs)")
def test_a_true_d_state(living: Make, agent: Living, tmp_path: Path) -> None:
    """The worker sleeps uninterruptibly. It is said, it is not doubled, the agent can even be ended and started again."""
    with frozen(tmp_path) as (keeper, path, thaw):
        sleeper = living(checks=QUICK, agent=HASTY)
        sleeper.before = ("nsenter", "--mount", f"--target={keeper}")
        sleeper.start()
        try:
            sleeper.faults.dstate("nvmlDeviceGetPowerUsage", path, 5)
            sleeper.says("does not come back (driver hangs)", "drain pending")
            ages(sleeper)
            assert sleeper.prolog().rc == 0
            first = workers(sleeper)
            assert [state(pid) for pid in first] == ["D"]
            sequence = sleeper.sequence()
            sleeper.until(lambda: sleeper.sequence() > sequence + 5, "more verdicts")
            assert workers(sleeper) == first, "killed once, never doubled"
        finally:
            sleeper.faults.clear()
            thaw()
        sleeper.well()
        assert workers(sleeper) != first
        assert sleeper.end() == 0


def workers(agent: Living) -> list[int]:
    assert agent.process is not None
    children: Callable[[int], str] = lambda pid: Path(f"/proc/{pid}/task/{pid}/children").read_text()  # noqa: E731
    return [int(pid) for pid in children(agent.process.pid).split() if os.path.exists(f"/proc/{pid}")]


def test_nvml_is_let_go_of_on_request_and_taken_hold_of_again(agent: Living) -> None:
    """The worker is gone and no process maps the library: the kernel module could be unloaded. Nothing is called wrong, nothing
    is called healthy, and a request that nobody takes back expires."""
    ours = library_users(agent)
    assert ours, "the worker has the library in memory"
    with nvml_release.asked(str(agent.run_dir)):
        agent.until(lambda: not library_users(agent), "no process of the agent with libnvidia-ml in memory")
        agent.says("NVML is let go of on request")
        assert agent.verdict().state is State.UNKNOWN
        assert "held" not in agent.verdict().text and "drain" not in agent.verdict().text
        agent.render()
        assert agent.metric("fairlead_nvml_released") == 1
        assert not library_users(agent)
    agent.well()
    assert library_users(agent) and agent.metric("fairlead_nvml_released") == 0
    killed = f"1\t1\t{int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 6}\n"  # of a run that was killed
    (agent.run_dir / "nvml-release").write_text(killed)
    agent.says("NVML is let go of on request")
    agent.well()
    (agent.run_dir / "nvml-release").unlink()


def library_users(agent: Living) -> list[int]:
    """Processes of the agent that have libnvidia-ml in memory (/proc/PID/maps)."""
    assert agent.process is not None
    mine = [agent.process.pid, *children(agent.process.pid)]
    found = []
    for pid in mine:
        try:
            found += [pid] if "libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text() else []
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found
