"""Usage records of real jobs, on every release: the hooks are real, and the agent reads the simulated NVML library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.jobs.usage_record import UsageRecord, decoded
from tests.daemon.conftest import NO_SLOW_CHECKS, Agent
from tests.hooks.stage import HOOKS
from tests.lab.cluster import Cluster
from tests.lab.faults import Faults
from tests.lab.nvml.library import build, write_conf
from tests.lab.roots import SUITES
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


class OnNode(Agent):
    """The agent of n1: it shares the run directory with the node's hooks. ``asked``: lists its calls of Slurm's commands."""

    def __init__(self, cluster: Cluster, folder: Path, library: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.run_dir = cluster.node_dirs("n1").run
        self.faults = Faults(folder / "control")
        self.faults.control.touch()
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(library),
            "FAIRLEAD_SIM_NVML": os.fspath(write_conf(self.tree, folder / "nvml.conf")),
            "FAIRLEAD_SIM_CONTROL": os.fspath(self.faults.control),
        }
        self.asked, commands = folder / "asked", folder / "bin"
        self.asked.touch()
        commands.mkdir()
        for program in cluster.bin.iterdir():
            (commands / program.name).write_text(f'#!/bin/sh\necho {program.name} "$@" >>{self.asked}\nexec {program} "$@"\n')
            (commands / program.name).chmod(0o755)
        slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(commands), "node_name": "n1"}
        agent = {"nvml_deadline_seconds": 20.0, "gpustat_dir": str(folder / "gpustat")}
        self.write_document(slurm=slurm, agent=agent, checks=NO_SLOW_CHECKS, policy={"budget_percent": 100})
        (cluster.node_dirs("n1").etc / "hooks").write_text("1\tallow\tfull\t-\t-\n")

    def command(self) -> list[str]:
        """What starts it."""
        return [*super().command(), "--ask-nvml"]

    def records(self) -> list[UsageRecord]:
        """All records on the disk."""
        found = [decoded(path.read_bytes()) for path in (self.state_dir / "usage").glob("*.json")]
        return sorted(found, key=lambda record: (record.job, record.begin_boot))

    def of(self, *jobs: int) -> list[UsageRecord]:
        """The records of these jobs."""
        return [record for record in self.records() if record.job in jobs]

    def ended(self, count: int, *jobs: int) -> list[UsageRecord]:
        """Wait until so many records of these jobs have an end, and the agent has forgotten the jobs."""
        self.until(lambda: len([r for r in self.of(*jobs) if r.ended_by]) == count, f"end of {count} records", 180)
        self.until(lambda: not any((self.run_dir / f"jobs/{job}").exists() for job in jobs), "removal of the job records")
        self.settle(jobs)
        return self.of(*jobs)

    def settle(self, jobs: tuple[int, ...]) -> None:
        """Wait for the last reading of the GPUs, after which the records do not change."""
        last: list[UsageRecord] = []
        while (now := self.of(*jobs)) != last:
            last = now
            time.sleep(12)


@pytest.fixture(scope="module", params=list(SUITES))
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnNode]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    library = build(Path(request.config.cache.mkdir("simulated-nvml"))).parent
    with running(Cluster(request.param, nodes=2, cores=4, prolog=HOOKS / "prolog", epilog=HOOKS / "epilog")) as up:
        made = OnNode(up, tmp_path_factory.mktemp("agent"), library)
        try:
            yield made.start()
        finally:
            made.end()


def consistent(record: UsageRecord) -> None:
    """What holds for each record, however busy the machine was."""
    assert record.ended_by == "epilog" and record.end_boot is not None and record.end_unix is not None
    assert record.alloc_seconds == pytest.approx(record.end_boot - record.begin_boot, abs=0.01)
    for gpu in record.gpus:
        assert gpu.seen_seconds + gpu.gap_seconds == pytest.approx(record.alloc_seconds, abs=1)
        assert sum(gpu.histogram_seconds) == pytest.approx(gpu.seen_seconds, abs=0.1)


def until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_a_job_of_twenty_seconds(agent: OnNode) -> None:
    """One GPU works and one does not."""
    agent.faults.work(0, "busy")
    stat = agent.folder / "gpustat"
    assert "scontrol" in agent.asked.read_text(), "at its start it asks how Slurm sees the node"
    asked = agent.asked.read_text()
    job = agent.cluster.submit("#!/bin/sh\nsleep 20\n", "-wn1", "--gres=gpu:2")
    until(lambda: (stat / "0").exists() and (stat / "0").read_text().startswith(f"{job} "), "file for jobstats' exporter")
    (record,) = agent.ended(1, job)
    consistent(record)
    busy, idle = record.gpus
    assert record.alloc_seconds >= 19  # the epilog writes whole seconds
    assert record.uid is not None and record.node == "n1"
    assert record.sluid if agent.cluster.suite == "forky" else not record.sluid
    assert [gpu.gres_index for gpu in record.gpus] == [0, 1]
    assert busy.seen_seconds > 0 and busy.busy_seconds == pytest.approx(busy.seen_seconds, rel=0.05)
    assert idle.seen_seconds > 0 and idle.busy_seconds == 0 and idle.zero_seconds == idle.seen_seconds
    assert busy.energy_joules == pytest.approx(600 * (record.alloc_seconds - busy.energy_gap_seconds), rel=0.2)
    assert busy.sm_active_seconds == pytest.approx(0.8 * busy.gpm_seconds, rel=0.1)
    assert not list(stat.iterdir())
    assert agent.asked.read_text() == asked, "a record costs no command of Slurm and no RPC"
    agent.faults.work(0, "idle")


def test_an_array_has_a_record_for_each_raw_job_id(agent: OnNode) -> None:
    before = {record.job for record in agent.records()}
    array = agent.cluster.submit("#!/bin/sh\nsleep 10\n", "-wn1", "--gres=gpu:1", "--array=0-2")
    until(lambda: len({r.job for r in agent.records()} - before) == 3, "three records")
    jobs = tuple({r.job for r in agent.records()} - before)
    records = agent.ended(3, *jobs)
    for record in records:
        consistent(record)
    assert array in jobs
    assert len({record.gpus[0].uuid for record in records}) == 3
    assert not any(gpu.shared for record in records for gpu in record.gpus)


@pytest.mark.parametrize(("nodes", "part"), [(("n1", "n2"), 0), (("n2", "n1"), 1)])
def test_a_component_of_a_heterogeneous_job_has_a_record_under_its_own_id(
    agent: OnNode, nodes: tuple[str, str], part: int
) -> None:
    first, second = (f"#SBATCH -w{node} -n1 --gres=gpu:{number}\n" for number, node in enumerate(nodes, 1))
    script = f"#!/bin/sh\n{first}#SBATCH hetjob\n{second}srun --het-group=0,1 --chdir=/tmp sleep 15\n"
    leader = agent.cluster.submit(script)
    (record,) = agent.ended(1, leader + part)
    consistent(record)
    assert len(record.gpus) == part + 1 and record.alloc_seconds >= 14
    assert agent.of(leader, leader + 1) == [record], "the other component was on the other node"


def test_a_job_that_is_requeued_has_two_records(agent: OnNode) -> None:
    job = agent.cluster.submit("#!/bin/sh\nsleep 15\n", "-wn1", "--gres=gpu:1", "--requeue")
    until(lambda: bool(agent.of(job)), "first record")
    agent.cluster.wait_job(job, "RUNNING")
    agent.cluster.scontrol("requeue", str(job))
    until(lambda: agent.cluster.job_state(job) == "PENDING", "requeue")
    agent.ended(1, job)
    agent.cluster.scontrol("update", f"jobid={job}", "StartTime=now")
    for record in agent.ended(2, job):
        consistent(record)
