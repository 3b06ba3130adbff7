"""64 nodes that go bad in the same moment, on a real slurmctld: every rule across nodes holds in the end. And a slurmctld that is
back after a while, with drains on many nodes: their agents do not ask all at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.daemon.slurmctld.pace import ASKS_PER_SECOND
from fairlead.policy.decision_rules import Rules
from fairlead.policy.drain_limits import LimitKind
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import ROOMY, client_of, running
from tests.slurm.crowd import WANT, Crowd, Rate, ours, overshoot, rpcs

NODES = 64
RELEASES = ["trixie", *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES if suite != "trixie")]
pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module", params=RELEASES)
def many(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with running(Cluster(request.param, nodes=NODES, cores=4)) as cluster:
        yield cluster


def resume(cluster: Cluster) -> None:
    names = [node.name for node in client_of(cluster).nodes() if node.drained]
    if names:
        cluster.scontrol("update", f"nodename={','.join(names)}", "state=undrain")


def test_64_nodes_at_once_end_within_the_drain_budget(many: Cluster, tmp_path: Path) -> None:
    rules = Rules()
    budget = NODES * rules.budget_percent // 100
    log = many.log / "slurmctld.log"
    before = log.stat().st_size
    with Crowd(many, tmp_path, rules) as crowd:
        many.run(["/usr/bin/sdiag", "--reset"])
        crowd.go()
        took = crowd.settled(budget)
        standing = {n.name: n.reason for n in crowd.client.nodes() if n.drained}
        assert {name: crowd.couriers[name].take().reason for name in crowd.drained} == standing
        assert len(standing) == budget
        for name in crowd.pending:
            limit = crowd.couriers[name].take().limit
            assert limit is not None and (limit.kind, limit.name) == (LimitKind.PARTITION, "main")
    seen = overshoot(log.read_text()[before:], budget)
    assert seen.drains - seen.undone == budget
    asked = ours(rpcs(many))
    print(
        f"\n{many.suite}: settled in {took:.1f} s; past the budget by {seen.nodes} nodes for {seen.seconds:.1f} s; {asked} RPCs"
    )


@pytest.mark.parametrize(("kind", "job", "limit"), [(LimitKind.COMMON_CAUSE, None, 3), (LimitKind.SUSPECT_JOB, 7, 2)])
def test_a_suspicion_holds_however_many_drain_at_once(
    many: Cluster, tmp_path: Path, kind: LimitKind, job: int | None, limit: int
) -> None:
    resume(many)
    with Crowd(many, tmp_path, Rules(), many.node_names[:12]) as crowd:
        crowd.go(replace(WANT, certain=False, job=job))
        crowd.settled(limit)
        assert {n.name for n in crowd.client.nodes() if n.drained} == crowd.drained
        limits = [crowd.couriers[name].take().limit for name in crowd.pending]
        assert {each.kind for each in limits if each} == {kind}


AWAY_SECONDS = 8.0
RPCS_OF_A_QUESTION = 2


@pytest.mark.slow  # in `make test` couriers on a model show it (tests/daemon/slurmctld/test_slurm_link.py)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [32, 128])
def test_a_slurmctld_that_is_back_is_asked_by_its_agents_one_after_the_other(count: int, tmp_path: Path) -> None:
    """Three quarters of the nodes are drained by their agents; one in eight goes bad while slurmctld is away. All of them are
    asked to register when it is back, and all of the agents want to look in that moment. At the end every drain is right.

    A client of Slurm's that has no answer tries again by itself each second: who asks while slurmctld is away, as an agent with
    an order does, asks again in the second of its return."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with running(Cluster("trixie", nodes=count, cores=4)) as cluster:
        names = cluster.node_names
        drained, bad = names[: count * 3 // 4], names[count * 3 // 4 : count * 7 // 8]
        with Crowd(cluster, tmp_path, ROOMY, reconcile_seconds=30, deadline_seconds=10) as crowd:
            for name in drained:
                crowd.couriers[name].want(WANT)
            crowd.until(lambda: crowd.drained == set(drained), "the first drains")
            cluster.stop_slurmctld()
            for name in bad:
                crowd.couriers[name].want(WANT)
            time.sleep(AWAY_SECONDS)
            before = crowd.confirmed
            cluster.start_slurmctld()
            with Rate(cluster) as rate:
                for courier in crowd.couriers.values():
                    courier.stirred(watched=True, stirred=True)
                crowd.until(lambda: crowd.drained == {*drained, *bad} and not crowd.errors, "every drain after the return")
                crowd.until(lambda: all(crowd.confirmed[name] > before[name] for name in drained), "a look of each")
            standing = {n.name: n.reason for n in crowd.client.nodes() if n.drained}
            assert {name: crowd.couriers[name].take().reason for name in crowd.drained} == standing
            lost = [name for name, c in crowd.couriers.items() if c.take().lost or c.take().acknowledged]
    seconds, asked = rate.seen[-1]
    second, ten = rate.worst(1.0), rate.worst(10.0)
    print(f"\n{count} nodes: {asked} RPCs in {seconds:.0f} s after the return, at most {second:.0f} a second, {ten:.0f} in ten")
    assert lost == [] and asked >= len(drained) * RPCS_OF_A_QUESTION
    assert ten <= 2 * ASKS_PER_SECOND * RPCS_OF_A_QUESTION and second <= 4 * ASKS_PER_SECOND * RPCS_OF_A_QUESTION
