"""slurmctld's topology: its lines, its nodelists, and the budget per switch and block on every release."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.drains.cluster_limits import ClusterLimits
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.node_groups import NodeGroup, expand, parse_topology
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import client_of, drain_of, running

TREE = "SwitchName=s1 Nodes=n[1-2],n3\nSwitchName=s2 Nodes=n4\nSwitchName=top Switches=s[1-2]\n"
BLOCKS = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n"


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("a,b[1-2],c", ["a", "b1", "b2", "c"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("login", ["login"]),
    ],
)
def test_nodelists(nodelist: str, names: list[str]) -> None:
    assert expand(nodelist) == names


@pytest.mark.parametrize(
    "nodelist", ["", "n[", "n[]", "n[1-", "n[a]", "n[3-1]", "n]1[", "a,,b", "n[1-9999999]", "n[1-999]m[1-999]"]
)
def test_what_is_no_nodelist_is_refused(nodelist: str) -> None:
    with pytest.raises(SlurmError):
        expand(nodelist)


@given(st.text(alphabet="n019[],-x \n=", max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        assert all(expand(text))
        parse_topology(f"SwitchName=s Nodes={text}")
    except SlurmError:
        pass


def test_the_lowest_level_counts_and_other_plugins_have_none() -> None:
    tree = "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-2] Switches=s1\n"
    block = "BlockName=b1 BlockIndex=0 Nodes=n1 BlockSize=1\nAggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-2] BlockSize=2\n"
    assert parse_topology(tree) == (NodeGroup("switch", "s1", frozenset({"n1", "n2"})),)
    assert parse_topology(block) == (NodeGroup("block", "b1", frozenset({"n1"})),)
    for other in ("", "RingName=r1 Nodes=n[1-4] RingSize=4\n", "TorusName=t Dims=2x2x2 Nodes=n[1-8]\n", "SwitchName=s Level=0\n"):
        assert parse_topology(other) == ()


# -- what is not known is said, and asked again -------------------------------------------------------


def test_an_unknown_topology_is_no_limit_and_is_asked_for_again() -> None:
    now = [100.0]
    answers: list[SlurmError | tuple[NodeGroup, ...]] = [
        SlurmUnavailable("scontrol gave no answer in 2 s"),
        SlurmUnavailable("scontrol gave no answer in 2 s"),
        (NodeGroup("switch", "s1", frozenset({"n1"})),),
    ]

    def learn() -> tuple[NodeGroup, ...]:
        answer = answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    limits = ClusterLimits(Rules(), learn, clock=lambda: now[0])
    assert limits.due == 100.0
    limits.refresh()
    assert limits.topology == "unknown: scontrol gave no answer in 2 s" and limits.due == 130.0
    limits.refresh()
    assert limits.due == 160.0
    limits.refresh()
    assert limits.topology == "1 switch, 0 block" and limits.due == float("inf") and not answers


# -- on real slurmctld --------------------------------------------------------------------------------


def topology_rpcs(cluster: Cluster) -> int:
    text = cluster.run(["/usr/bin/sdiag"]).stdout.partition("by message type")[2].partition("by user")[0]
    return sum(int(line.partition("count:")[2].split()[0]) for line in text.splitlines() if "REQUEST_TOPO_INFO" in line)


def protocol(cluster: Cluster, folder: Path, node: str) -> DrainProtocol:
    """As the agent makes it: its own ledger, its own topology."""
    client: Scontrol = client_of(cluster)
    rules = Rules(budget_percent=100, budget_group_percent=34, common_cause_nodes=0)
    drain = drain_of(client, folder, node, rules)
    drain.state.limits = ClusterLimits(rules, client.topology)
    drain.limits.refresh()
    return drain


@pytest.mark.slurm
@pytest.mark.parametrize("suite", list(SUITES))
@pytest.mark.parametrize("kind", ["switch", "block"])
def test_a_switch_or_block_that_is_full_holds_the_next(suite: str, kind: str, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    if (suite, kind) == ("bookworm", "block"):
        pytest.skip("Slurm 22.05 has no topology/block (new in 23.11)")
    text, plugin, first, other = (TREE, "tree", "s1", "n4") if kind == "switch" else (BLOCKS, "block", "b1", "n3")
    told = "2 switch, 0 block" if kind == "switch" else "0 switch, 2 block"
    with running(Cluster(suite, nodes=4, cores=4, extra_conf=f"TopologyPlugin=topology/{plugin}", topology=text)) as cluster:
        drains = {name: protocol(cluster, tmp_path, name) for name in ("n1", "n2", other)}
        assert {drain.limits.topology for drain in drains.values()} == {told}
        before = topology_rpcs(cluster)
        assert finish(drains["n1"].drain("xid", "bad")).outcome is Outcome.DRAINED
        held = finish(drains["n2"].drain("xid", "bad"))
        assert held.outcome is Outcome.OVER_BUDGET
        assert held.limit is not None and (held.limit.kind.value, held.limit.name) == (kind, first)
        assert finish(drains[other].drain("xid", "bad")).outcome is Outcome.DRAINED
        assert topology_rpcs(cluster) == before == 3  # read once by each, not with every drain
        assert {n.name for n in client_of(cluster).nodes() if n.drained} == {"n1", other}


@pytest.mark.slurm
def test_a_cluster_without_topology_has_no_such_limit(cluster: Cluster) -> None:
    limits = ClusterLimits(Rules(), client_of(cluster).topology)
    limits.refresh()
    assert limits.topology == "none: slurmctld knows no switch and no block" and limits.due == float("inf")
