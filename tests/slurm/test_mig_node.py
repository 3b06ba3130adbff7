"""MIG on a provisioned node with systemd and real Slurm, by the commands that an admin types, while jobs run.

slurmd finds the instances by its own NVML plug-in in the simulated library (AutoDetect=nvml), and with lines of MultipleFiles
too. Debian has no plug-in for 26.05. There slurmd reads the same devices from fake_gpus.conf, a file of Slurm's own tests.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.controller.job_store import JobStore
from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.jobs.jobstats_payload import decoded as payload_data
from fairlead.jobs.jobstats_payload import payload
from fairlead.jobs.usage_merge import merged
from fairlead.jobs.usage_record import HostUsage, UsageRecord, decoded
from tests.hooks.test_mig_on_slurm import caps, listed
from tests.lab import demo_steps, hardware
from tests.lab.accounting import wait_in_database
from tests.lab.faults import Faults
from tests.lab.hardware import nvml_plugin
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import SUITES
from tests.lab.slurmd import mig_minors
from tests.lab.wheels import wheelhouse
from tests.playbooks.admin import Admin, wait

pytestmark = [pytest.mark.rack, pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]
GPU = "0000:1b:00.0"  # the first one of the tree
SITE = """
[policy]
mode = "observe"
[classes.h100.agent]
kmsg_path = "/etc/fairlead-sim/kmsg"
interval_seconds = 0.5
[classes.h100.checks.clock]
synchronised = false
[classes.h100.settings.mig.by_gpu]
"{gpu}" = {geometry}
"""
DEVICES = """
mkdir -p /dev/nvidia-caps
while read -r _ minor; do
    [ -e /dev/nvidia-caps/nvidia-cap$minor ] || mknod -m 666 /dev/nvidia-caps/nvidia-cap$minor c 242 $minor
