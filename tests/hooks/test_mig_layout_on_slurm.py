"""The MIG layout of a node is changed while a job runs there, under real Slurm with AutoDetect=nvml.

The job's instance stays, and another instance of the same GPU is replaced. slurmctld and slurmd are restarted with the new Gres=.
Then Slurm gives the new instance to a job, and nobody gets the instance of the running job. On 22.05 the same change is refused.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.apply import apply
from fairlead.apply.apply_report import Item
from fairlead.apply.draining_node import on_draining_node
from fairlead.config import Document
from fairlead.config.document import resolve_layers
from fairlead.daemon.jobs.blame import Blame
from fairlead.errors import NodeBusy
from fairlead.host import job_records
from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Gpu, Node
from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS
from tests.hooks.test_mig_on_slurm import DIVIDED, SLOTS, TREE, listed, prepare
from tests.hooks.test_on_slurm import lay_out
from tests.lab.cluster import Cluster
from tests.lab.hardware import nvml_plugin
from tests.lab.nvml.library import build, write_conf
from tests.lab.roots import SUITES
from tests.lab.slurmd import divide
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
NOW = ("3g.40gb", "1g.10gb")
SHOW = "echo visible $CUDA_VISIBLE_DEVICES"


class Site:
    """A cluster of one node, and the worker that reads and changes the same simulated GPUs as its slurmd."""

    def __init__(self, cluster: Cluster, worker: Worker, folder: Path) -> None:
        self.cluster, self.worker, self.folder = cluster, worker, folder
        self.run_dir = cluster.node_dirs("n1").run

    def node(self) -> Node:
        return gather(Root(str(TREE)), self.worker.sweep().raw)

    def gpu(self, number: int) -> Gpu:
        gpus = self.node().gpus
        assert isinstance(gpus, tuple)
        return gpus[number]

    def uuids(self, number: int) -> dict[str, str]:
        """UUID -> profile of the instances of one GPU."""
        return {d.uuid: str(d.profile) for d in self.gpu(number).mig_devices}  # type: ignore[union-attr]

    def document(self, first: tuple[str, ...]) -> Document:
        """The first GPU is declared with these instances, and the others as they are."""
        by_gpu = {self.gpu(n).pci: list(NOW if n in DIVIDED else ()) for n in range(8)} | {self.gpu(0).pci: list(first)}
        layers = {
            "settings": {"mig": {"by_gpu": by_gpu}},
            "slurm": {"bin_dir": str(self.cluster.bin)},
            "agent": {"run_dir": str(self.run_dir)},
        }
        return resolve_layers("n1", [("test", layers)])[0]

    def apply(self, first: tuple[str, ...]) -> Item:
        document = self.document(first)
        jobs = on_draining_node(document)
        root, undo = Root(str(self.folder / "root")), str(self.folder / "undo")
        how = {"busy": bool(jobs.jobs), "drained": True, "jobs": jobs}
        (item,) = apply(document, root, nvml=self.worker, undo=undo, only=("mig",), **how).items  # type: ignore[arg-type]
        return item

    def visible(self, *options: str) -> list[str]:
        """CUDA_VISIBLE_DEVICES of a step of a job of its own."""
        said = self.cluster.run(["/usr/bin/srun", "-w", "n1", *options, "/bin/sh", "-c", SHOW], timeout=100).stdout
        return re.findall(r"^visible (\S+)$", said, re.MULTILINE)[0].split(",")

    def restart(self, gres: str) -> None:
        """As an admin does after a change of the layout: Gres= in slurm.conf, then slurmctld and slurmd."""
        conf = self.cluster.folder / "etc/slurm.conf"
        conf.write_text(re.sub(r"Gres=\S+", f"Gres={gres}", conf.read_text()))
        self.cluster.stop_slurmd("n1")
        self.cluster.stop_slurmctld()
        fake = conf.with_name("fake_gpus.conf")
        if fake.exists():
            fake.write_text(listed(self.node()))
        self.cluster.start_slurmctld()
        self.cluster.start_slurmd("n1")

    def drain(self) -> None:
        self.cluster.scontrol("update", "NodeName=n1", "State=DRAIN", "Reason=layout")

    def resume(self) -> None:
        """Resume the node as soon as its slurmd has registered."""
        deadline = time.monotonic() + 60
        while "DRAIN" in (shown := self.cluster.scontrol("-o", "show", "node", "n1")) or "UNKNOWN" in shown:
            assert time.monotonic() < deadline, shown
            self.cluster.scontrol("update", "NodeName=n1", "State=RESUME", check=False)
            time.sleep(0.5)
        assert "INVAL" not in shown and "DOWN" not in shown, shown


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    plugin = nvml_plugin(request.param)
    content = tmp_path_factory.mktemp("layout")
    content.chmod(0o755)
    conf = write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    divide(content, DIVIDED, SLOTS)
    control = conf.parent / "nvml.control"  # the library in slurmd reads here what the worker on this machine has set
    control.touch()
    library = build(Path(request.config.cache.mkdir("simulated-nvml")))
    binds: dict[str | Path, str] = {
        conf.parent: "/etc/fairlead-sim", content / "mig": "/opt/mig", library: "/opt/libnvidia-ml.so.1",
    }  # fmt: skip
    binds |= {plugin: "/opt/gpu_nvml.so"} if plugin else {}
    (content / "root").mkdir()
    cluster = Cluster(
        request.param, nodes=1, simulated=True, prolog=HOOKS / "prolog", epilog=HOOKS / "epilog", binds=binds,
        extra_conf="SelectTypeParameters=CR_Core\n",
    )  # fmt: skip
    with running(cluster) as up, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(library.parent))
        patch.setenv("FAIRLEAD_SIM_NVML", str(conf))
        patch.setenv("FAIRLEAD_SIM_CONTROL", str(control))
        worker = Worker(60)
        try:
            made = Site(up, worker, content)
            lay_out(up, "n1", made.node())
            prepare(up, None if plugin else made.node())
            yield made
        finally:
            worker.close()


def test_a_running_job_keeps_its_instance_while_another_one_changes(site: Site) -> None:
    new = SUITES[site.cluster.suite] != "22.05"
    large = "3g.40gb" if new else "3g.39gb"
    job = site.cluster.submit("#!/bin/sh\necho visible $CUDA_VISIBLE_DEVICES\nexec sleep 600\n", "-n1", f"--gres=gpu:{large}:1")
    site.cluster.wait_job(job, "RUNNING")
    deadline = time.monotonic() + 30
    while not (known := job_records.scan(str(site.run_dir / "jobs")).known):
        assert time.monotonic() < deadline, site.cluster.logs()
        time.sleep(0.1)
    (mine,) = known[0].names
    before = site.uuids(0)
    assert before[mine] == "3g.40gb", "the first instance of this type is on the first GPU"

    with pytest.raises(NodeBusy, match="not drained in Slurm"):
        on_draining_node(site.document(NOW))
    site.drain()
    gone = site.apply(("2g.20gb", "2g.20gb", "1g.10gb"))
    assert gone.state == "deferred"
    assert re.search(
        rf"^root: GPU \S+ stays as it is: MIG instance 1 \(3g.40gb at memory slice 0\) .* job {job} uses it", gone.message
    )
    shifted = site.apply(("4g.40gb", "3g.40gb"))
    assert shifted.state == "deferred" and f"job {job}" in shifted.message, shifted
    assert site.uuids(0) == before
    changed = site.apply(("3g.40gb", "2g.20gb"))
    if not new:
        assert changed.state == "deferred" and "Slurm 22.05 counts the instances of a GPU" in changed.message, changed
        assert site.uuids(0) == before
        return
    assert changed.state == "changed", changed
    after = site.uuids(0)
    assert sorted(after.values()) == ["2g.20gb", "3g.40gb"] and after[mine] == "3g.40gb"

    site.restart("gpu:3g.40gb:4,gpu:2g.20gb:1,gpu:1g.10gb:3,gpu:h100:4")
    site.resume()
    assert site.cluster.job_state(job) == "RUNNING"
    (added,) = site.visible("-n1", "--gres=gpu:2g.20gb:1")
    assert after[added] == "2g.20gb"
    others = site.visible("-n1", "--gres=gpu:3g.40gb:3")
    assert len(set(others)) == 3 and mine not in others and all(uuid.startswith("MIG-") for uuid in others)
    refused = site.cluster.run(["/usr/bin/srun", "-I2", "-w", "n1", "-n1", "--gres=gpu:3g.40gb:4", "/bin/true"], check=False)
    assert refused.returncode, "the job's instance would be given a second time"
    _blame(site, job)


def _blame(site: Site, job: int) -> None:
    """A record of the driver that names the instance of the running job is that job's, and of no job that has ended."""
    (site.run_dir / "topology").write_text(published_files.render_topology(site.node()))
    blame = Blame()
    blame.heed(job_records.scan(str(site.run_dir / "jobs")))
    bus = site.gpu(0).pci.rpartition(".")[0]
    lines = [f"NVRM: Xid (PCI:{bus} GPU-I:{gi}): 31, pid=7, name=x, Ch 1" for gi in ("01", "03")]
    records = [KernelRecord(sequence=n, seconds=time.monotonic(), priority=4, text=text) for n, text in enumerate(lines)]
    found = blame.attribute(records, str(site.run_dir), site.node())
    assert job in found[0].jobs and job not in found[1].jobs
