"""slurmctld switches nodes off and on (SuspendProgram, ResumeProgram): drains, and the job that wakes a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import MANUAL
from fairlead.slurm.client import NodeState
from tests.lab.cluster import Cluster
from tests.lab.pause import until
from tests.slurm.conftest import client_of, drain_of, running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(240)]
PROLOG = Path(__file__).resolve().parents[2] / "slurm/prolog"
CONF = """\
SuspendProgram=/etc/slurm/nothing
ResumeProgram=/etc/slurm/nothing
SuspendTime=36000
SuspendTimeout=1
ResumeTimeout=120
ReturnToService=1
SlurmdTimeout=300
"""
LATER = "9999999999"


@pytest.fixture(scope="module", params=["bookworm", "trixie", "forky"])
def site(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(
        request.param,
        nodes=6,
        cores=4,
        prolog=PROLOG,
        nohold=True,
        extra_conf=CONF,
        files={"/etc/slurm/nothing": "#!/bin/sh\nexit 0\n"},
    )
    with running(cluster):
        yield cluster


def seen(site: Cluster, name: str, *words: str) -> NodeState:
    """The node once it has all these words."""
    client = client_of(site)
    until(lambda: set(words) <= client.node(name).states, f"{name} {words}")
    return client.node(name)


def off(site: Cluster, name: str) -> None:
    site.scontrol("update", f"nodename={name}", "state=power_down")
    site.stop_slurmd(name, kill=True)
    seen(site, name, "POWERED_DOWN")


def boot(site: Cluster, name: str) -> None:
    """slurmd after a boot that began in a later second than the request, because slurmctld counts in whole seconds."""
    asked = time.time()
    until(lambda: time.time() > asked + 2, "a later second")
    site.start_slurmd(name, "-b")


def booted(drain: DrainProtocol, boot_id: str) -> DrainProtocol:
    drain.state.boot_id = boot_id
    return drain


def test_a_fault_found_while_slurmctld_switches_the_node_on_drains_it_before_the_job_that_woke_it(
    site: Cluster, tmp_path: Path
) -> None:
    client = client_of(site)
    off(site, "n1")
    job = site.submit("#!/bin/sh\nexit 0\n", "-wn1", "-n1")
    seen(site, "n1", "POWERING_UP")
    drain = drain_of(client, tmp_path, "n1")
    assert finish(drain.drain("gpu_count", "7 of 8 GPUs")).outcome is Outcome.DRAINED
    reason = client.node("n1").reason
    (site.node_dirs("n1").run / "verdict").write_text(f"1\tdrain\t{LATER}\t1\t{reason}\n")
    boot(site, "n1")
    until(lambda: "POWERING_UP" not in client.node("n1").states, "n1 registered")
    until(lambda: site.job_state(job) == "PENDING", "the job waits again")
    node = client.node("n1")
    assert node.drained and node.reason == reason
    assert finish(drain.reconcile()).outcome is Outcome.DRAINED
    site.run(["/usr/bin/scancel", str(job)])


def test_a_persons_drain_is_made_again_when_the_node_is_back(site: Cluster, tmp_path: Path) -> None:
    """slurmctld has lifted it at the power-down: `fairlead drain` stands until a person lifts it."""
    client = client_of(site)
    drain = booted(drain_of(client, tmp_path, "n2"), "boot 1")
    assert finish(drain.drain(MANUAL, "riser swap")).outcome is Outcome.DRAINED
    fault = booted(drain_of(client, tmp_path, "n3"), "boot 1")
    assert finish(fault.drain("xid", "GPU gone")).outcome is Outcome.DRAINED
    off(site, "n2")
    off(site, "n3")
    assert not client.node("n2").drained, "slurmctld keeps drains now: the page says otherwise"
    assert finish(drain.reconcile()).outcome is Outcome.BLOCKED
    for each in (drain, fault):
        site.scontrol("update", f"nodename={each.node}", "state=power_up")
        seen(site, each.node, "POWERING_UP")
        booted(each, "boot 2")
    assert finish(fault.reconcile()).outcome is Outcome.LOST  # nobody has acknowledged it
    assert finish(drain.reconcile()).outcome is Outcome.DRAINED
    for each in (drain, fault):
        boot(site, each.node)
    until(lambda: "POWERING_UP" not in client.node("n2").states, "n2 registered")
    node = client.node("n2")
    assert node.drained and node.reason.endswith("riser swap") and node.reason.startswith("fairlead:manual:")
    site.scontrol("update", "nodename=n2", "state=resume")
    assert finish(drain.reconcile()).outcome is Outcome.ACKNOWLEDGED


def test_nodes_that_are_off_use_up_no_drain_budget(site: Cluster, tmp_path: Path) -> None:
    """Four of six nodes are off. A tenth of the partition may be drained, and at least one node."""
    client = client_of(site)
    names = ("n3", "n4", "n5", "n6")
    for name in names:
        site.scontrol("update", f"nodename={name}", "state=power_down")
    for name in names:
        seen(site, name, "POWERED_DOWN")
    until(lambda: client.node("n1").states & {"IDLE", "DRAIN"}, "n1")
    site.scontrol("update", "nodename=n1", "state=resume", check=False)
    until(lambda: not client.node("n1").drained, "n1 in service")
    few = Rules(budget_percent=10, common_cause_nodes=0)
    assert finish(drain_of(client, tmp_path, "n2", few).drain("xid", "GPU gone")).outcome is Outcome.DRAINED
    assert finish(drain_of(client, tmp_path, "n1", few).drain("xid", "GPU gone")).outcome is Outcome.OVER_BUDGET
