"""Every meeting of the agent, an admin and slurmctld over one node's state, on real slurmctld."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.drains.ledger import Phase
from fairlead.drains.outcome import CONTEST_SECONDS, Outcome, Result, Steps, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import NODES, ROOMY, client_of, drain_of, running

pytestmark = pytest.mark.slurm

WHY = "GPU 0000:1b:00.0 Xid 79: fallen off the bus, reboot_node"


def up_to(steps: Steps, name: str) -> Steps:
    """Take steps until the one called ``name`` comes next."""
    for step in steps:
        if step == name:
            return steps
    raise AssertionError(f"no step {name}")


def admin(cluster: Cluster, node: str, reason: str, state: str = "drain") -> None:
    cluster.scontrol("update", f"nodename={node}", f"state={state}", f"reason={reason}")


def phase_of(drain: DrainProtocol) -> Phase | None:
    entry = drain.ledger.load()
    return entry.phase if entry is not None else None


def drained(drain: DrainProtocol) -> Result:
    result = finish(drain.drain("xid", WHY))
    assert result.outcome is Outcome.DRAINED, result
    return result


def test_idle_node_there_and_back(client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    node = client.node("n1")
    assert node.states == {"IDLE", "DRAIN"}
    head, _, rest = node.reason.partition(" ")
    assert head.startswith("fairlead:xid:") and rest == WHY
    entry = drain.ledger.load()
    assert entry is not None and entry.phase is Phase.DRAINED and entry.token.text == node.reason
    assert finish(drain.reconcile()).outcome is Outcome.DRAINED
    assert finish(drain.drain("xid", WHY)).outcome is Outcome.DRAINED
    assert client.node("n1").reason == node.reason
    assert finish(drain.resume()).outcome is Outcome.RESUMED
    assert not client.node("n1").drained
    assert drain.ledger.load() is None


@pytest.mark.release("trixie")
def test_each_drain_has_its_own_token(client: Scontrol, drain: DrainProtocol) -> None:
    reasons = set()
    for _ in range(2):
        drained(drain)
        reasons.add(client.node("n1").reason)
        finish(drain.resume())
    assert len(reasons) == 2


@pytest.mark.release("bookworm")
def test_running_jobs_go_on(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    for node, tasks in (("n1", 1), ("n2", 8)):
        drain = drain_of(client, tmp_path, node)
        job = cluster.submit("#!/bin/sh\nsleep 600\n", f"-w{node}", f"-n{tasks}")
        cluster.wait_job(job, "RUNNING")
        drained(drain)
        states = client.node(node).states
        assert "DRAIN" in states and states & {"ALLOCATED", "MIXED"}
        assert cluster.job_state(job) == "RUNNING"
        assert finish(drain.resume()).outcome is Outcome.RESUMED
        assert cluster.job_state(job) == "RUNNING"


def test_a_persons_state_comes_first(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    for node, state in (("n1", "drain"), ("n2", "down"), ("n3", "fail")):
        drain = drain_of(client, tmp_path, node)
        admin(cluster, node, "swapping a DIMM", state)
        before = client.node(node)
        result = finish(drain.drain("xid", WHY))
        assert result.outcome is Outcome.FOREIGN and "swapping a DIMM" in result.detail, state
        assert finish(drain.resume()).outcome is Outcome.FOREIGN, state
        assert finish(drain.reconcile()).outcome is Outcome.FOREIGN, state
        assert client.node(node) == before


def test_a_person_writes_over_ours(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    admin(cluster, "n1", "mine now")
    assert finish(drain.resume()).outcome is Outcome.FOREIGN
    node = client.node("n1")
    assert node.drained and node.reason == "mine now" and phase_of(drain) is Phase.TAKEN
    assert finish(drain.reconcile()).outcome is Outcome.FOREIGN


def test_a_person_adds_to_ours(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    for node, edit in (("n1", "{} checked by ann"), ("n2", "x {}"), ("n3", "{} : Not responding by me")):
        drain = drain_of(client, tmp_path, node)
        drained(drain)
        text = edit.format(client.node(node).reason)
        cluster.scontrol("update", f"nodename={node}", f"reason={text}")
        assert finish(drain.resume()).outcome is Outcome.FOREIGN
        assert client.node(node).reason == text and client.node(node).drained


def test_a_person_resumes_ours(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    cluster.scontrol("update", "nodename=n1", "state=resume")
    assert finish(drain.reconcile()).outcome is Outcome.ACKNOWLEDGED
    assert drain.ledger.load() is None
    assert not client.node("n1").drained


def test_a_person_comes_between_reading_and_the_next_step(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    """Before our write is read back, a person's later write stands and is known as theirs."""
    steps = up_to(drain.drain("xid", WHY), "read back")
    admin(cluster, "n1", "mine now")
    assert finish(steps).outcome is Outcome.FOREIGN
    assert client.node("n1").reason == "mine now" and phase_of(drain) is Phase.TAKEN
    cluster.scontrol("update", "nodename=n1", "state=resume")
    assert finish(drain_of(client, Path(drain.ledger.folders[0]).parents[1], "n1").reconcile()).outcome is Outcome.ACKNOWLEDGED


