"""The whole agent notices a person's resume when slurmctld speaks to this node's slurmd, long before its next regular look."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.daemon.loop.schedule import TICK_SECONDS
from fairlead.model.verdict import State
from tests.daemon.conftest import MACHINES, Agent
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import client_of, running
from tests.slurm.test_agent import xid79
from tests.slurm.wire import Wire

pytestmark = pytest.mark.slurm
RECONCILE_SECONDS = 3600.0  # and four times that where slurmd is watched


class Watching(Agent):
    """``cluster``: whose only slurmd it sees."""

    def __init__(self, folder: Path, cluster: Cluster, wire: Wire) -> None:
        self.cluster = cluster
        slurm = {
            "conf": "/etc/slurm/slurm.conf",
            "bin_dir": str(wire.bin),
            "node_name": "n1",
            "reconcile_seconds": RECONCILE_SECONDS,
        }
        super().__init__(folder, MACHINES / "hgx-h100", slurm=slurm, policy={"budget_percent": 100})

    def command(self) -> list[str]:
        proc = f"/proc/{self.cluster.pid}/root/proc"
        return [sys.executable, "-m", "tests.slurm.watching_agent", str(self.document), str(self.tree), proc]


@pytest.fixture(scope="module", params=list(SUITES))
def alone(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with running(Cluster(request.param, nodes=1, cores=4)) as cluster:
        yield cluster


@pytest.mark.release("trixie")
def test_a_persons_resume_is_noticed_when_slurmd_stirs(alone: Cluster, tmp_path: Path) -> None:
    wire = Wire(tmp_path / "wire", "n1", alone.bin)
    agent = Watching(tmp_path, alone, wire)
    agent.start()
    try:
        agent.kernel(xid79())
        agent.until(lambda: agent.verdict().state is State.DRAIN, "verdict drain")
        time.sleep(3 * TICK_SECONDS)  # it has seen slurmd before and after the drain
        alone.scontrol("update", "nodename=n1", "state=resume")
        began = time.time()
        agent.until(lambda: "acknowledged" in agent.verdict().text, "acknowledgement")
        took = time.time() - began
        looks = sum("sinfo" in call.words for call in wire.read() if call.began < began)
        print(f"\n{alone.suite}: noticed after {took:.1f} s; {looks} looks before, one in {4 * RECONCILE_SECONDS:g} s is due")
        assert agent.verdict().state is State.WARN and not client_of(alone).node("n1").drained
    finally:
        agent.end()
