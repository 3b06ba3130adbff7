"""The agent dies by SIGKILL before every step, and at random moments: the next start completes or undoes, and forgets nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import client_of, drain_of, no_calls

pytestmark = pytest.mark.slurm

PROJECT = Path(__file__).resolve().parents[2]


def child(cluster: Cluster, folder: Path, what: str, at: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.slurm.killed", str(cluster.bin), "n1", str(folder), what, str(at), *more]
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"}
    return subprocess.Popen(command, cwd=PROJECT, env=env, stdout=subprocess.PIPE, text=True)


def outcome_of(process: subprocess.Popen[str]) -> str:
    """What the child said, or "" when it was killed."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL)
    return said.strip()


def settled(client: Scontrol, drain: DrainProtocol) -> Outcome:
    """A new agent's first look; afterwards ledger and slurmctld agree, and ours is the only hand seen."""
    found = finish(drain.reconcile()).outcome
    node = client.node("n1")
    entry = drain.ledger.load()
    assert found in (Outcome.DRAINED, Outcome.FREE, Outcome.RESUMED, Outcome.OVER_BUDGET), found
    assert node.drained == (entry is not None and entry.ours) == (found is Outcome.DRAINED)
    if entry is not None and entry.ours:
        assert node.reason == entry.token.text
    return found


@pytest.mark.release("trixie")
def test_killed_before_every_step_of_a_drain(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    seen = []
    for at in range(20):
        said = outcome_of(child(cluster, tmp_path, "drain", at))
        drain = drain_of(client, tmp_path, "n1")
        found = settled(client, drain)
        seen.append(found)
        assert finish(drain.drain("xid", "GPU gone")).outcome is Outcome.DRAINED
        assert finish(drain.resume()).outcome is Outcome.RESUMED
        if said:
            break
    assert said == "drained" and at == 5
    assert seen == [Outcome.FREE] * 3 + [Outcome.DRAINED] * 3


@pytest.mark.release("forky")
def test_killed_before_every_step_of_a_resume(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    seen = []
    for at in range(20):
        assert outcome_of(child(cluster, tmp_path, "drain", 99)) == "drained"
        said = outcome_of(child(cluster, tmp_path, "resume", at))
        drain = drain_of(client, tmp_path, "n1")
        seen.append(settled(client, drain))
        if client.node("n1").drained:
            assert finish(drain.resume()).outcome is Outcome.RESUMED
        if said:
            break
    assert said == "resumed" and at == 5
    assert seen == [Outcome.DRAINED] * 3 + [Outcome.RESUMED] * 2 + [Outcome.FREE]


@pytest.mark.release("trixie")
def test_killed_while_it_undoes_a_drain_past_the_budget(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    """Between its write and its second look an admin drained another node; wherever it dies, the next start undoes the drain."""
    tight = Rules(budget_percent=100, budget_nodes=1)
    for at in range(3):
        assert outcome_of(child(cluster, tmp_path, "drain", 3, "1")) == ""  # written, not yet looked at again
        cluster.scontrol("update", "nodename=n5", "state=drain", "reason=old")  # DOWN would go at slurmctld's next ping
        client.update_reason("n1", client.node("n1").reason)  # ours is the younger one
        assert outcome_of(child(cluster, tmp_path, "reconcile", at + 1, "1")) == ""
        drain = drain_of(client, tmp_path, "n1", tight)
        assert settled(client, drain) in ((Outcome.OVER_BUDGET,), (Outcome.OVER_BUDGET,), (Outcome.RESUMED, Outcome.FREE))[at]
        cluster.scontrol("update", "nodename=n5", "state=resume")
        cluster.wait_idle()


@pytest.mark.release("forky")
def test_a_person_comes_while_the_agent_is_dead(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    for at in range(5):
        outcome_of(child(cluster, tmp_path, "drain", at))
        cluster.scontrol("update", "nodename=n1", "state=drain", "reason=mine now")
        drain = drain_of(client, tmp_path, "n1")
        assert finish(drain.reconcile()).outcome is Outcome.FOREIGN
        assert finish(drain.drain("xid", "GPU gone")).outcome is Outcome.FOREIGN
        assert finish(drain.resume()).outcome is Outcome.FOREIGN
        assert client.node("n1").reason == "mine now" and client.node("n1").drained
        cluster.scontrol("update", "nodename=n1", "state=undrain")


@pytest.mark.release("trixie")
def test_killed_at_random_moments(cluster: Cluster, client: Scontrol, tmp_path: Path) -> None:
    chance = random.Random(79)
    for turn in range(12):
        process = child(cluster, tmp_path, "drain" if turn % 2 == 0 else "resume", 99)
        time.sleep(0.12 + chance.random() * 0.12)
        process.kill()
        outcome_of(process)
        no_calls(cluster)  # an RPC on its way arrives
        drain = drain_of(client_of(cluster), tmp_path, "n1")
        found = finish(drain.reconcile()).outcome
        entry = drain.ledger.load()
        node = client.node("n1")
        assert node.drained == (entry is not None and entry.ours) == (found is Outcome.DRAINED)
        if turn % 2 == 0 and not node.drained:
            assert finish(drain.drain("xid", "GPU gone")).outcome is Outcome.DRAINED
