"""What every adapter does, against real slurmctld: what it says of a node is what slurmctld has, whatever a reason holds.

scontrol on every release; pyslurm on 26.05, where it can be built (tests/lab/pyslurm.py), running inside that root. Where
it is absent, or built for another release, scontrol is used and says so.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.config import SlurmOptions
from fairlead.drains.from_document import slurm_client
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm import pyslurm_worker
from fairlead.slurm.client import SlurmClient
from fairlead.slurm.pyslurm_adapter import Pyslurm
from fairlead.slurm.scontrol import Scontrol
from tests.lab import pyslurm
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.roots import LabError
from tests.slurm.conftest import NODES, drain_of

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]  # the first use builds pyslurm

Make = Callable[..., SlurmClient]


def python_in(cluster: Cluster) -> Path:
    """A command that is the root's own Python with our worker, and with pyslurm where this is its release."""
    inside = cluster.folder / "etc"
    shutil.copy(pyslurm_worker.__file__, inside)
    if cluster.suite == pyslurm.SUITE and not (inside / "pyslurm").is_dir():
        shutil.copytree(pyslurm.pyslurm(), inside / "pyslurm")
    worker = "/etc/slurm/pyslurm_worker.py"
    command = [*enter_command(cluster.pid), "/usr/bin/env", "PYTHONPATH=/etc/slurm/pyslurm", "/usr/bin/python3", worker]
    path = cluster.bin / "python-with-pyslurm"
    path.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")  # the worker's path of outside is not one inside
    path.chmod(0o755)
    return path


@pytest.fixture(params=["scontrol", "pyslurm"])
def make(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Make]:
    """Makes a client of this adapter."""
    made: list[Pyslurm] = []

    def client(deadline_seconds: float = 60) -> SlurmClient:
        bin_dir = str(cluster.bin)
        if request.param == "scontrol":
            return Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=bin_dir, deadline_seconds=deadline_seconds)
        try:
            python = str(python_in(cluster))
        except LabError as e:
            pytest.skip(f"pyslurm cannot be built here: {e}")
        made.append(Pyslurm(conf="/etc/slurm/slurm.conf", bin_dir=bin_dir, python=python, deadline_seconds=deadline_seconds))
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.fixture
def client(make: Make) -> SlurmClient:
    return make()


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


def test_reason_comes_back_exactly(cluster: Cluster, client: SlurmClient) -> None:
    for reason in HOSTILE:
        before = int(time.time())
        cluster.scontrol("update", "nodename=n1", "state=drain", f"reason={reason}")
        node = client.node("n1")
        assert (node.reason, node.reason_user, node.states) == (reason, "root", {"IDLE", "DRAIN"})
        assert before <= node.reason_time <= time.time() + 1, reason
        assert node.drained and not node.available
        assert [n.name for n in client.nodes() if n.drained] == ["n1"]


def test_all_nodes(client: SlurmClient) -> None:
    nodes = client.nodes()
    assert [n.name for n in nodes] == list(NODES)
    assert {(n.states, n.partitions) for n in nodes} == {(frozenset({"IDLE"}), ("main",))}


def test_a_node_in_two_partitions_is_one_node(cluster: Cluster, client: SlurmClient) -> None:
    cluster.scontrol("create", "partition=second", "nodes=n1,n2", "hidden=yes")
    try:
        assert client.node("n1").partitions in {("main", "second"), ("second", "main")}
        assert client.node("n3").partitions == ("main",)
    finally:
        cluster.scontrol("delete", "partition=second")