done </proc/driver/nvidia-caps/mig-minors
"""
WAITS = "#!/bin/sh\necho visible $CUDA_VISIBLE_DEVICES\nuntil [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.2; done\n"
METRICS, USAGE = "/run/fairlead/metrics.prom", "/var/lib/fairlead/usage"
LARGE, SMALL = "3g.40gb", "1g.10gb"
FIRST = (LARGE, SMALL)


@dataclass(frozen=True)
class MigSite:
    """A rack of one node whose first GPU is divided, and its admin host."""

    rack: Rack
    admin: Admin
    folder: Path

    @property
    def host(self) -> Host:
        return self.rack.nodes[0]

    @property
    def faults(self) -> Faults:
        return Faults(self.host.sim / "nvml.control")

    def slurm_type(self, profile: str) -> str:
        """Slurm 22.05 computes the size in another way."""
        return "3g.39gb" if profile == LARGE and self.rack.suite == "bookworm" else profile

    def declare(self, *geometry: str) -> None:
        """Declare these instances of the first GPU, and provision. A layout that differs waits for a drained node."""
        self.admin.write_site(more=SITE.format(gpu=GPU, geometry=json.dumps(geometry)))
        words = [*self.admin.command("provision"), "--site", str(self.admin.site), "--json", "--wheelhouse"]
        words.append(str(wheelhouse(self.rack.suite)))
        code = 75 if sorted(geometry) != sorted(self.instances().values()) else 0
        self.admin.run(*words[len(self.admin.command()) :], code=code)

    def apply(self, *options: str) -> tuple[int, str]:
        """The exit code, and what ``fairlead apply --only mig`` prints on both streams."""
        done = self.host.ssh(f"fairlead apply --only mig {' '.join(options)} 2>&1", check=False)
        return done.returncode, done.stdout

    def instances(self) -> dict[str, str]:
        """UUID -> profile, as the agent's published file says."""
        text = self.host.run("cat /run/fairlead/topology", check=False).stdout
        return {row[1]: row[5] for line in text.splitlines() if (row := line.split("\t"))[0] == "mig"}

    def drain(self) -> None:
        self.rack.ctl("scontrol update NodeName=gpu1 State=DRAIN Reason=layout")

    def restart(self, *geometry: str, lines: str = "", beside: bool = True) -> None:
        """As an admin does after a change: Gres= and gres.conf, then slurmctld and slurmd, then resume. ``lines``: of the
        instances, for gres.conf. ``beside``: slurmd also detects them."""
        wait(lambda: sorted(self.instances().values()) == sorted(geometry))
        counted = ",".join(f"gpu:{self.slurm_type(p)}:{geometry.count(p)}" for p in sorted(set(geometry)))
        conf, gres = self.rack.slurm_etc / "slurm.conf", self.rack.slurm_etc / "gres.conf"
        conf.write_text(re.sub(r"Gres=\S+", f"Gres={counted},gpu:h100:7", conf.read_text()))
        plugin = nvml_plugin(self.rack.suite) is not None
        gres.write_text(("NodeName=gpu1 AutoDetect=nvml\n" if plugin and beside else "") + lines)
        fake = "/etc/slurm/fake_gpus.conf"
        if not plugin and beside:
            self.host.run(["/bin/sh", "-c", f"cat >{fake}"], stdin=self.fake_gpus())
        else:
            self.host.run(["rm", "-f", fake])
        self.rack.ctl("systemctl restart slurmctld")
        self.host.run("systemctl restart slurmd")
        wait(self._resumed)

    def _resumed(self) -> bool:
        self.rack.ctl("scontrol update NodeName=gpu1 State=RESUME", check=False)
        shown = self.rack.ctl("scontrol -o show node gpu1", check=False)
        return re.search(r" State=(IDLE|MIXED|ALLOCATED) ", shown) is not None

    def fake_gpus(self) -> str:
        """The GPUs and instances as the simulated library has them now."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_LIBRARY_PATH", str(hardware.simulated_nvml()))
            patch.setenv("FAIRLEAD_SIM_NVML", str(self.host.sim / "nvml.conf"))
            patch.setenv("FAIRLEAD_SIM_CONTROL", str(self.host.sim / "nvml.control"))
            worker = Worker(60)
            try:
                return listed(gather(Root(str(self.host.tree)), worker.sweep().raw), cpus=2)
            finally:
                worker.close()

    def job(self, profile: str) -> int:
        """A running job on an instance of this type, which ends when ``let_end`` is called."""
        job = self.rack.submit(WAITS, "-n1", f"--gres=gpu:{self.slurm_type(profile)}:1")
        self.rack.wait_job(job, "RUNNING")
        wait(lambda: bool(self.record(job)))
        return job

    def let_end(self, *jobs: int) -> None:
        for job in jobs:
            self.host.run(["touch", f"/tmp/go-{job}"])
        for job in jobs:
            self.rack.wait_job(job, "COMPLETED")
            wait(lambda job=job: self.only_record(job).ended_by == "epilog")  # type: ignore[misc]

    def visible(self, job: int) -> str:
        return self.host.run(["cat", f"/tmp/job-{job}.out"]).stdout.split()[1]

    def record(self, job: int) -> list[UsageRecord]:
        texts = self.host.run(f"cat {USAGE}/{job}-*.json", check=False).stdout.splitlines(keepends=True)
        return [decoded(text.encode()) for text in texts]

    def only_record(self, job: int) -> UsageRecord:
        (record,) = self.record(job)
        return record

    def series(self, name: str, **labels: str) -> list[float]:
        """The values of the series with these labels."""
        lines = self.host.run(["cat", METRICS]).stdout.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [line for line in lines if line.startswith(f"{name}{{") and all(word in line for word in wanted)]
        return [float(line.rpartition(" ")[2]) for line in found]


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MigSite]:
    suite, folder = request.param, tmp_path_factory.mktemp("mig-node")
    tree = Path(shutil.copytree(hardware.machine_tree("hgx-h100", "gpu1", 2, 1), folder / "tree", symlinks=True))
    minors = tree / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text(mig_minors(range(8)))
    with Rack(1, suite=suite, name=own_name(f"mig-{suite}"), trees=(tree,), accounting=suite != "bookworm") as rack:
        site = MigSite(rack, Admin(rack, folder), folder)
        site.host.run(["/bin/sh", "-ec", DEVICES])
        site.declare(*FIRST)
        rack.configure(hooks=demo_steps.HOOKS)
        site.drain()
        assert site.apply("--drained")[0] == 0
        site.restart(*FIRST)
        yield site


def until_seconds(site: MigSite, job: int, met: Callable[[UsageRecord], bool]) -> UsageRecord:
    wait(lambda: met(site.only_record(job)), seconds=240)
    return site.only_record(job)


def test_two_jobs_on_instances_of_one_board_have_records_of_their_own(site: MigSite) -> None:
    uuids = {profile: uuid for uuid, profile in site.instances().items()}
    site.faults.work(0, "busy", gi=1)
    site.faults.work(0, "fake", gi=11)
    jobs = {profile: site.job(profile) for profile in FIRST}
    for profile, job in jobs.items():
        assert site.visible(job) == uuids[profile]
        wait(lambda p=profile, j=job: site.series("fairlead_job_gpu", job=str(j), mig_uuid=uuids[p]) == [1.0])  # type: ignore[misc]
        (gpm,) = site.series("fairlead_mig_gpm_seconds_total", mig_uuid=uuids[profile])
        (active,) = site.series("fairlead_mig_sm_active_seconds_total", mig_uuid=uuids[profile])
        assert gpm > 0 and active <= gpm
    for job in jobs.values():
        until_seconds(site, job, lambda record: record.alloc_seconds >= 60)  # jobstats leaves out shorter jobs
    site.let_end(*jobs.values())
    for profile, activity in ((LARGE, 0.8), (SMALL, 0.01)):
        record = site.only_record(jobs[profile])
        (gpu,) = record.gpus
        assert (gpu.uuid, gpu.pci, gpu.mig.rpartition("/")[2]) == (uuids[profile], GPU, profile)
        assert not gpu.shared and gpu.seen_seconds == 0 and gpu.busy_seconds is None and gpu.energy_joules is None
        assert gpu.gpm_seconds > 40 and gpu.sm_active_seconds == pytest.approx(activity * gpu.gpm_seconds, rel=0.1)
    assert len({site.only_record(job).gpus[0].gres_index for job in jobs.values()}) == 2
    if site.rack.suite != "bookworm":
        _collected(site, jobs)


def _collected(site: MigSite, jobs: dict[str, int]) -> None:
    """The controller has the values of each instance, and jobstats is told that the utilisation is not known."""
    for job in jobs.values():
        wait_in_database(site.rack, job)
    words = ("--site", str(site.admin.site), "--store", str(site.folder / "store"), "--bin-dir", str(site.rack.bin))
    said = site.admin.run("collect", *words)
    assert "records, 0 set aside" in said.stdout, said
    with JobStore(str(site.folder / "store"), write=False) as store:
        for profile, activity in ((LARGE, 80), (SMALL, 1)):
            (each,) = store.runs_of(str(jobs[profile]))
            records = list(store.records(each.run))
            report, _ = merged(each.run, records, each.run.end_unix or 0)
            assert report.totals.sm is not None and report.totals.sm.percent == pytest.approx(activity, rel=0.1)
            # The lab's hosts have no job cgroups, so the node has no CPU values and would be left out.
            host = HostUsage(cpu_seconds=1.0, cpus=1, memory_max_bytes=1, memory_limit_bytes=2)
            filled = [replace(record, host=host) for record in records]
            data: Any = payload_data(payload(merged(each.run, filled, each.run.end_unix or 0)[0]))
            assert data["nodes"]["gpu1"]["gpu_utilization"] == {} and "gpu_total_memory" not in data["nodes"]["gpu1"]
            assert data["fl"]["sm"] == pytest.approx(activity, rel=0.1) and "kj" not in data["fl"]


def test_findings_name_the_instance_and_the_job_on_it(site: MigSite) -> None:
    jobs = {profile: site.job(profile) for profile in FIRST}
    try:
        site.faults.set(0, "mig.gi.1.sram_uncorrected", 3)
        said = site.host.ssh("fairlead check --only ecc", check=False).stdout
        assert f"3 uncorrectable SRAM errors in MIG instance 1 ({LARGE}) of GPU {GPU}" in said, said
        bus = GPU.rpartition(".")[0]
        for xid, gi in ((31, "01"), (13, "11")):
            site.host.inject_kmsg(f"NVRM: Xid (PCI:{bus} GPU-I:{gi}): {xid}, pid=7, name=x, Ch 00000001")
        for xid, profile in ((31, LARGE), (13, SMALL)):
            words = f"the fault of job {jobs[profile]}"
            wait(lambda x=xid, w=words: any(f"Xid {x} on GPU {GPU}" in row and w in row for row in findings(site)))  # type: ignore[misc]
    finally:
        site.faults.set(0, "mig.gi.1.sram_uncorrected", 0)
        site.let_end(*jobs.values())
    site.faults.set(0, "mig.gi.11.used_bytes", 2 << 30)
    said = site.host.ssh("fairlead check --only gpu_leftovers", check=False).stdout
    site.faults.set(0, "mig.gi.11.used_bytes", 0)
    assert f"memory of MIG instance 11 ({SMALL}) of GPU {GPU} is in use and no process has it" in said, said


def findings(site: MigSite) -> list[str]:
    status = json.loads(site.host.run(["cat", "/run/fairlead/status.json"]).stdout)
    return [str(finding["summary"]) for finding in status["findings"]]


def test_a_job_with_instances_of_two_types_keeps_both(site: MigSite) -> None:
    """slurmd shows the prolog only the instances of one type, so the record misses one. slurmctld knows both."""
    options = ",".join(f"gpu:{site.slurm_type(profile)}:1" for profile in FIRST)
    job = site.rack.submit(WAITS, "-n1", f"--gres={options}")
    site.rack.wait_job(job, "RUNNING")
    wait(lambda: bool(site.record(job)) and bool(site.only_record(job).gpus))
    assert len(site.visible(job).split(",")) == 2 and len(site.only_record(job).gpus) == 1
    before = site.instances()
    site.drain()
    for profile in FIRST:  # whichever the record misses
        site.declare(profile, "2g.20gb")
        code, said = site.apply("--draining")
        why = f"job {job} runs, and its record does not say which GPUs or MIG instances it has"
        assert code == 75 and why in said and site.instances() == before, said
    site.declare(*FIRST)
    site.let_end(job)
    wait(site._resumed)


def test_the_layout_changes_while_a_job_keeps_its_instance(site: MigSite) -> None:
    job = site.job(LARGE)
    before = site.instances()
    mine = site.visible(job)
    script = site.host.run(["pgrep", "-u", "alice", "-f", "slurm_script"]).stdout

    code, said = site.apply("--draining")
    assert code == 75 and said.splitlines()[0] == (
        "fairlead apply: --draining: jobs can start on gpu1, which is not drained in Slurm; nothing was changed"
    )
    for wrong in ("--undo", "--drained", "--root /tmp"):
        code, said = site.apply("--draining", wrong)
        assert code == 64 and len(said.splitlines()) == 1, said
    site.drain()
    site.declare("2g.20gb", "2g.20gb", SMALL)
    code, said = site.apply("--draining")
    row = said.splitlines()[0]
    assert code == 75 and row.startswith("deferred     mig "), said
    assert f"GPU {GPU} stays as it is: MIG instance 1 ({LARGE} at memory slice 0) would have to go, and job {job} uses it" in row
    site.declare(LARGE, "2g.20gb")
    code, said = site.apply("--draining")
    if site.rack.suite == "bookworm":
        why = f"Slurm 22.05 counts the instances of a GPU in an order that the change can alter, and job {job} uses instance 1"
        assert code == 75 and why in said, said
        assert site.instances() == before
        site.let_end(job)
        return
    assert code == 0 and said.startswith("changed      mig "), said
    assert site.apply("--draining")[1].startswith("same         mig ")
    site.restart(LARGE, "2g.20gb")
    after = site.instances()
    assert sorted(after.values()) == ["2g.20gb", LARGE] and after[mine] == LARGE

    assert site.rack.job_state(job) == "RUNNING"
    assert site.host.run(["pgrep", "-u", "alice", "-f", "slurm_script"]).stdout == script
    second = site.job("2g.20gb")
    assert after[site.visible(second)] == "2g.20gb"
    third = site.rack.submit(WAITS, "-n1", f"--gres=gpu:{LARGE}:1")
    site.let_end(second)
    wait(lambda: site.rack.job_state(third) == "PENDING")
    site.let_end(job)
    record = site.only_record(job)
    assert [gpu.uuid for gpu in record.gpus] == [mine]
    site.rack.wait_job(third, "RUNNING")
    assert site.visible(third) == mine, "the instance is free now"
    site.let_end(third)


@pytest.mark.parametrize("beside", [True, False], ids=["with AutoDetect", "alone"])
def test_instances_that_gres_conf_lists(site: MigSite, beside: bool) -> None:
    """With AutoDetect=nvml, slurmd takes the UUIDs from NVML for such lines too. Without it, slurmd gives the job an index, and
    the agent finds the instance by the lines. They are in another order than slurm.conf's types and NVML's devices."""
    layout = tuple(site.instances().values())
    uuids = {profile: uuid for uuid, profile in site.instances().items()}
    lines = by_hand(site)
    site.restart(*layout, lines=lines, beside=beside)
    remarks = json.loads(site.host.ssh("fairlead doctor --json", check=False).stdout)["remarks"]
    assert not [remark["what"] for remark in remarks if remark["what"].startswith("gres.conf: ")]
    warned = "gres.conf has MultipleFiles" in [remark["what"] for remark in remarks]
    jobs = {profile: site.job(profile) for profile in (LARGE, min(layout))}
    for profile, job in jobs.items():
        wait(lambda j=job: bool(site.only_record(j).gpus))  # type: ignore[misc]
        wait(lambda p=profile, j=job: site.series("fairlead_job_gpu", job=str(j), mig_uuid=uuids[p]) == [1.0])  # type: ignore[misc]
    bus, xid = GPU.rpartition(".")[0], 43 if beside else 69
    site.host.inject_kmsg(f"NVRM: Xid (PCI:{bus} GPU-I:01): {xid}, pid=7, name=x, Ch 00000001")
    words = f"the fault of job {jobs[LARGE]}"
    wait(lambda: any(f"Xid {xid} on GPU {GPU}" in row and words in row for row in findings(site)))
    visible = {profile: site.visible(job) for profile, job in jobs.items()}
    site.let_end(*jobs.values())
    for profile, job in jobs.items():
        (gpu,) = site.only_record(job).gpus
        assert (gpu.uuid, gpu.pci, gpu.mig.rpartition("/")[2]) == (uuids[profile], GPU, profile)
        if beside:
            assert visible[profile] == uuids[profile]
        else:
            assert visible[profile].isdigit()
    if beside:
        assert not warned or nvml_plugin(site.rack.suite) is None  # there, gres.conf cannot say AutoDetect=nvml
    else:
        assert warned
        _changed_under_slurmd(site, lines)


def by_hand(site: MigSite) -> str:
    """Lines of gres.conf for the instances that are there, the last one first, and for the whole GPUs."""
    lines = []
    for row in site.host.run("grep ^mig /run/fairlead/topology").stdout.splitlines():
        _, _, _, gi, _, profile, *_ = row.split("\t")
        lines.append(f"NodeName=gpu1 Name=gpu Type={site.slurm_type(profile)} MultipleFiles=/dev/nvidia0{caps(0, int(gi))}\n")
    return "".join([*reversed(lines), "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[1-7]\n"])


def _changed_under_slurmd(site: MigSite, lines: str) -> None:
    """Lines that slurmd has not read tell nothing. doctor names the instance that is on two of them."""
    said = site.host.run("grep ^gres /run/fairlead/topology").stdout.splitlines()
    assert len(said) == len(site.instances()) + 7, said
    gres = site.rack.slurm_etc / "gres.conf"
    first, _, *rest = lines.splitlines(keepends=True)
    gres.write_text(first + first.replace("Type=", "Type=x") + "".join(rest))
    wait(lambda: not site.host.run("grep ^gres /run/fairlead/topology", check=False).stdout)
    remarks = json.loads(site.host.ssh("fairlead doctor --json", check=False).stdout)["remarks"]
    wrong = [remark["what"] for remark in remarks if remark["what"].startswith("gres.conf: ")]
    assert len(wrong) == 2 and "is on another line too" in wrong[0] and "no line has MIG instance" in wrong[1], wrong
    gres.write_text(lines)
