"""What people say of a node, and what the agent then does in Slurm: ack, clear, hold, drain, resume, and the trail of it.

One Slurm release is enough: nothing here asks slurmctld for more than drain and resume, which every release is tested for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.daemon.audit import Entry, Trail
from fairlead.model.verdict import State
from tests.daemon.conftest import MACHINES, PROJECT, XID79, Agent
from tests.lab.cluster import Cluster
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("up", ["trixie"], indirect=True)]

PCI = "0000:1b:00.0"


class Ward:
    """One node with its agent, and the commands of a person on it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "look_seconds": 1}
        self.policy: dict[str, Any] = {"budget_percent": 100}
        self.slurm = slurm
        self.agent = Agent(folder, MACHINES / "hgx-h100")
        self.configure()
        self.client = client_of(cluster)
        self.trail = Trail(str(self.agent.state_dir), str(self.agent.run_dir))

    def configure(self, **policy: Any) -> None:
        self.agent.write_document(slurm=self.slurm, policy={**self.policy, **policy}, agent={"interval_seconds": 0.2})

    def say(self, *words: str, user: str = "ann", code: int = 0) -> str:
        """Run a command as root for ``user``; what it printed."""
        folders = ["--state-dir", str(self.agent.state_dir), "--run-dir", str(self.agent.run_dir)]
        more = folders if words[0] in ("hold", "audit", "why") else ["--document", str(self.agent.document)]
        more += ["--slurm-bin", str(self.cluster.bin)] if words[0] == "why" else []
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "SUDO_USER": user, "TZ": "UTC"}
        command = [sys.executable, "-m", "fairlead", *words, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=PROJECT, env=env)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    def xid(self, number: int = 1, pci: str = "1b:00") -> None:
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        self.agent.kernel(XID79.format(n=number, us=now).replace("1b:00", pci))

    def drained(self) -> str:
        self.agent.until(lambda: self.agent.verdict().state is State.DRAIN, "verdict drain")
        node = self.client.node("n1")
        assert node.drained
        return node.reason

    def in_service(self) -> None:
        self.agent.until(lambda: self.agent.status()["drain"] is None, "resume")
        assert not self.client.node("n1").drained

    def more_sweeps(self, count: int = 5) -> None:
        before = self.agent.sequence()
        self.agent.until(lambda: self.agent.sequence() > before + count, "later verdicts")

    def noted(self, who: str = "") -> list[Entry]:
        return [e for e in self.trail.read() if who in ("", e.who)]


@pytest.fixture
def ward(cluster: Cluster, tmp_path: Path) -> Iterator[Ward]:
    made = Ward(cluster, tmp_path)
    yield made
    if made.agent.process is not None and made.agent.process.poll() is None:
        made.agent.process.kill()
        made.agent.process.wait()


def test_an_acknowledged_fault_does_not_drain_until_there_is_another(ward: Ward) -> None:
    ward.agent.start()
    ward.xid()
    ward.drained()
    print(ward.say("why", "n1"))
    assert "taken up" in ward.say("ack", f"xid/{PCI}", "--reason", "known, RMA 4711")
    ward.in_service()
    ward.more_sweeps()
    print(ward.say("why", "n1"))
    print(ward.say("ack", "--list"), ward.say("audit"))
