"""Since when slurmctld has had its state: what scontrol says, and a real one that is killed before it has saved our drain."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.drains.outcome import Outcome, finish
from fairlead.errors import SlurmUnavailable
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol, parse_began, parse_node_times
from tests.lab.cluster import Cluster
from tests.slurm.conftest import drain_of, kill_slurmctld, save

WHY = "GPU gone"
CONFIG = """Configuration data as of 1795298182
BOOT_TIME               = 1795298180
BatchStartTimeout       = 10 sec

Slurmctld(primary) at lab is {0}
"""


NODES = """NodeName=n1 Arch=x86_64 CPUTot=8
   State=IDLE BootTime=1795370916 SlurmdStartTime=1795384029 LastBusyTime=1795384029
NodeName=n2 Arch=x86_64 SlurmdStartTime=1795384030 LastBusyTime=1795384029 Reason=[ann@12] twice [root@1795384035] Comment=[x@7]
NodeName=n3 State=DOWN SlurmdStartTime=None Reason=Not responding [slurm@1795384036]
"""


def test_the_times_of_all_nodes_are_read_from_one_answer() -> None:
    n1, n2, n3 = parse_node_times(NODES)
    assert (n1.name, n1.reason_time, n1.slurmd_began) == ("n1", 0, 1795384029)
    assert (n2.name, n2.reason_time, n2.slurmd_began) == ("n2", 1795384035, 1795384030)
    assert (n3.name, n3.reason_time, n3.slurmd_began) == ("n3", 1795384036, 0)
    assert parse_node_times("") == ()


def test_slurmctlds_own_times_of_all_nodes(cluster: Cluster, client: Scontrol) -> None:
    before = int(time.time())
    cluster.scontrol("update", "nodename=n2", "state=drain", "reason=ann: said [bob@12] so")
    times = {each.name: each for each in client.node_times()}
    assert set(times) == {node.name for node in client.nodes()}
    assert times["n2"].reason_time == client.node("n2").reason_time >= before
    assert all(0 < each.slurmd_began <= time.time() for each in times.values())


def test_the_begin_is_the_primarys_own() -> None:
    assert parse_began(CONFIG.format("UP")) == 1795298180
    assert parse_began(CONFIG.format("DOWN") + "Slurmctld(backup) at lab2 is UP\n") == float("inf")
    assert parse_began(CONFIG.format("UP").replace("1795298180", "2026-11-21T21:43:04")) == float("inf")
    assert parse_began("") == float("inf")


@pytest.mark.release("trixie")
def test_slurmctld_killed_before_it_has_saved_our_drain(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    """A write has it save; what comes in the next 5 s it saves only then (SAVE_MAX_WAIT), unless it is killed before."""
    drain = drain_of(client, tmp_path, "n1")
    for _ in range(5):
        save(cluster)
        assert finish(drain.drain("xid", WHY)).outcome is Outcome.DRAINED
        kill_slurmctld(cluster)
        node = registered(client)
        if not node.drained:
            break
        assert finish(drain.reconcile()).outcome is Outcome.DRAINED  # it had been saved after all
        assert finish(drain.resume()).outcome is Outcome.RESUMED
    else:
        pytest.fail("slurmctld saved our drain each time")
    assert finish(drain.reconcile()).outcome is Outcome.LOST
    while time.time() < client.began() + 1:  # both times are whole seconds
        time.sleep(0.05)
    assert finish(drain.drain("xid", WHY)).outcome is Outcome.DRAINED
    cluster.scontrol("update", "nodename=n1", "state=undrain")
    assert finish(drain.reconcile()).outcome is Outcome.ACKNOWLEDGED


def registered(client: Scontrol) -> NodeState:
    """n1 when slurmctld answers and has heard of it."""
    deadline = time.monotonic() + 90
    while True:
        with suppress(SlurmUnavailable):
            node = client.node("n1")
            if "UNKNOWN" not in node.states:
                return node
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_slurmctld_that_goes_away_meanwhile_is_asked_again(tmp_path: Path) -> None:
    """scontrol has the answer then, and ends with 1 and no word since its ping had none (seen on 24.11)."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'BOOT_TIME               = 1795298180'\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(SlurmUnavailable, match="ended with 1"):
        Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(tmp_path)).began()
