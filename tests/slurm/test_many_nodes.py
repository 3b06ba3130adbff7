"""64 nodes that go bad in the same moment, on a real slurmctld: every rule across nodes holds in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.policy.fleet import Kind
from fairlead.policy.rules import Rules
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import client_of, running
from tests.slurm.crowd import WANT, Crowd, ours, overshoot, rpcs

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
        for name in crowd.held:
            limit = crowd.couriers[name].take().limit
            assert limit is not None and (limit.kind, limit.name) == (Kind.PARTITION, "main")
    seen = overshoot(log.read_text()[before:], budget)
    assert seen.drains - seen.undone == budget
    asked = ours(rpcs(many))
    print(
        f"\n{many.suite}: settled in {took:.1f} s; past the budget by {seen.nodes} nodes for {seen.seconds:.1f} s; {asked} RPCs"
    )


@pytest.mark.parametrize(("kind", "job", "limit"), [(Kind.COMMON_CAUSE, None, 3), (Kind.SUSPECT_JOB, 7, 2)])
def test_a_suspicion_holds_however_many_drain_at_once(
    many: Cluster, tmp_path: Path, kind: Kind, job: int | None, limit: int
) -> None:
    resume(many)
    with Crowd(many, tmp_path, Rules(), many.node_names[:12]) as crowd:
        crowd.go(replace(WANT, certain=False, job=job))
        crowd.settled(limit)
        assert {n.name for n in crowd.client.nodes() if n.drained} == crowd.drained
        limits = [crowd.couriers[name].take().limit for name in crowd.held]
        assert {each.kind for each in limits if each} == {kind}
