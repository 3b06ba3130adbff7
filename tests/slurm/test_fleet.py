"""Common cause and suspect job on real slurmctld, by an agent: held, visible everywhere, and lifted as documented."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.verdict import State
from tests.daemon.conftest import Agent
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.lab.trees import MACHINES
from tests.slurm.conftest import client_of

#: What the rules see is the same on every release (test_topology.py has what is not): the others in `make test-all`.
RELEASES = ["trixie", *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES if suite != "trixie")]
pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("up", RELEASES, indirect=True)]

RESET = "NVRM: Xid (PCI:0000:1b:00): 119, pid={n}, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! "
LOST = "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(n: int, text: str) -> str:
    return f"3,{n},{int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)},-;{text}"


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(**policy: Any) -> Agent:
        slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "reconcile_seconds": 1}
        agent = Agent(tmp_path, MACHINES / "hgx-h100", slurm=slurm, policy={"budget_percent": 100, **policy})
        made.append(agent)
        return agent.start()

    yield make
    for agent in made:
        agent.end()


def drain(cluster: Cluster, *nodes: str, job: int | None = None) -> None:
    """As the agents of those nodes have done it."""
    for number, node in enumerate(nodes):
        reason = f"fairlead:xid:{number:012x} Xid 119 on GPU 0000:1b:00.0" + (f" job={job}" if job else "")
        cluster.scontrol("update", f"nodename={node}", "state=drain", f"reason={reason}")


def drained(cluster: Cluster, agent: Agent) -> str:
    """Wait for the drain of n1; its reason."""
    agent.until(lambda: agent.verdict().state is State.DRAIN, "verdict drain", seconds=60)
    return client_of(cluster).node("n1").reason


def metric(agent: Agent, kind: str, name: str) -> bool:
    return f'fairlead_drain_limited{{limit="{kind}",name="{name}"}} 1.0' in (agent.run_dir / "metrics.prom").read_text()


def test_a_common_cause_is_held_and_shown_but_holds_no_lost_gpu(start: Callable[..., Agent], cluster: Cluster) -> None:
    drain(cluster, "n2", "n3", "n4")
    agent = start()
    agent.kernel(record(1, RESET.format(n=1)))
    words = "common cause: xid drained 3 other nodes within 600 s (n2, n3, n4), held for 3600 s at most"
    agent.until(lambda: words in agent.verdict().text, "the hold in the verdict")
    assert agent.verdict().state is State.WARN
    agent.until(lambda: agent.status()["slurm"]["limit"] == {"kind": "common_cause", "name": "xid"}, "the hold in the status")
    assert agent.status()["slurm"]["over_budget"] == words and words in agent.status()["held"][0]["why"]
    assert agent.status()["slurm"]["topology"].startswith("none")
    agent.until(lambda: metric(agent, "common_cause", "xid"), "the hold in the metrics")
    assert not client_of(cluster).node("n1").drained
    agent.kernel(record(2, LOST))
    reason = drained(cluster, agent)  # in the moment in which the first drain is tried again, both are counted
    assert "0000:43:00.0" in reason or "(+1 more)" in reason
    assert agent.verdict().state is State.DRAIN


def test_an_admin_who_resumes_the_others_ends_the_hold(start: Callable[..., Agent], cluster: Cluster) -> None:
    drain(cluster, "n2")
    agent = start(common_cause_nodes=1)
    agent.kernel(record(1, RESET.format(n=1)))
    agent.until(lambda: "common cause" in agent.verdict().text, "the hold")
    cluster.scontrol("update", "nodename=n2", "state=resume")
    assert "Xid 119" in drained(cluster, agent)
    agent.until(lambda: agent.status()["slurm"]["limit"] is None, "no hold in the status")


def test_the_hold_ends_with_its_time(start: Callable[..., Agent], cluster: Cluster) -> None:
    drain(cluster, "n2")
    agent = start(common_cause_nodes=1, common_cause_hold_seconds=1)
    agent.kernel(record(1, RESET.format(n=1)))
    agent.until(lambda: "common cause" in agent.verdict().text, "the hold")
    assert "Xid 119" in drained(cluster, agent)


def test_a_suspect_job_drains_no_further_node_until_the_fault_comes_without_it(
    start: Callable[..., Agent], cluster: Cluster
) -> None:
    drain(cluster, "n2", "n3", job=7)
    agent = start(common_cause_nodes=0)
    jobs = agent.run_dir / "jobs"
    jobs.mkdir(exist_ok=True)
    (jobs / "7").write_text("1\trunning\t1000\t0,1\t5\t-\t-\t.\n")
    agent.kernel(record(1, RESET.format(n=1)))
    agent.until(lambda: "job 7 is the suspect" in agent.verdict().text, "the hold in the verdict")
    agent.until(lambda: metric(agent, "suspect_job", "7"), "the hold in the metrics")
    (jobs / "7").write_text("1\tended\t1000\t0,1\t5\t9\t-\t.\n")
    agent.until(lambda: not (jobs / "7").exists(), "the end of the job")
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 3, "verdicts after the job")
    assert not client_of(cluster).node("n1").drained  # what is there came with the job
    agent.kernel(record(2, RESET.format(n=2)))
    reason = drained(cluster, agent)
    assert "Xid 119" in reason and "job=" not in reason
