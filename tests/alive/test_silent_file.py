"""A file of /sys that does not answer holds the agent's loop in state D: the verdict says so before it expires, and systemd
hears no more of the agent."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.verdict import State
from tests.daemon.conftest import Agent
from tests.lab.silentfile import silent_file
from tests.lab.trees import MACHINES
from tests.simulation.test_dstate import state

pytestmark = pytest.mark.root
FILE = "sys/module/nvidia/version"  # read at every sweep
SHORT = {"verdict_ttl_seconds": 6, "interval_seconds": 0.5}  # late is who does not come round for two seconds


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that no other test's agent reads."""
    made = tmp_path_factory.mktemp("silent") / "tree"
    shutil.copytree(MACHINES / "hgx-h100.tuned", made, symlinks=True)
    return made


@pytest.fixture
def agent(tmp_path: Path, tree: Path) -> Iterator[Agent]:
    made = Agent(tmp_path, tree, agent=SHORT)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def wait_until_suppressed(agent: Agent) -> None:
    assert agent.process is not None
    pid = agent.process.pid
    agent.until(lambda: state(pid) == "D", "the loop in state D")


def test_it_is_named_and_over_by_itself(agent: Agent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        agent.environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        agent.start()
        agent.until(lambda: agent.verdict().state is State.OK, "an ok")
        with silent_file(agent.tree / FILE):
            wait_until_suppressed(agent)
            agent.until(lambda: agent.verdict().state is State.UNKNOWN, "a verdict that knows that it does not")
            assert agent.verdict().text == f"the agent waits for /{FILE}, which does not answer"
            heard(systemd)
            sequence = agent.sequence()
            agent.until(lambda: agent.sequence() > sequence + 3, "an unknown that is renewed")
            assert heard(systemd).count(b"WATCHDOG=1") == 0, "a watchdog that is fed ends nobody"
        agent.until(lambda: agent.verdict().state is State.OK, "ok by itself")
        agent.until(lambda: b"WATCHDOG=1" in heard(systemd), "the watchdog fed again")
    assert "agent_main_loop_is_blocked" in agent.log.read_text()
    assert agent.end() == 0


def test_a_drain_stays(agent: Agent) -> None:
    agent.start()
    drain = "1\tdrain\t1\t7\tfairlead:xid:abc GPU 0000:1b:00.0: Xid 79\n"
    with silent_file(agent.tree / FILE):
        wait_until_suppressed(agent)
        first = agent.process
        assert first is not None
        first.kill()  # it ends when the file answers; the next one finds the same file, and an older agent's drain
        (agent.run_dir / "verdict").write_text(drain)
        begun = time.monotonic()
        agent.start(wait=False)
        wait_until_suppressed(agent)
        while time.monotonic() < begun + 5:
            assert (agent.run_dir / "verdict").read_text() == drain
            time.sleep(0.05)
    assert first.wait(timeout=60) == -signal.SIGKILL
    agent.until(lambda: agent.verdict().state is State.OK, "what the agent itself sees")
    assert agent.end() == 0


def heard(systemd: socket.socket) -> list[bytes]:
    """What has come in since."""
    found = []
    while True:
        try:
            found.append(systemd.recv(4096))
        except BlockingIOError:
            return found
