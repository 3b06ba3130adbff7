"""Random interleavings on real slurmctld: on each of eight nodes at once, one sequence after the other."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairlead.errors import SlurmUnavailable
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.roots import LabError
from tests.slurm.conftest import NODES, client_of, running
from tests.slurm.interleave import sequence

pytestmark = pytest.mark.slurm

SEED = 20260805


class Patient(Scontrol):
    """Waits for slurmctld while it restarts."""

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return super().nodes(names)
            except SlurmUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def began(self) -> float:
        deadline = time.monotonic() + 60
        while True:
            try:
                return super().began()
            except SlurmUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.05)


class Calm:
    """Sequences that come to rest, and a restart of slurmctld, are not at the same time: the rest's clock runs ahead of
    slurmctld's, so that an agent would be told of an outage hours later. A restart waits for those at rest, others for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._resting = 0
        self._restarts = False

    @contextmanager
    def rest(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._restarts)
            self._resting += 1
        try:
            yield
        finally:
            with self._condition:
                self._resting -= 1
                self._condition.notify_all()

    @contextmanager
    def restart(self) -> Iterator[None]:
        with self._condition:
            self._restarts = True
            self._condition.wait_for(lambda: not self._resting)
        try:
            yield
        finally:
            with self._condition:
                self._restarts = False
                self._condition.notify_all()


class Real:
    """One node of a cluster. Its jobs have its name and are never requeued."""

    def __init__(self, cluster: Cluster, node: str, calm: Calm, *, slow: bool) -> None:
        self.rest = calm.rest
        self.cluster = cluster
        self.node = node
        self.client = client_of(cluster)
        self.watch = Patient(conf=self.client.conf, bin_dir=self.client.bin_dir)
        self.away = False
        self.steady = not slow
        self.events: tuple[str, ...] = ("mark", "job", "no job") if slow else ("mark",)

    def passed(self, seconds: float) -> None:
        """Its time is its own."""

    def update(self, state: str, reason: str) -> None:
        words = [*([f"state={state}"] if state else []), *([f"reason={reason}"] if reason else [])]
        self.cluster.scontrol("update", f"nodename={self.node}", *words, check=False)

    def event(self, what: str) -> bool:
        node = self.watch.node(self.node)
        if what == "mark" and not node.states & {"DRAIN", "DOWN", "FAIL"}:  # what drain_nodes() does for a prolog that failed
            self.update("DRAIN", "Prolog error")
        elif what == "job" and not self.jobs():
            with suppress(LabError):  # slurmctld is away
                self.cluster.submit("#!/bin/sh\nsleep 600\n", f"-w{self.node}", f"--job-name={self.node}", "--no-requeue")
        elif what == "no job":
            self.cancel()
        return True

    def jobs(self) -> list[str]:
        """The states of its jobs that have not ended. Asked of squeue: sinfo's answer about one node says MIXED of a node whose
        job has ended, until somebody lists all nodes (slurmctld's proc_req.c, _slurm_rpc_dump_node_single, says so itself)."""
        listed = self.cluster.run(["/usr/bin/squeue", "-h", "-a", f"--name={self.node}", "-o", "%t"], check=False)
        return listed.stdout.split()

    def cancel(self) -> None:
        """By name, not by number: it may have been submitted though sbatch had no answer."""
        self.cluster.run(["/usr/bin/scancel", "--user=alice", f"--name={self.node}"], check=False)

    def settle(self) -> None:
        deadline = time.monotonic() + 60
        while (left := [] if self.steady else self.jobs()) or self.watch.node(self.node).states & {"UNKNOWN", "COMPLETING"}:
            assert time.monotonic() < deadline, (left, self.watch.node(self.node))
            if set(left) - {"CG"}:
                self.cancel()
            time.sleep(0.05)

    def clean(self) -> None:
        """In service, for the next sequence."""
        if self.watch.node(self.node).states & {"DRAIN", "DOWN", "FAIL"}:
            self.update("RESUME", "")


@pytest.fixture
def strict(up: Cluster) -> Iterator[Cluster]:
    with running(Cluster(up.suite, nodes=len(NODES), cores=4, extra_conf="ReturnToService=0")) as own:
        yield own


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def on_all_nodes(cluster: Cluster, memory: Path, sequences: int, calm: Calm, *, length: int, slow: bool) -> Counter[str]:
    """``sequences`` on each node, every fifth with a stale second agent; the first violation is raised."""
    counts = {name: Counter[str]() for name in NODES}
    failed: list[BaseException] = []

    def one(name: str) -> None:
        try:
            world = Real(cluster, name, calm, slow=slow)
            for number in range(sequences):
                chance = random.Random(f"{SEED} {name} {number}")
                folder = memory / f"{name}.{number}"
                sequence(world, folder, chance, counts[name], length=length, stale=number % 5 == 0)
                shutil.rmtree(folder)
                world.clean()
                if failed:
                    return
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=one, args=(name,)) for name in NODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sum(counts.values(), Counter[str]())


def test_interleavings_on_slurmctld(strict: Cluster, memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    counts = on_all_nodes(strict, memory, 25, Calm(), length=8, slow=False)
    with capsys.disabled():
        print(f"\nslurmctld of {strict.suite}: {dict(sorted(counts.items()))} in {time.monotonic() - began:.0f} s, seed {SEED}")
    assert counts["sequences"] == 25 * len(NODES) and counts["drain written"] > 25


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_interleavings_with_jobs_and_restarts(strict: Cluster, memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """slurmctld is restarted while the sequences go on. By SIGTERM: one that is killed forgets what it was told in the last
    seconds (its save thread waits up to 5 s), which nobody can make good."""
    over, calm = threading.Event(), Calm()
    restarts: list[float] = []

    def restart() -> None:
        while not over.wait(4.0):
            with calm.restart():
                strict.stop_slurmctld()
                strict.start_slurmctld()
            restarts.append(time.monotonic())

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        counts = on_all_nodes(strict, memory, 40, calm, length=30, slow=True)
    finally:
        over.set()
        restarting.join()
    with capsys.disabled():
        print(f"\nslurmctld of {strict.suite}: {len(restarts)} restarts, {dict(sorted(counts.items()))}, seed {SEED}")
