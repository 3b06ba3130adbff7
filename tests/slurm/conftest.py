"""Real slurmctld and slurmd of every release in turn: one cluster of eight nodes per release, swept clean before each test."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairlead.drains import node_writer
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.scontrol import Scontrol
from tests.lab import pyslurm
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES

NODES = tuple(f"n{i}" for i in range(1, 9))
ONE = "trixie"
STATE = "/var/spool/slurm/state/node_state"
KEPT = "/var/spool/slurm/state.kept"
PATIENCE_SECONDS = 60.0
ROOMY = Rules(budget_percent=100, common_cause_nodes=0)


@pytest.fixture(scope="session", params=list(SUITES))
def up(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    # A node that a person set DOWN stays so: with 2, the lab's default, any registration on its way puts it back.
    with running(Cluster(request.param, nodes=len(NODES), cores=4, extra_conf="ReturnToService=1\n")) as cluster:
        yield cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pyslurm 25.11 compiles against 26.05 only, so the others are not collected with it."""
    params = {item: item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")}
    items[:] = [i for i in items if (p := params.get(i, {})).get("make") != "pyslurm" or p["up"] == pyslurm.SUITE]
    items[:] = [i for i in items if not i.get_closest_marker("one_release") or params.get(i, {}).get("up") == ONE]


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of real Slurm may be older: on a loaded machine scontrol alone can take the two seconds after which fairlead
    writes nothing and tries again. That it does is for test_slow_writes.py, and for tests with a clock of their own."""
    if "up" in request.fixturenames and request.path.name != "test_slow_writes.py":
        monkeypatch.setattr(node_writer, "STALE_SECONDS", PATIENCE_SECONDS)


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster while it is up; the pipe to its holder is closed too.

    Not in the second in which slurmctld began: what is drained then and gone soon counts as lost by a restart.
    """
    with cluster:
        hold = cluster._hold
        second = int(time.time())
        while int(time.time()) == second:
            time.sleep(0.02)
        yield cluster
    if hold is not None and hold.stdout is not None:
        hold.stdout.close()


def calls(cluster: Cluster) -> list[str]:
    """Calls of Slurm's commands that are under way. Whoever kills an agent, or gives up waiting for a command, does not end its
    call: nsenter has forked, and what it asks for still reaches slurmctld."""
    found = []
    for comm in Path(f"/proc/{cluster.pid}/root/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            found.append(comm.read_text().strip())
    return [name for name in found if name in ("scontrol", "sinfo", "squeue")]


def no_calls(cluster: Cluster) -> None:
    """Wait until what was asked of slurmctld has arrived."""
    deadline = time.monotonic() + 90
    while left := calls(cluster):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.fixture
def cluster(up: Cluster) -> Cluster:
    """The cluster with every node idle, no reservation, no job, and nothing on its way that an earlier test has asked for."""
    no_calls(up)
    for reservation in up.scontrol("-o", "show", "reservation", check=False).splitlines():
        if reservation.startswith("ReservationName="):
            up.scontrol("delete", reservation.split()[0])
    up.run(["/usr/bin/scancel", "--user=alice"], check=False)
    deadline = time.monotonic() + 90
    while True:
        states = {n.name: n.states for n in client_of(up).nodes()}
        if all(s == {"IDLE"} for s in states.values()):
            return up
        for name, words in states.items():
            if words & {"DRAIN", "DOWN", "FAIL"}:
                up.scontrol("update", f"nodename={name}", "state=resume", check=False)
        assert time.monotonic() < deadline, states
        time.sleep(0.05)


def client_of(cluster: Cluster, deadline_seconds: float = 60) -> Scontrol:
    return Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(cluster.bin), deadline_seconds=deadline_seconds)


@pytest.fixture
def client(cluster: Cluster) -> Scontrol:
    return client_of(cluster)


def drain_of(client: Scontrol, folder: Path, node: str, rules: Rules = ROOMY) -> DrainProtocol:
    """The protocols of one node with a ledger of its own below ``folder``."""
    for sub in ("state", "run"):
        (folder / node / sub).mkdir(parents=True, exist_ok=True)
    ledger = Ledger(str(folder / node / "state"), str(folder / node / "run"), node=node, machine="m1")
    return DrainProtocol(
        NodeDrainState(client, ledger, node, rules, reconfigured=lambda: client.release() >= "23.11", not_after=client.not_after)
    )


@pytest.fixture
def drain(client: Scontrol, tmp_path: Path) -> DrainProtocol:
    return drain_of(client, tmp_path, "n1")


def save(cluster: Cluster, node: str = "n2") -> None:
    """Have slurmctld write down what it knows of its nodes, and wait for that: what others changed before is not lost any more,
    and what is changed from now on it saves up to 5 s later only (SAVE_MAX_WAIT, slurmctld/state_save.c). A copy is kept."""
    cluster.run(["/bin/rm", "-rf", KEPT])
    asked = time.time()
    cluster.scontrol("update", f"nodename={node}", "state=drain", f"reason=save {asked}")
    deadline = asked + 60
    while float(cluster.run(["/usr/bin/stat", "-c", "%.9Y", STATE]).stdout) < asked:
        assert time.time() < deadline, "slurmctld does not save the state of its nodes"
        time.sleep(0.05)
    cluster.run(["/bin/cp", "-a", "--no-target-directory", os.path.dirname(STATE), KEPT])


def kill_slurmctld(cluster: Cluster) -> None:
    """Kill it and start it again with what it had written down by ``save``, as if it had not come to write since: on a busy
    machine there may be more than its 5 s between the two."""
    cluster.stop_slurmctld(kill=True)
    state = os.path.dirname(STATE)
    cluster.run(["/bin/sh", "-c", f"rm -rf {state} && mv {KEPT} {state}"])
    cluster.start_slurmctld()
