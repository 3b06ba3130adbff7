"""The job scripts of `fairlead template sbatch`, on every release, with a program that saves and goes on from its last save."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.assets import sbatch_template
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

GRACE = 40
CONF = (
    "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nKillWait=5\nReturnToService=1\n"
    f"PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime={GRACE} MaxTime=INFINITE State=UP\n"
    "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP\n"
)


class Site:
    """A cluster of two nodes, a folder that all nodes see, and one job at a time."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.count = 0
        self.pending_since: float | None = None

    def submit(self, template: str, last: int, every: int, mode: str, *options: str) -> int:
        self.count += 1
        self.checkpoint = self.folder / str(self.count)
        self.checkpoint.mkdir()
        self.checkpoint.chmod(0o777)
        env = {"CHECKPOINT": str(self.checkpoint)}
        script = self.folder / f"{template}.sh"
        script.write_text(sbatch_template(template))
        words = ["/usr/bin/sbatch", "--parsable", f"--output={self.checkpoint}/.starts-out", "--chdir=/tmp", "-N1", *options]
        words += [str(script), "/usr/bin/python3", str(self.folder / "counting_program.py"), str(last), str(every), mode]
        return int(self.cluster.run(words, user="alice", env=env).stdout)

    def log(self) -> list[str]:
        path = self.checkpoint / ".starts-log"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def said(self) -> str:
        path = self.checkpoint / ".starts-out"
        return path.read_text(errors="replace") if path.exists() else ""

    def saved(self) -> int:
        path = self.checkpoint / "state"
        return int(path.read_text()) if path.exists() else 0

    def until(self, met: Callable[[], object], what: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            assert time.monotonic() < deadline, f"no {what}\n{self.log()}\n{self.said()}\n{self.cluster.logs()}"
            time.sleep(0.1)

    def restart(self, job: int, starts: int) -> None:
        """Let a requeued job begin soon, and wait until it has begun so often."""
        self.pending_since = None

        def again() -> bool:
            self.hurry(job)
            return sum(line.startswith("begin") for line in self.log()) >= starts

        self.until(again, f"start {starts}")

    def hurry(self, job: int) -> None:
        """Slurm lets a requeued job wait for two minutes, until no node takes its new start for the one that has just ended (by
        seconds: "Job credential revoked"). Some seconds are enough for that."""
        if self.cluster.job_state(job) != "PENDING":
            self.pending_since = None
        elif self.pending_since is None:
            self.pending_since = time.monotonic()
        elif time.monotonic() - self.pending_since > 4:
            self.cluster.scontrol("update", f"jobid={job}", "StartTime=now", check=False)
            self.pending_since = time.monotonic()

    def restarts(self, job: int) -> int:
        found = re.search(r"\bRestarts=(\d+)", self.cluster.scontrol("-o", "show", "job", str(job)))
        assert found
        return int(found[1])


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    folder = tmp_path_factory.mktemp("shared")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and len(path.parts) > 2:
            path.chmod(0o755)
    program = folder / "counting_program.py"
    program.write_text((Path(__file__).parent / "counting_program.py").read_text())
    program.chmod(0o755)
    with running(Cluster(request.param, nodes=2, cores=2, extra_conf=CONF, shared=[folder])) as up:
        yield Site(up, folder)


TEMPLATES = ("requeue", "requeue-periodic")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_that_nothing_happens_to(site: Site, template: str) -> None:
    job = site.submit(template, 20, 5, "signal")
    assert site.cluster.wait_job(job) == "COMPLETED", site.said()
    assert site.log() == ["begin 0", "done"] and site.saved() == 20 and site.restarts(job) == 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_that_is_preempted_goes_on(site: Site, template: str) -> None:
    mode = "signal" if template == "requeue" else "periodic"
    job = site.submit(template, 400, 10, mode, "-wn1", "--exclusive")
    site.until(lambda: site.saved() >= 20, "first save")
    other = site.cluster.submit("#!/bin/sh\nsleep 1\n", "-wn1", "--exclusive", "--partition=high")
    site.cluster.wait_job(other, "COMPLETED", seconds=GRACE + 120)
    at = site.saved()
    site.restart(job, 2)
    assert site.cluster.wait_job(job, seconds=180) == "COMPLETED", site.said()
    assert site.restarts(job) == 1 and site.saved() == 400, f"{site.log()}\n{site.said()}\n{site.cluster.logs(60)}"
    begun = [int(line.split()[1]) for line in site.log() if line.startswith("begin")]
    assert begun == [0, at] and at >= 20
    assert site.cluster.job_state(other) == "COMPLETED"
    if template == "requeue":
        assert f"saved {at} on signal 15" in site.log(), "Slurm itself tells the program"


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_at_its_time_limit_goes_on(site: Site, template: str) -> None:
    """The program needs 80 s and more. Slurm looks at time limits each 30 s or so. The limit is raised before the second start:
    Slurm may send the signal in the first second of a job that has a limit of one minute."""
    mode = "signal" if template == "requeue" else "periodic"
    job = site.submit(template, 1600, 10, mode, "--time=1", "--signal=B:USR1@45")
    site.until(lambda: site.restarts(job) == 1, "requeue")
    site.cluster.scontrol("update", f"jobid={job}", "TimeLimit=30")
    site.restart(job, 2)
    at = [int(line.split()[1]) for line in site.log() if line.startswith("begin")][1]
    assert 0 <= at < 1600 and "requeued" in site.said()
    assert site.cluster.wait_job(job, seconds=180) == "COMPLETED", site.said()
    assert site.restarts(job) == 1 and site.saved() == 1600, f"{site.log()}\n{site.said()}\n{site.cluster.logs(60)}"
    if template == "requeue":
        assert f"saved {at} on signal 10" in site.log()


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_whose_node_fails_goes_on_elsewhere(site: Site, template: str) -> None:
    job = site.submit(template, 300, 10, "signal" if template == "requeue" else "periodic")
    site.until(lambda: site.saved() >= 20, "first save")
    found = re.search(r"\bNodeList=(\S+)", site.cluster.scontrol("-o", "show", "job", str(job)))
    assert found
    node = found[1]
    site.cluster.power_off(node)
    at = site.saved()
    try:
        site.cluster.scontrol("update", f"nodename={node}", "state=down", "reason=lost")
        site.restart(job, 2)
        assert site.cluster.wait_job(job, seconds=180) == "COMPLETED", site.said()
    finally:
        site.cluster.run(["/bin/rm", "-f", f"/run/slurmd.{node}.pid"])
        site.cluster.start_slurmd(node)
        site.cluster.scontrol("update", f"nodename={node}", "state=resume", check=False)
        site.cluster.wait_idle()
    begun = [int(line.split()[1]) for line in site.log() if line.startswith("begin")]
    assert begun == [0, at] and site.saved() == 300 and site.restarts(job) == 1


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_program_that_crashes_is_not_requeued(site: Site, template: str) -> None:
    job = site.submit(template, 300, 10, "crash")
    assert site.cluster.wait_job(job) == "FAILED"
    assert site.log() == ["begin 0"] and site.restarts(job) == 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_job_that_never_gets_further_is_ended_by_the_guard(site: Site, template: str) -> None:
    job = site.submit(template, 300, 10, "stuck")
    for start in (1, 2, 3):
        site.restart(job, start)
        site.cluster.wait_job(job, "RUNNING")
        site.cluster.scontrol("requeue", str(job))
    site.until(lambda: _ended(site, job), "end by the guard")
    assert site.cluster.job_state(job) == "FAILED"
    assert site.log() == ["begin 0"] * 3 and "3 starts in a row without a new save" in site.said()


def _ended(site: Site, job: int) -> bool:
    site.hurry(job)
    return site.cluster.job_state(job) == "FAILED"


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_cancelled_job_is_not_requeued(site: Site, template: str) -> None:
    job = site.submit(template, 400, 10, "signal" if template == "requeue" else "periodic")
    site.until(lambda: site.saved() >= 10, "first save")
    site.cluster.run(["/usr/bin/scancel", str(job)])
    assert site.cluster.wait_job(job) == "CANCELLED"
    assert site.restarts(job) == 0
