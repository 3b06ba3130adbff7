"""The whole agent dies by SIGKILL before each single change that it makes to a disk on the way from an Xid to a drain: state,
records, trail, ledger, verdict. The next start completes the drain, once, and knows it for its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.daemon.requests.audit_trail import Trail
from fairlead.drains.ledger import Ledger, Phase, machine_id
from fairlead.host.root import Root
from fairlead.model.verdict import State
from tests.daemon.conftest import XID79, Agent
from tests.lab import kernel
from tests.lab.cluster import Cluster
from tests.lab.trees import MACHINES
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.slurm, pytest.mark.one_release]
MOST = 200
STRIDE = 25  # of every so many steps one is tried in the short run


@pytest.fixture
def death(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[kernel.Death, dict[str, str]]]:
    library = kernel.build(Path(request.config.cache.mkdir("simulated-kernel")))
    made = kernel.Death(tmp_path / "death")
    yield made, kernel.environment(library, death=made)


def drained_by(cluster: Cluster, folder: Path, death: tuple[kernel.Death, dict[str, str]], count: int) -> bool:
    """One agent that dies after ``count`` changes, and the next one; whether the first did die."""
    folder.mkdir()
    slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "reconcile_seconds": 1}
    agent = Agent(folder, MACHINES / "hgx-h100", slurm=slurm, policy={"budget_percent": 100})
    agent.environment = death[1]
    agent.start()
    try:
        death[0].after(count)
        line = XID79.format(n=1, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6))
        agent.kernel(line)
        assert agent.process is not None
        deadline = time.monotonic() + 60
        while agent.process.poll() is None and agent.verdict().state is not State.DRAIN and time.monotonic() < deadline:
            time.sleep(0.005)
        died = agent.process.poll() is not None
        death[0].never()
        if not died:
            return False
        sequence = agent.sequence()
        agent.start(wait=False)
        agent.kernel(line)  # a kernel keeps its records; a FIFO does not
        agent.until(lambda: agent.sequence() > sequence and agent.verdict().state is State.DRAIN, f"drain after {count} changes")
        node = client_of(cluster).node("n1")
        assert node.drained and node.reason.startswith("fairlead:xid:"), (count, node)
        entry = Ledger(str(agent.state_dir), str(agent.run_dir), node="n1", machine=machine_id(Root(str(agent.tree)))).load()
        assert entry is not None and (entry.phase, entry.token.text) == (Phase.DRAINED, node.reason), (count, entry, node)
        agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == node.reason, "the drain in the status")
        trail = Trail(str(agent.state_dir), str(agent.run_dir))
        agent.until(lambda: any(e.args.get("reason") == node.reason for e in trail.read()), "the drain in the trail")
        assert len({e.args["reason"] for e in trail.read() if e.what == "drained"}) == 1, "one drain, with one token"
        return True
    finally:
        death[0].never()
        agent.end()
        cluster.scontrol("update", "nodename=n1", "state=resume", check=False)


def killed_at(cluster: Cluster, folder: Path, death: tuple[kernel.Death, dict[str, str]], stride: int) -> int:
    """How many places it was killed in, until one agent came through."""
    for number, count in enumerate(range(0, MOST, stride)):
        if not drained_by(cluster, folder / str(count), death, count):
            return number
    raise AssertionError(f"more than {MOST} changes to a disk for one drain")


def test_some_changes(cluster: Cluster, tmp_path: Path, death: tuple[kernel.Death, dict[str, str]]) -> None:
    assert killed_at(cluster, tmp_path, death, STRIDE) >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_change(cluster: Cluster, tmp_path: Path, death: tuple[kernel.Death, dict[str, str]]) -> None:
    assert killed_at(cluster, tmp_path, death, 1) > STRIDE
