"""Bare clusters of every Slurm release: a job runs, a node drains and comes back, hooks see their own node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import linux
from tests.lab.clients import NodeState, parse_node
from tests.lab.cluster import Cluster
from tests.lab.cpus import v1_controllers
from tests.lab.ledger import RUN, own_name
from tests.lab.roots import SUITES, LabError

pytestmark = [pytest.mark.root, pytest.mark.slurm]
PROJECT = Path(__file__).resolve().parents[2]
STEP_MASKS = "srun -n8 -c14 --gpus-per-task=1 -m block:block sh -c 'echo $SLURM_PROCID $(taskset -cp $$) $CUDA_VISIBLE_DEVICES'"


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.release("bookworm")
def test_job_drain_resume(suite: str) -> None:
    with Cluster(suite, nodes=2) as slurm:
        version = slurm.run(["sinfo", "--version"]).stdout
        assert version.split()[1].startswith(SUITES[suite]), version
        job = slurm.submit(
            "#!/bin/sh\nid -un\necho $CUDA_VISIBLE_DEVICES\nsrun sh -c 'echo $SLURMD_NODENAME' | sort\n", "-N2", "--gres=gpu:2"
        )
        assert slurm.wait_job(job) == "COMPLETED"
        assert slurm.output(job).split() == ["alice", "0,1", "n1", "n2"]
        slurm.scontrol("update", "nodename=n1", "state=drain", "reason=a [strange] reason: x")
        assert slurm.node_state("n1") == NodeState(("IDLE", "DRAIN"), "a [strange] reason: x", "root")
        slurm.scontrol("update", "nodename=n1", "state=resume")
        slurm.wait_idle()
        asked = subprocess.run([slurm.bin / "sinfo", "-h", "-N", "-o", "%N"], capture_output=True, text=True, check=True)
        assert asked.stdout.split() == ["n1", "n2"]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.release("forky")
def test_simulated_cpus_take_masks(suite: str) -> None:
    with Cluster(suite, nodes=1, simulated=True) as slurm:
        job = slurm.submit(f"#!/bin/sh\n{STEP_MASKS} | sort\n", "-n8", "-c14", "--gres=gpu:8", "--exclusive")
        assert slurm.wait_job(job) == "COMPLETED"
        words = [line.split() for line in slurm.output(job).splitlines()]
        assert [line[0] for line in words] == [str(task) for task in range(8)]
        assert [line[-2] for line in words] == [f"{14 * task}-{14 * task + 13}" for task in range(8)]
        assert [line[-1] for line in words] == [str(task) for task in range(8)]


def test_hooks_of_two_nodes_read_different_verdicts(tmp_path: Path) -> None:
    hook = tmp_path / "prolog"
    hook.write_text('#!/bin/sh\nread x </run/fairlead/verdict && [ "$x" = bad ] && exit 1\nexit 0\n')
    hook.chmod(0o755)
    with Cluster(nodes=2, prolog=hook, nohold=True) as slurm:
        (slurm.node_dirs("n1").run / "verdict").write_text("bad\n")
        refused = slurm.submit("#!/bin/sh\ntrue\n", "-w", "n1")
        fine = slurm.submit("#!/bin/sh\ntrue\n", "-w", "n2")
        assert slurm.wait_job(fine) == "COMPLETED"
        deadline = time.monotonic() + 90
        while slurm.node_state("n1").reason != "Prolog error":
            assert time.monotonic() < deadline, slurm.node_state("n1")
            time.sleep(0.1)
        assert slurm.job_state(refused) == "PENDING"
        assert slurm.node_state("n2").reason == ""


def test_slurmctld_away_and_back_keeps_a_drain() -> None:
    with Cluster(nodes=1) as slurm:
        slurm.scontrol("update", "nodename=n1", "state=drain", "reason=by hand")
        slurm.stop_slurmctld()
        assert "is DOWN" in slurm.run(["scontrol", "ping"], check=False).stdout
        slurm.start_slurmctld()
        deadline = time.monotonic() + 90
        while "NOT_RESPONDING" in (state := slurm.node_state("n1")).states:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert state.reason == "by hand"


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.skipif(not v1_controllers(), reason="no cgroup v1 on this machine (not hybrid): real cpusets of slurmd need it here")
@pytest.mark.release("trixie")
def test_real_cpusets(suite: str) -> None:
    with Cluster(suite, nodes=0, real=True, cgroup=True) as slurm:
        group = "g=/sys/fs/cgroup/cpuset$(sed -n s/.*:cpuset://p /proc/self/cgroup)"
        job = slurm.submit(f"#!/bin/sh\nsrun -n2 sh -c '{group}; taskset -cp $$; cat $g/cpuset.cpus'\n", "-n2", "--gres=gpu:2")
        assert slurm.wait_job(job) == "COMPLETED"
        lines = sorted(line.rpartition(": ")[2] for line in slurm.output(job).splitlines())
        assert lines == ["0", "0-1", "0-1", "1"]
        left = v1_controllers()["cpuset"] / f"fairlead-lab-{slurm.name}"
        assert left.is_dir()
    assert not left.exists()


def test_a_killed_creator_takes_its_cluster_along(tmp_path: Path) -> None:
    name = own_name("test-killed")
    program = (
        "import sys, time\nfrom tests.lab.cluster import Cluster\n"
        f"c = Cluster(nodes=1, name={name!r}); c.start(); print(c.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as creator:
        assert creator.stdout is not None
        init = int(creator.stdout.readline())
        assert linux.start_time(init) is not None
        creator.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 90
    while linux.start_time(init) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run([sys.executable, "-m", "tests.lab.clean", name], cwd=PROJECT, check=True)
    assert not (RUN / name).exists()


def test_two_labs_of_one_name() -> None:
    name = own_name("test-twice")
    with (
        Cluster(nodes=1, name=name),
        pytest.raises(LabError, match=rf"{name} is there already; end it: python -m tests\.lab\.clean {name}"),
    ):
        Cluster(nodes=1, name=name).start()


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("NodeName=n1 State=IDLE ThreadsPerCore=1", NodeState(("IDLE",))),
        (
            "NodeName=n1 State=DOWN*+DRAIN+REBOOT_ISSUED Reason=x : reboot issued [slurm@2026-11-21T15:00:00]",
            NodeState(("DOWN", "DRAIN", "REBOOT_ISSUED"), "x : reboot issued", "slurm"),
        ),
        (
            "NodeName=n1 State=MIXED+DRAIN Reason=gpu[3] [a] b [root@2026-11-21T15:00:00] Comment=c",
            NodeState(("MIXED", "DRAIN"), "gpu[3] [a] b", "root"),
        ),
    ],
)
def test_parse_node(line: str, state: NodeState) -> None:
    assert parse_node(line) == state
