"""Slurm marks the node for a job that our prolog refused, after the agent has looked: that is lifted, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import client_of, drain_of

pytestmark = pytest.mark.slurm

XID = CourierOrder(kind="drain", check="xid", summary="Xid 79 on GPU 0000:1b:00.0")
FIT = CourierOrder(fit=True)
PROLOG_ERROR = "Prolog error"


class Asked(Scontrol):
    """Counts what was read of one node: a look that found nothing shows nowhere else."""

    reads = 0

    def node(self, name: str) -> NodeState:
        found = super().node(name)
        self.reads += 1
        return found


@pytest.fixture
def couriers(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Courier]]:
    made: list[Courier] = []

    def make(node: str, rules: Rules | None = None, **more: Callable[..., str]) -> Courier:
        client = Asked(conf="/etc/slurm/slurm.conf", bin_dir=str(cluster.bin))
        drain = drain_of(client, tmp_path, node, rules or Rules(budget_percent=100))
        drain = DrainProtocol(NodeDrainState(client, drain.ledger, node, drain.state.rules, **more))  # type: ignore[arg-type]
        made.append(Courier(drain, reconcile_seconds=600))
        made[-1].start()
        return made[-1]

    yield make
    for courier in made:
        courier.stop()


def until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def reads(courier: Courier) -> int:
    client = courier._drain.state.client
    assert isinstance(client, Asked)
    return client.reads


def mark(cluster: Cluster, node: str, reason: str = PROLOG_ERROR) -> None:
    cluster.scontrol("update", f"nodename={node}", "state=drain", f"reason={reason}")


def test_the_mark_comes_after_the_first_look(cluster: Cluster, couriers: Callable[..., Courier]) -> None:
    client = client_of(cluster)
    by_ledger, without, unfit, broken, taken = (couriers(f"n{i}") for i in range(1, 6))
    for courier in (by_ledger, taken):
        courier.want(XID)
    for node, courier in (("n1", by_ledger), ("n5", taken)):
        until(lambda c=courier: c.take().drained, "our drain")
        cluster.scontrol("update", f"nodename={node}", "state=resume")
    for courier in (by_ledger, without, unfit, broken):
        before = reads(courier)
        courier.refused()
        until(lambda c=courier, n=before: reads(c) > n, "a first look")
    until(lambda: by_ledger.take().acknowledged == 1, "acknowledgement")
    for node in ("n1", "n2", "n3", "n4"):
        mark(cluster, node)
    for courier in (by_ledger, without):
        courier.want(FIT)
    until(lambda: not any(client.node(n).drained for n in ("n1", "n2")), "n1 and n2 in service")
    # What may not run jobs keeps the mark until it may, or is drained by us in its place.
    until(lambda: unfit._refusal.marked and broken._refusal.marked, "a look that saw the mark")
    assert client.node("n3").reason == client.node("n4").reason == PROLOG_ERROR
    unfit.want(FIT)
    broken.want(XID)
    until(lambda: not client.node("n3").drained, "n3 in service")
    until(lambda: broken.take().drained, "our drain in place of the mark")
    assert client.node("n4").reason.startswith("fairlead:xid:")
    until(lambda: not any(c.refusal_pending for c in (by_ledger, without, unfit, broken)), "the end of it")
    # The mark is seen before the refusal's record is: our drain was lifted by somebody all the same.
    mark(cluster, "n5")
    taken.reconcile()
    until(lambda: not taken.take().drained, "a foreign drain")
    taken.refused()
    until(lambda: taken.take().acknowledged == 1, "acknowledgement")
    taken.want(FIT)
    until(lambda: not client.node("n5").drained, "n5 in service")


def test_what_is_not_ours_to_lift(cluster: Cluster, couriers: Callable[..., Courier]) -> None:
    """No refusal of ours, another's words, another prolog, a hold, an epilog that failed meanwhile, another machine, DOWN."""
    client = client_of(cluster)
    all_of_them = {
        "n1": couriers("n1"),
        "n2": couriers("n2"),
        "n3": couriers("n3", Rules(foreign_prolog=True)),
        "n4": couriers("n4", barred=lambda: "held by an admin"),
        "n5": couriers("n5", hidden=lambda since: "an epilog failed"),
        "n6": couriers("n6", stranger=lambda mine: "another machine"),
        "n7": couriers("n7"),
    }
    for node in all_of_them:
        mark(cluster, node, "Prolog error, ann looks" if node == "n2" else PROLOG_ERROR)
    cluster.scontrol("update", "nodename=n7", "state=down", f"reason={PROLOG_ERROR}")
    stood = client.nodes()
    for node, courier in all_of_them.items():
        courier.want(FIT)
        (courier.reconcile if node == "n1" else courier.refused)()
    for node, courier in all_of_them.items():
        until(lambda c=courier, few=1 if node == "n1" else 2: reads(c) >= few, f"looks at {node}")
    assert client.nodes() == stood
