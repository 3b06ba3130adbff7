"""The adapter against real slurmctld: what it says of a node is what slurmctld has, whatever a reason holds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm.scontrol import Scontrol, parse_jobs, parse_nodes
from tests.lab.cluster import Cluster
from tests.slurm.conftest import NODES, client_of

HOSTILE = (
    "two  words",
    "none",
    "swapping DIMM [root@2026-01-01T00:00:00]",
    "x State=IDLE Reason=ok NodeName=n2",
    "line one\nNodeName=n1 State=IDLE\n   Reason=none",
    "tab\there, comma, | and @mark@",
    " leading and trailing ",
    "fairlead:xid:abcdef012345 GPU 0000:1b:00.0 Xid 79 : Not responding",
    "ümläut — dash",
)


@pytest.mark.slurm
def test_reason_comes_back_exactly(cluster: Cluster, client: Scontrol) -> None:
    for reason in HOSTILE:
        before = int(time.time())
        cluster.scontrol("update", "nodename=n1", "state=drain", f"reason={reason}")
        node = client.node("n1")
        assert (node.reason, node.reason_user, node.states) == (reason, "root", {"IDLE", "DRAIN"})
        assert before <= node.reason_time <= time.time() + 1, reason
        assert node.drained and not node.available
        assert [n.name for n in client.nodes() if n.drained] == ["n1"]


@pytest.mark.slurm
def test_all_nodes(client: Scontrol) -> None:
    nodes = client.nodes()
    assert [n.name for n in nodes] == list(NODES)
    assert {(n.states, n.partitions) for n in nodes} == {(frozenset({"IDLE"}), ("main",))}


@pytest.mark.slurm
def test_a_node_in_two_partitions_is_one_node(cluster: Cluster, client: Scontrol) -> None:
    cluster.scontrol("create", "partition=second", "nodes=n1,n2", "hidden=yes")
    try:
        assert client.node("n1").partitions in {("main", "second"), ("second", "main")}
        assert client.node("n3").partitions == ("main",)
    finally:
        cluster.scontrol("delete", "partition=second")


@pytest.mark.slurm
def test_states(cluster: Cluster, client: Scontrol) -> None:
    cluster.scontrol("update", "nodename=n2", "state=down", "reason=x")
    cluster.scontrol("update", "nodename=n3", "state=drain", "reason=x")
    cluster.scontrol("update", "nodename=n3", "state=down", "reason=y")
    cluster.scontrol("update", "nodename=n4", "state=fail", "reason=z")
    cluster.scontrol("create", "reservation", "starttime=now", "duration=10", "nodes=n5", "flags=maint", "users=root")
    deadline = time.monotonic() + 70
    while "MAINTENANCE" not in (found := {n.name: n.states for n in client.nodes()})["n5"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert {"DOWN"} <= found["n2"] and "DRAIN" not in found["n2"]
    assert {"DOWN", "DRAIN"} <= found["n3"]
    assert {"IDLE", "FAIL"} <= found["n4"]


@pytest.mark.slurm
def test_undrain_leaves_a_down_node_down(cluster: Cluster, client: Scontrol) -> None:
    client.drain("n1", "ours")
    cluster.scontrol("update", "nodename=n1", "state=down", "reason=burning")
    client.resume("n1")
    node = client.node("n1")
    assert "DOWN" in node.states and "DRAIN" not in node.states and node.reason == "burning"


@pytest.mark.slurm
def test_jobs(cluster: Cluster, client: Scontrol) -> None:
    job = cluster.submit("#!/bin/sh\nsleep 60\n", "-N2", "-w", "n1,n2")
    cluster.wait_job(job, "RUNNING")
    assert [(j.id, j.state, j.nodes) for j in client.jobs_on("n2")] == [(str(job), "R", 2)]
    assert client.jobs_on("n3") == ()


@pytest.mark.slurm
def test_refusals_are_one_line(cluster: Cluster, client: Scontrol) -> None:
    with pytest.raises(SlurmError, match="no node n99") as missing:
        client.node("n99")
    assert not isinstance(missing.value, SlurmUnavailable)
    with pytest.raises(SlurmError, match="Invalid node name") as refused:
        client.update_reason("n99", "x")
    assert "\n" not in str(refused.value) and not isinstance(refused.value, SlurmUnavailable)


@pytest.mark.slurm
def test_the_callers_environment_does_not_choose_the_cluster(client: Scontrol, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_CLUSTERS": "other", "SINFO_FORMAT": "x", "SLURM_CONF": "/nowhere", "SINFO_STATES": "down"}.items():
        monkeypatch.setenv(name, value)
    assert len(client.nodes()) == len(NODES)


@pytest.mark.slurm
def test_slurmctld_away(cluster: Cluster) -> None:
    cluster.stop_slurmctld()
    try:
        with pytest.raises(SlurmUnavailable, match="sinfo"):
            client_of(cluster, deadline_seconds=1).node("n1")
        with pytest.raises(SlurmUnavailable, match="scontrol"):
            client_of(cluster, deadline_seconds=1).drain("n1", "x")
    finally:
        cluster.start_slurmctld()


def test_commands_missing() -> None:
    with pytest.raises(SlurmError, match="/nowhere/sinfo: No such file") as error:
        Scontrol(bin_dir="/nowhere").nodes()
    assert "slurm.bin_dir" in error.value.hint


@pytest.mark.parametrize("name", ["", "-n1", "n[1-3]", "n1,n2", "n1 Reason=x", "n1\n", "ALL/"])
def test_what_is_not_a_node_name(name: str) -> None:
    with pytest.raises(SlurmError, match="not a node name"):
        Scontrol(bin_dir="/nowhere").drain(name, "x")


MARK = "@00112233445566778899aabb@"


@given(st.text(alphabet=st.characters(blacklist_characters="@", blacklist_categories=("Cs",))))
def test_any_reason_is_kept(reason: str) -> None:
    row = f"n1{MARK}host{MARK}idle+drain{MARK}root{MARK}17{MARK}main*{MARK}{reason}{MARK}\n"
    second = f"n2{MARK}host{MARK}down*{MARK}Unknown{MARK}Unknown{MARK}main{MARK}none{MARK}\n"
    one, two = parse_nodes(row + second, MARK)
    assert (one.name, one.reason, one.reason_time, one.partitions) == ("n1", reason, 17, ("main",))
    assert (two.name, two.states, two.reason, two.reason_user) == ("n2", {"DOWN", "NOT_RESPONDING"}, "", "")


@given(st.text())
def test_other_text_is_an_error_or_nothing(text: str) -> None:
    try:
        assert parse_nodes(text, MARK) == ()
    except SlurmError:
        pass


@given(st.text())
def test_job_lines_never_crash(text: str) -> None:
    parse_jobs(text)


@pytest.mark.parametrize("digits", ["²", "9" * 5000, "-1", "", "1.5"])
def test_what_only_looks_like_a_number(digits: str) -> None:
    """str.isdigit() holds for "²", and int() refuses more than 4300 digits."""
    assert parse_jobs(f"7 R {digits}\n9 CG 1\n")[-1].id == "9"
    (node,) = parse_nodes(f"n1{MARK}host{MARK}idle{MARK}root{MARK}{digits}{MARK}main{MARK}x{MARK}\n", MARK)
    assert node.reason_time == 0


def test_only_jobs_that_hold_the_node() -> None:
    assert [j.id for j in parse_jobs("7 R 2\n8 CD 1\n9 CG 1\n10 PD 4\nx\n")] == ["7", "9"]


@pytest.mark.parametrize(
    ("compact", "words"),
    [
        ("idle", {"IDLE"}),
        ("down*", {"DOWN", "NOT_RESPONDING"}),
        ("allocated@", {"ALLOCATED", "REBOOT_REQUESTED"}),
        ("reboot^", {"REBOOT", "REBOOT_ISSUED"}),
        ("idle~", {"IDLE", "POWERED_DOWN"}),
        ("idle%", {"IDLE", "POWERING_DOWN"}),
        ("mixed!", {"MIXED", "POWER_DOWN"}),
        ("idle#", {"IDLE", "POWERING_UP"}),
        ("idle$", {"IDLE", "MAINTENANCE"}),
        ("idle-", {"IDLE", "PLANNED"}),
        ("mixed+drain+reboot_requested", {"MIXED", "DRAIN", "REBOOT_REQUESTED"}),
    ],
)
def test_marks_of_sinfo_are_flags(compact: str, words: set[str]) -> None:
    """sinfo(1), NODE STATE CODES; ``@`` and ``^`` as 26.05 shows them on real nodes."""
    row = f"n1{MARK}host{MARK}{compact}{MARK}root{MARK}17{MARK}main{MARK}x{MARK}\n"
    assert parse_nodes(row, MARK)[0].states == words