def test_resumed_before_it_was_read_back(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    """Nobody has seen what the drain is for, so nothing is acknowledged, and the next order makes it again."""
    steps = up_to(drain.drain("xid", WHY), "read back")
    cluster.scontrol("update", "nodename=n1", "state=resume")
    assert finish(steps).outcome is Outcome.FREE
    assert not client.node("n1").drained
    assert finish(drain.drain("xid", WHY)).outcome is Outcome.DRAINED
    assert client.node("n1").drained


def test_words_that_came_over_ours_are_put_back_where_slurm_still_has_them(
    cluster: Cluster, client: Scontrol, drain: DrainProtocol
) -> None:
    """The window itself: after the reading, before the write. 24.11 keeps the text over a resume; the others lose it."""
    drained(drain)
    steps = up_to(drain.resume(), "write")
    admin(cluster, "n1", "do not touch")
    result = finish(steps)
    if cluster.suite == "trixie":
        assert result.outcome is Outcome.FOREIGN and result.detail == "put back: do not touch"
        assert client.node("n1").drained and client.node("n1").reason == "do not touch"
    else:
        assert result.outcome is Outcome.RESUMED and not client.node("n1").drained


def test_slurmctld_restarts_while_ours_stands(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    cluster.stop_slurmctld()
    cluster.start_slurmctld()
    deadline = time.monotonic() + 90
    while client.node("n1").states != {"IDLE", "DRAIN"}:
        assert time.monotonic() < deadline, client.node("n1")
        time.sleep(0.05)
    assert finish(drain.resume()).outcome is Outcome.RESUMED


@pytest.mark.release("bookworm")
def test_slurmctld_away_during_a_drain(cluster: Cluster, tmp_path: Path) -> None:
    client = client_of(cluster)
    drain = drain_of(client, tmp_path, "n1")
    steps = up_to(drain.drain("xid", WHY), "write")
    cluster.stop_slurmctld()
    client.deadline_seconds = 1
    try:
        with pytest.raises(SlurmUnavailable):
            finish(steps)
        intended = drain.ledger.load()
        assert intended is not None and intended.phase is Phase.DRAINING
        with pytest.raises(SlurmUnavailable):
            finish(drain.drain("xid", WHY))
    finally:
        cluster.start_slurmctld()
    deadline = time.monotonic() + 90  # a node that has not registered again is left alone
    while "UNKNOWN" in client_of(cluster).node("n1").states:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # The lab's scontrol outlives its deadline (nsenter forks), so the first write may still arrive: either way it is ours.
    drain = drain_of(client_of(cluster), tmp_path, "n1")
    drained(drain)
    assert drain.state.client.node("n1").reason == intended.token.text


@pytest.mark.release("trixie")
def test_an_intent_whose_write_arrived_unseen_is_still_ours(client: Scontrol, drain: DrainProtocol) -> None:
    """The write got through, its answer did not, and by the next attempt another check speaks first."""
    up_to(drain.drain("xid", WHY), "read back").close()
    assert finish(drain.drain("gpu_count", "7 of 8 GPUs")).outcome is Outcome.DRAINED
    assert client.node("n1").reason.startswith("fairlead:xid:")
    assert finish(drain.resume()).outcome is Outcome.RESUMED


def test_not_responding_is_still_ours(cluster: Cluster, tmp_path: Path) -> None:
    """slurmctld sets a silent node DOWN and appends to the reason; the drain stays ours, and is not lifted meanwhile."""
    client = client_of(cluster)
    drain = drain_of(client, tmp_path, "n8")
    drained(drain)
    text = client.node("n8").reason
    cluster.stop_slurmd("n8", kill=True)
    try:
        cluster.scontrol("update", "nodename=n8", "state=down", f"reason={text} : Not responding")
        assert finish(drain.reconcile()).outcome is Outcome.DRAINED
        result = finish(drain.resume())
        assert (result.outcome, result.detail) == (
            Outcome.BLOCKED,
            "down in slurmctld: slurmd does not answer, or somebody set it",
        )
        assert client.node("n8").drained
    finally:
        cluster.start_slurmd("n8")


def test_maintenance_reservation_is_left_as_it_is(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    cluster.scontrol("create", "reservation=m", "starttime=now", "duration=10", "nodes=n1", "flags=maint", "users=root")
    drained(drain)
    assert finish(drain.resume()).outcome is Outcome.RESUMED
    assert "Nodes=n1" in cluster.scontrol("-o", "show", "reservation", "m")


@pytest.mark.release("forky")
def test_a_completing_job_holds_the_resume(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    wait = "n=0; while [ ! -e /run/go-on ] && [ $n -lt 600 ]; do /bin/sleep 0.1; n=$((n+1)); done"
    files = {"/etc/slurm-epilog": f"#!/bin/sh\n{wait}\n"}
    with running(Cluster(cluster.suite, nodes=1, cores=4, files=files, epilog="/etc/slurm-epilog")) as slow:
        own = client_of(slow)
        drain = drain_of(own, tmp_path, "n1")
        job = slow.submit("#!/bin/sh\nsleep 60\n")
        slow.wait_job(job, "RUNNING")
        drained(drain)
        slow.run(["/usr/bin/scancel", str(job)])
        slow.wait_job(job, "COMPLETING")
        result = finish(drain.resume())
        assert result.outcome is Outcome.BLOCKED and "completing" in result.detail
        slow.run(["/usr/bin/touch", "/run/go-on"])
        deadline = time.monotonic() + 60
        while finish(drain.resume()).outcome is not Outcome.RESUMED:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.release("trixie")
def test_what_was_hidden_holds_the_resume(client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    drain.state.hidden = lambda since: "an epilog failed"
    assert finish(drain.resume()).detail == "an epilog failed"
    assert client.node("n1").drained


@pytest.mark.release("trixie")
def test_a_lost_ledger_leaves_an_orphan_that_a_person_can_adopt(client: Scontrol, drain: DrainProtocol) -> None:
    drained(drain)
    reason = client.node("n1").reason
    drain.ledger.save(None)
    assert finish(drain.drain("xid", WHY)).outcome is Outcome.ORPHAN
    assert finish(drain.resume()).outcome is Outcome.ORPHAN
    assert client.node("n1").reason == reason
    assert finish(drain.adopt()).outcome is Outcome.DRAINED
    assert finish(drain.resume()).outcome is Outcome.RESUMED


@pytest.mark.release("trixie")
def test_a_drain_of_ours_with_a_persons_words_is_not_adopted(cluster: Cluster, client: Scontrol, drain: DrainProtocol) -> None:
    """Also by `fairlead resume --adopt`: whoever has written there may have the machine open."""
    drained(drain)
    reason = f"{client.node('n1').reason} ann: riser swap"
    cluster.scontrol("update", "nodename=n1", f"reason={reason}")
    assert finish(drain.reconcile()).outcome is Outcome.FOREIGN
    assert not drain.adoptable(client.node("n1"))
    assert finish(drain.adopt()).outcome is Outcome.FOREIGN
    assert client.node("n1").drained and client.node("n1").reason == reason


@pytest.mark.release("trixie")
def test_another_machine_with_the_same_disk(client: Scontrol, drain: DrainProtocol, tmp_path: Path) -> None:
    drained(drain)
    drain.ledger.machine = "m2"
    drain.ledger._sequence = 0
    assert finish(drain.resume()).outcome is Outcome.ORPHAN
    assert client.node("n1").drained and "another machine" in drain.ledger.trouble


def rpcs(cluster: Cluster) -> int:
    """RPCs that slurmctld served since the last reset, but for sdiag's own and those of its slurmds."""
    text = cluster.run(["/usr/bin/sdiag"]).stdout
    table = text.partition("by message type")[2].partition("by user")[0]
    counted = 0
    for line in table.splitlines():
        name, _, rest = line.strip().partition(" ")
        if "count:" in rest and name in {"REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE", "REQUEST_PARTITION_INFO",
                                          "REQUEST_UPDATE_NODE", "REQUEST_JOB_INFO", "REQUEST_JOB_INFO_SINGLE"}:  # fmt: skip
            counted += int(rest.partition("count:")[2].split()[0])
    return counted


def test_rpcs_per_transition(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    def cost(steps: Steps, wanted: Outcome) -> int:
        cluster.run(["/usr/bin/sdiag", "--reset"])
        assert finish(steps).outcome is wanted
        return rpcs(cluster)

    drain = drain_of(client, tmp_path, "n1")
    assert cost(drain.drain("xid", WHY), Outcome.DRAINED) == 5
    assert cost(drain.reconcile(), Outcome.DRAINED) == 2
    assert cost(drain.resume(), Outcome.RESUMED) == 5
    tight = Rules(budget_percent=1)
    steps = drain_of(client, tmp_path / "b", "n2", tight).drain("xid", WHY)
    cluster.run(["/usr/bin/sdiag", "--reset"])
    up_to(steps, "write")
    admin(cluster, "n3", "between")
    assert finish(steps).outcome is Outcome.OVER_BUDGET
    assert rpcs(cluster) - 1 == 6
    assert not client.node("n2").drained


@pytest.mark.release("trixie")
def test_budget_is_looked_at_before_the_drain(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    admin(cluster, "n5", "old hardware", "down")
    result = finish(drain_of(client, tmp_path, "n1", Rules(budget_percent=13)).drain("xid", WHY))
    assert result.outcome is Outcome.OVER_BUDGET
    assert result.detail == "drain budget of partition main is used up: 1 of 8 nodes are out, 1 may be"
    assert not client.node("n1").drained


@pytest.mark.release("trixie")
def test_drains_by_maintain_are_counted_apart(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    admin(cluster, "n5", "fairlead:maintain:abcdef123456 driver roll-out")
    assert finish(drain_of(client, tmp_path, "n1", Rules(budget_percent=13)).drain("xid", WHY)).outcome is Outcome.DRAINED


@pytest.mark.parametrize("budget_nodes", [1, 3, 8])
@pytest.mark.release("forky")
def test_eight_nodes_at_once(cluster: Cluster, tmp_path: Path, budget_nodes: int) -> None:
    """Whatever the order, no more stay drained than the budget has; those over it undo their own and say so."""
    rules = replace(ROOMY, budget_nodes=budget_nodes)
    drains = {name: drain_of(client_of(cluster), tmp_path, name, rules) for name in NODES}
    results: dict[str, Result] = {}
    gate = threading.Barrier(len(NODES))

    def one(name: str) -> None:
        gate.wait()
        result = finish(drains[name].drain("xid", WHY))
        while result.outcome is Outcome.CONTESTED:  # as the courier does
            time.sleep(random.uniform(*CONTEST_SECONDS))
            result = finish(drains[name].reconcile())
        results[name] = result

    for _ in range(8):  # what was held tries again, as the agent does after a while
        threads = [threading.Thread(target=one, args=(name,)) for name in NODES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        listed = {n.name for n in client_of(cluster).nodes() if n.drained}
        assert listed == {name for name, r in results.items() if r.outcome is Outcome.DRAINED}
        assert {r.outcome for r in results.values()} <= {Outcome.DRAINED, Outcome.OVER_BUDGET}
        assert len(listed) <= budget_nodes
    if budget_nodes == 8:
        assert len(listed) == 8
    else:
        gate = threading.Barrier(1)
        for name in NODES:
            one(name)
        assert sum(r.outcome is Outcome.DRAINED for r in results.values()) == budget_nodes
