"""The task prolog on a node with whole GPUs and MIG instances, under real Slurm with AutoDetect=nvml.

Slurm's NVML plug-in is unmodified. It reads the simulated NVML library, and so does the worker that the published topology is
made from. So the UUIDs of both must be the same, or nothing is bound.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import PACKAGE, cpus, lay_out, tasks
from tests.lab.cluster import Cluster
from tests.lab.hardware import nvml_plugin
from tests.lab.nvml.library import build, write_conf
from tests.lab.roots import SUITES
from tests.lab.slurmd import divide
from tests.lab.trees import MACHINES
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
TREE = MACHINES / "hgx-h100"
DIVIDED = (0, 1, 6, 7)  # two GPUs of each socket. With two instances of a type on a GPU, Slurm 22.05 would name the GPUs in turn
SLOTS = [(4, 0), (0, 4)]  # 3g.40gb and 1g.10gb, see tests/lab/nvml/mig.c
SHOW = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS"'
TURNS = ["0-27", "56-83", "28-55", "84-111"]  # Slurm assigns the sockets in turn
PREPARE = """
libraries=/usr/lib/x86_64-linux-gnu
cp /opt/gpu_nvml.so $libraries/slurm-wlm/
for name in libnvidia-ml.so.1 libnvidia-ml.so; do cp /opt/libnvidia-ml.so.1 $libraries/$name; done
mount --bind /opt/mig /proc/driver
mkdir -p /dev/nvidia-caps
while read -r _ minor; do mknod -m 666 /dev/nvidia-caps/nvidia-cap$minor c 241 $minor; done </opt/mig/nvidia-caps/mig-minors
"""


def prepare(cluster: Cluster) -> None:
    """Give the node's slurmd the plug-in, the library and the instances, and slurmctld their number."""
    cluster.stop_slurmd("n1")
    cluster.stop_slurmctld()
    cluster.run(["/bin/sh", "-ec", PREPARE])
    etc = cluster.folder / "etc"
    (etc / "gres.conf").write_text("AutoDetect=nvml\n")
    large = "3g.39gb" if SUITES[cluster.suite] == "22.05" else "3g.40gb"
    conf = re.sub(r"Gres=\S+", f"Gres=gpu:{large}:4,gpu:1g.10gb:4,gpu:h100:4", (etc / "slurm.conf").read_text())
    (etc / "slurm.conf").write_text(conf)
    cluster.start_slurmctld("-c")
    cluster.start_slurmd("n1")
    deadline = time.monotonic() + 60
    while " State=IDLE" not in (shown := cluster.scontrol("-o", "show", "node", "n1")):
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


@pytest.fixture(scope="module", params=list(SUITES))
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    plugin = nvml_plugin(request.param)
    if plugin is None:
        pytest.skip(f"{request.param} has no NVML plug-in of Slurm")
    content = tmp_path_factory.mktemp("mixed")
    content.chmod(0o755)
    conf = write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    divide(content, DIVIDED, SLOTS)
    (content / "cgroup/cpuset").mkdir(parents=True)
    for name in ("cpuset/cpuset.effective_cpus", "cpuset.cpus.effective"):  # v1, v2: tasks in the top group may use all
        (content / "cgroup" / name).write_text("0-111\n")
    library = build(Path(request.config.cache.mkdir("simulated-nvml")))
    inside = {PACKAGE: f"/run/lab-hooks{PACKAGE}", conf.parent: "/etc/fairlead-sim", content / "mig": "/opt/mig"}
    inside |= {plugin: "/opt/gpu_nvml.so", library: "/opt/libnvidia-ml.so.1", content / "cgroup": "/sys/fs/cgroup"}
    binds: dict[str | Path, str] = {**inside}
    with running(Cluster(request.param, nodes=1, simulated=True, task_prolog=HOOKS / "task-prolog", binds=binds)) as up:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_LIBRARY_PATH", str(library.parent))
            patch.setenv("FAIRLEAD_SIM_NVML", str(conf))
            patch.setenv("FAIRLEAD_SIM_CONTROL", str(content / "control"))
            worker = Worker(60)
            try:
                node = gather(Root(str(TREE)), worker.sweep().raw)
            finally:
                worker.close()
        lay_out(up, "n1", node, python="/usr/bin/python3")
        prepare(up)
        yield up


def test_tasks_are_bound_near_the_gpus_of_their_instances(mixed: Cluster) -> None:
    found = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW)
    assert all(row[1].count("MIG-") == 4 for row in found.values()), found
    assert cpus(found) == ["0-27", "28-55", "56-83", "84-111"]
    off = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW, FAIRLEAD_PROFILE="off")
    assert cpus(off) == TURNS


def test_a_step_with_whole_gpus_keeps_slurms_cpus_where_slurm_names_them_by_index(mixed: Cluster) -> None:
    """26.05 sets UUIDs there, and no release that can be run here does: see tests/topology/test_mig_binding.py."""
    found = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:h100:4", script=SHOW)
    assert all(re.fullmatch(r"\d+(,\d+)*", row[1]) for row in found.values()), found
    assert cpus(found) == TURNS


def test_the_users_binding_stays_with_instances_too(mixed: Cluster) -> None:
    order = "map_cpu:57,0,1,56"
    found = tasks(mixed, "n1", "-n4", "-c1", "--gres=gpu:1g.10gb:4", f"--cpu-bind={order}", script=SHOW)
    assert cpus(found) == ["57", "0", "1", "56"]
