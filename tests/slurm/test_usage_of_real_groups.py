"""The CPU time, memory, limit and CPUs of a job are those of the control group that real slurmd made for it (cgroup v1).

The real agent runs inside the cluster, where it sees the job's groups and its slurmstepd. There is no GPU. A stock kernel with
cgroup v2 and SLUID names is for tests/vm.
"""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead import checks, config
from fairlead.jobs.usage_record import UsageRecord, decoded
from tests.hooks.stage import HOOKS
from tests.lab.cluster import Cluster
from tests.lab.cpus import v1_controllers
from tests.lab.enter import enter_command
from tests.lab.roots import SUITES
from tests.lab.wheels import wheelhouse

pytestmark = [
    pytest.mark.root,
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not {"cpuacct", "memory"} <= v1_controllers().keys(), reason="no cgroup v1 on this machine (not hybrid)"),
]
AGENT = Path(__file__).resolve().parents[2] / "agent"
OWN = "/run/lab-nodes/r1"
#: Slurm makes a job's groups of cpuacct and memory for its own accounting.
CONF = "JobAcctGatherType=jobacct_gather/cgroup\nJobAcctGatherFrequency=1\nSelectTypeParameters=CR_Core_Memory\n"
LIMIT_MIB = 700
#: Takes 200 MiB and some seconds of one CPU, and then waits until the test has seen it.
WORK = """#!/bin/sh
head -c 200M /dev/zero > /dev/shm/taken-$SLURM_JOB_ID
timeout 6 sh -c 'while :; do :; done'
until [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.2; done
rm -f /dev/shm/taken-$SLURM_JOB_ID
"""


class Site:
    """A cluster of one node with real CPUs, and its agent."""

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm, self.state = slurm, slurm.node_dirs("r1").var
        data = config.to_data(config.profile_document("r1", "hgx-h100"))
        data["agent"] |= {"run_dir": f"{OWN}/run", "state_dir": f"{OWN}/var", "kmsg_path": f"{OWN}/etc/kmsg"}
        data["agent"] |= {"interval_seconds": 1.0, "metrics_textfile": ""}
        data["checks"] = {name: {"enabled": False} for name in checks.load()}
        data["settings"] = {}
        data["slurm"] |= {"bin_dir": "/no-slurm-here"}
        del data["hash"]
        document = config.decode_document(msgspec.json.encode(data), "test")
        os.mkfifo(slurm.node_dirs("r1").etc / "kmsg")
        (slurm.node_dirs("r1").etc / "node.json").write_bytes(config.encode_document(document))
        (slurm.node_dirs("r1").etc / "hooks").write_text("1\tallow\tfull\t-\t-\n")
        words = ["/usr/bin/env", "PYTHONPATH=/opt/agent:/opt/wheels", "/usr/bin/python3", "-m", "fairlead", "agent"]
        self.log = folder / "agent.log"
        with self.log.open("w") as log:
            command = [*enter_command(slurm.pid), *words, "--document", f"{OWN}/etc/node.json"]
            self.agent = subprocess.Popen(command, stdout=log, stderr=log)
        self.until(lambda: (slurm.node_dirs("r1").run / "verdict").exists(), "first verdict")

    def until(self, met: Callable[[], bool], what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            assert self.agent.poll() is None and time.monotonic() < deadline, f"no {what}\n{self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    def record(self, job: int) -> UsageRecord | None:
        found = [decoded(path.read_bytes()) for path in (self.state / "usage").glob(f"{job}-*.json")]
        return found[0] if found else None

    def ended(self, job: int) -> UsageRecord:
        self.until(lambda: (found := self.record(job)) is not None and bool(found.ended_by), f"end of the record of job {job}")
        found = self.record(job)
        assert found is not None
        return found


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    folder = tmp_path_factory.mktemp("site")
    for wheel in wheelhouse(request.param).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "wheels")
    folder.chmod(0o755)
    binds = {str(AGENT): "/opt/agent", str(folder / "wheels"): "/opt/wheels"}
    with Cluster(
        request.param,
        nodes=0,
        real=True,
        cgroup=True,
        cgroup_conf="ConstrainRAMSpace=yes\n",
        extra_conf=CONF,
        prolog=HOOKS / "prolog",
        epilog=HOOKS / "epilog",
        binds=binds,  # type: ignore[arg-type]
    ) as slurm:
        made = Site(slurm, folder)
        try:
            yield made
        finally:
            made.agent.terminate()
            made.agent.wait(60)


def test_a_job_has_the_values_of_its_own_groups(site: Site) -> None:
    slurm = site.slurm
    job = slurm.submit(WORK, "-n1", f"--mem={LIMIT_MIB}M")
    other = slurm.submit("#!/bin/sh\nuntil [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.2; done\n", "-n1", "--mem=100M")
    slurm.wait_job(job, "RUNNING")
    group = f"/sys/fs/cgroup/cpuacct/slurm*/uid_*/job_{job}/cpuacct.usage"
    enough = 6_000_000_000 // (os.cpu_count() or 1) // 4  # the machine is shared
    site.until(lambda: int(slurm.run(["/bin/sh", "-c", f"cat {group} || echo 0"]).stdout or 0) > enough, "CPU time", 180)
    marks = " ".join(f"/tmp/go-{number}" for number in (job, other))
    time.sleep(12)  # the agent reads a group each five seconds, and slurmstepd removes it when the job ends
    used = int(slurm.run(["/bin/sh", "-c", f"cat {group}"]).stdout) / 1e9
    slurm.run(["/bin/sh", "-c", f"touch {marks}"])
    busy, quiet = site.ended(job), site.ended(other)
    assert busy.host.cpu_seconds == pytest.approx(used, rel=0.25, abs=0.3)
    assert busy.host.cpus == 1 and quiet.host.cpus == 1
    assert busy.host.memory_max_bytes is not None and 200 << 20 <= busy.host.memory_max_bytes <= LIMIT_MIB << 20
    assert busy.host.memory_limit_bytes == LIMIT_MIB << 20
    assert quiet.host.cpu_seconds is not None and quiet.host.cpu_seconds < used / 2
    assert quiet.host.memory_max_bytes is not None and quiet.host.memory_max_bytes < 100 << 20
    print(f"{slurm.suite}: {used:.2f} s of CPU by the kernel, {busy.host.cpu_seconds:.2f} s in the record; memory"
          f" {busy.host.memory_max_bytes >> 20} of {LIMIT_MIB} MiB; load {os.getloadavg()[0]:.1f}")  # fmt: skip
