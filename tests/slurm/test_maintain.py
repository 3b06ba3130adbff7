"""`fairlead maintain` on real slurmctld of every release: who is drained, who is not, who is resumed, and by whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.journal import Journal, Run
from fairlead.provision.maintain.plan import floors
from fairlead.provision.maintain.report import Report, report
from fairlead.provision.maintain.run import Maintenance
from fairlead.provision.maintain.steps import Plan, Work
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.maintained import SYSTEMCTL, Nodes

pytestmark = pytest.mark.slurm
PROJECT = Path(__file__).resolve().parents[2]


class Bench:
    """A cluster with machines, and a journal."""

    def __init__(self, cluster: Cluster, client: Scontrol, nodes: Nodes, folder: Path) -> None:
        self.cluster, self.client, self.nodes = cluster, client, nodes
        self.path = str(folder / "maintain.db")
        self.journal = Journal(self.path)
        self.controller = Controller(client)

    def begin(self, *names: str, **asked: object) -> Run:
        floor = floors(asked.pop("floor", ()), self.controller.listing().places)  # type: ignore[arg-type]
        given = {"reason": "new driver", "batch": 8, "settle_seconds": 0.0, "verify_seconds": 20.0, "reboot_seconds": 20.0}
        plan = Plan(**{**given, "floors": floor, **asked})  # type: ignore[arg-type]
        works = [Work(node=n, slurm=n) for n in names or self.nodes.names]
        return self.journal.begin(plan, works, site="none", who="test")

    def maintenance(self, run: Run, *, aborting: bool = False) -> Maintenance:
        found = self.journal.run(run.id)
        side = self.nodes.side
        return Maintenance(found, self.journal, self.controller, side, budgets={}, aborting=aborting, poll_seconds=0.1)

    def drive(self, run: Run, *, aborting: bool = False) -> Report:
        self.maintenance(run, aborting=aborting).drive()
        return report(self.journal.run(run.id))

    def steps(self, run: Run) -> dict[str, str]:
        return {w.node: w.step.value for w in self.journal.run(run.id).works}

    def reason(self, node: str) -> str:
        state = self.client.node(node)
        return state.reason if state.drained else ""


@pytest.fixture
def bench(cluster: Cluster, client: Scontrol, tmp_path: Path) -> Iterator[Bench]:
    cluster.run(["/bin/sh", "-c", f"printf '#!/bin/sh\\ntouch /run/fairlead/reboot\\n' >{SYSTEMCTL}; chmod 755 {SYSTEMCTL}"])
    with Nodes(cluster, tmp_path / "nodes", ("n1", "n2", "n3")) as nodes:
        yield Bench(cluster, client, nodes, tmp_path)


def wait(what: Callable[[], bool], said: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def test_nodes_are_drained_changed_rebooted_and_resumed(bench: Bench) -> None:
    before = {n: bench.nodes.boot_id(n) for n in bench.nodes.names}
    job = bench.cluster.submit("#!/bin/sh\nsleep 3\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    said = bench.drive(bench.begin(reboot=True))
    assert {n.node: n.step for n in said.nodes} == dict.fromkeys(bench.nodes.names, "done"), said
    assert bench.cluster.job_state(job) == "COMPLETED"
    for node in bench.nodes.names:
        assert bench.nodes.boot_id(node) != before[node] and bench.nodes.reboots[node] == 1
        assert bench.nodes.effective(node) == "0" and bench.reason(node) == ""
    assert {n.rebooted for n in said.nodes} == {True} and said.exit_code == 0