def test_states(cluster: Cluster, client: SlurmClient) -> None:
    cluster.scontrol("create", "reservation", "starttime=now", "duration=10", "nodes=n5", "flags=maint", "users=root")
    deadline = time.monotonic() + 70
    while "MAINTENANCE" not in (found := {n.name: n.states for n in client.nodes()})["n5"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    for name in ("n2", "n3"):  # it would register, and with that be up again
        cluster.stop_slurmd(name, kill=True)
    try:
        cluster.scontrol("update", "nodename=n2", "state=down", "reason=x")
        cluster.scontrol("update", "nodename=n3", "state=drain", "reason=x")
        cluster.scontrol("update", "nodename=n3", "state=down", "reason=y")
        cluster.scontrol("update", "nodename=n4", "state=fail", "reason=z")
        found = {n.name: n.states for n in client.nodes()}
    finally:
        for name in ("n2", "n3"):
            cluster.start_slurmd(name)
    assert {"DOWN"} <= found["n2"] and "DRAIN" not in found["n2"]
    assert {"DOWN", "DRAIN"} <= found["n3"]
    assert {"IDLE", "FAIL"} <= found["n4"]


def test_undrain_leaves_a_down_node_down(cluster: Cluster, client: SlurmClient) -> None:
    client.drain("n1", "ours")
    cluster.stop_slurmd("n1", kill=True)
    try:
        cluster.scontrol("update", "nodename=n1", "state=down", "reason=burning")
        client.resume("n1")
        node = client.node("n1")
    finally:
        cluster.start_slurmd("n1")
    assert "DOWN" in node.states and "DRAIN" not in node.states and node.reason == "burning"


def test_jobs(cluster: Cluster, client: SlurmClient) -> None:
    job = cluster.submit("#!/bin/sh\nsleep 60\n", "-N2", "-w", "n1,n2")
    cluster.wait_job(job, "RUNNING")
    assert [(j.id, j.state, j.nodes) for j in client.jobs_on("n2")] == [(str(job), "R", 2)]
    assert client.jobs_on("n3") == ()


def test_refusals_are_one_line(cluster: Cluster, client: SlurmClient) -> None:
    with pytest.raises(SlurmError, match="no node n99") as missing:
        client.node("n99")
    assert not isinstance(missing.value, SlurmUnavailable)
    with pytest.raises(SlurmError, match="Invalid node name") as refused:
        client.update_reason("n99", "x")
    assert "\n" not in str(refused.value) and not isinstance(refused.value, SlurmUnavailable)


def test_slurmctld_away(cluster: Cluster, make: Make) -> None:
    client = make(deadline_seconds=20)  # pyslurm's process may need long to start
    client.deadline_seconds = 1  # type: ignore[attr-defined]
    cluster.stop_slurmctld()
    try:
        with pytest.raises(SlurmUnavailable, match=r"sinfo|pyslurm"):
            client.node("n1")
        with pytest.raises(SlurmUnavailable, match=r"scontrol|pyslurm"):
            client.drain("n1", "x")
    finally:
        cluster.start_slurmctld()
    client.deadline_seconds = 20  # type: ignore[attr-defined]
    deadline = time.monotonic() + 90
    while True:  # and it goes on once slurmctld is back
        try:
            assert len(client.nodes()) == len(NODES)
            break
        except SlurmUnavailable:
            assert time.monotonic() < deadline


def test_the_drain_protocol(client: SlurmClient, tmp_path: Path) -> None:
    drain: DrainProtocol = drain_of(client, tmp_path, "n1")  # type: ignore[arg-type]
    assert finish(drain.drain("xid", "Xid 79")).outcome is Outcome.DRAINED
    assert client.node("n1").states == {"IDLE", "DRAIN"}
    assert finish(drain.reconcile()).outcome is Outcome.DRAINED
    assert finish(drain.resume()).outcome is Outcome.RESUMED
    assert not client.node("n1").drained


def test_pyslurm_that_does_not_fit_is_said_and_scontrol_taken(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """bookworm, trixie: a Python without it. forky: built for this 26.05, on a node whose Slurm says another release."""
    why = "pyslurm cannot be loaded: ModuleNotFoundError"
    bin_dir = cluster.bin
    try:
        python = str(python_in(cluster))
    except LabError as e:
        pytest.skip(f"pyslurm cannot be built here: {e}")
    if cluster.suite == pyslurm.SUITE:
        bin_dir = cluster.folder / "other-bin"
        shutil.copytree(cluster.bin, bin_dir, dirs_exist_ok=True)
        tool = bin_dir / "scontrol"
        tool.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec echo slurm 24.11.5\nexec {cluster.bin}/scontrol "$@"\n')
        why = "pyslurm 25.11.2 here was built for Slurm 26.05, this node has 24.11"
    options = SlurmOptions(adapter="pyslurm", pyslurm_python=python, bin_dir=str(bin_dir), conf="/etc/slurm/slurm.conf")
    client = slurm_client(options)
    said = capfd.readouterr().err
    assert isinstance(client, Scontrol) and "pyslurm_does_not_fit instead=scontrol" in said and why in said, said
    assert len(client.nodes()) == len(NODES)


def test_a_python_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(SlurmError, match="/nowhere/python: No such file"):
        Pyslurm(bin_dir=str(cluster.bin), python="/nowhere/python")


def test_a_worker_that_ends_or_hangs_is_no_answer_and_another_is_started(cluster: Cluster) -> None:
    """libslurm ends its process on a wrong slurm.conf, and cannot be hurried."""
    worker = cluster.folder / "worker"
    release = Scontrol(bin_dir=str(cluster.bin)).release()
    hello = json.dumps({"pyslurm": "x", "slurm": [*map(int, release.split(".")), 1]})
    worker.write_text(f"#!/bin/sh\necho '{hello}'\nread -r line\n[ -e {worker}.hang ] && exec sleep 60\nexit 3\n")
    worker.chmod(0o755)
    client = Pyslurm(bin_dir=str(cluster.bin), python=str(worker), deadline_seconds=60)
    try:
        for _ in range(2):
            with pytest.raises(SlurmUnavailable, match=r"pyslurm's process ended \(status 3\)"):
                client.node("n1")
        Path(f"{worker}.hang").touch()
        client.deadline_seconds = 1
        with pytest.raises(SlurmUnavailable, match="no answer in 1 s"):
            client.node("n1")
    finally:
        client.close()
