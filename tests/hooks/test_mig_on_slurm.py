"""The task prolog on a node with whole GPUs and MIG instances, under real Slurm with AutoDetect=nvml.

Slurm's NVML plug-in is unmodified. It reads the simulated NVML library, and so does the worker that the published topology is
made from. So the UUIDs of both must be the same, or nothing is bound. Debian has no NVML plug-in for 26.05. There the same
devices are listed in fake_gpus.conf, which Slurm reads for its own tests, so only the reading of NVML is left out.
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
from fairlead.model.facts import Missing, Node
from fairlead.slurm import slurm_conf
from fairlead.slurm_config import listed_gpus
from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import PACKAGE, cpus, lay_out, tasks
from tests.lab.cluster import Cluster
from tests.lab.hardware import nvml_plugin
from tests.lab.nvml.library import build, write_conf
from tests.lab.roots import SUITES
from tests.lab.slurmd import IDS, divide
from tests.lab.trees import MACHINES
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
TREE = MACHINES / "hgx-h100"
DIVIDED = (0, 1, 6, 7)  # two GPUs of each socket. With two instances of a type on a GPU, Slurm 22.05 would name the GPUs in turn
SLOTS = [(4, 0), (0, 4)]  # 3g.40gb and 1g.10gb, see tests/lab/nvml/mig.c
SHOW = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS"'
TURNS = ["0-27", "56-83", "28-55", "84-111"]  # Slurm assigns the sockets in turn
GATHERED: dict[str, Node] = {}  # by suite
PREPARE = """
libraries=/usr/lib/x86_64-linux-gnu
cp /opt/gpu_nvml.so $libraries/slurm-wlm/
for name in libnvidia-ml.so.1 libnvidia-ml.so; do cp /opt/libnvidia-ml.so.1 $libraries/$name; done
mount --bind /opt/mig /proc/driver
mkdir -p /dev/nvidia-caps
while read -r _ minor; do mknod -m 666 /dev/nvidia-caps/nvidia-cap$minor c 241 $minor; done </opt/mig/nvidia-caps/mig-minors
"""
DEVICES = """
mkdir -p /dev/nvidia-caps
for minor in $(seq 1 120); do
    [ -e /dev/nvidia-caps/nvidia-cap$minor ] || mknod -m 666 /dev/nvidia-caps/nvidia-cap$minor c 241 $minor
done
"""
LISTED_CPUS = ["56-83", "0-27", "84-111", "28-55"]  # near the GPUs 6, 0, 7, 1
LARGE, SMALL = 1, 11  # ids of the GPU instances 3g.40gb and 1g.10gb


def listed(node: Node, cpus: int = 112) -> str:
    """The lines of fake_gpus.conf (src/interfaces/gpu.c) for the GPUs and instances, as gpu_nvml.c of 26.05 finds them."""
    assert not isinstance(node.gpus, Missing)
    lines = []
    for number, gpu in enumerate(node.gpus):
        first = 0 if number < 4 else cpus // 2
        cores = f"{first}-{first + cpus // 2 - 1}"
        links = ",".join("-1" if other is gpu else "0" for other in node.gpus)
        devices = () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices
        rows = [("(null)", str(device.profile), caps(number, device.gi), device.uuid) for device in devices]
        for own, kind, more, uuid in rows or [(links, "h100", "", str(gpu.uuid))]:
            lines.append(f"{kind}|{cpus}|{cores}|{own}|/dev/nvidia{gpu.minor}{more}|{uuid}|nvidia_gpu_env,env_uuid\n")
    return "".join(lines)


def caps(gpu: int, gi: int) -> str:
    """The device files of an instance beside that of its GPU, as ``mig_minors`` numbers them if it lists all GPUs."""
    first = 2 * (gpu * IDS + gi) + 1
    return f",/dev/nvidia-caps/nvidia-cap{first},/dev/nvidia-caps/nvidia-cap{first + 1}"


def prepare(cluster: Cluster, node: Node | None = None) -> None:
    """Give the node's slurmd the plug-in, the library and the instances, and slurmctld their number. ``node``: its GPUs are
    listed in fake_gpus.conf instead."""
    cluster.stop_slurmd("n1")
    cluster.stop_slurmctld()
    if node is None:
        cluster.run(["/bin/sh", "-ec", PREPARE])
    etc = cluster.folder / "etc"
    (etc / "gres.conf").write_text("" if node else "AutoDetect=nvml\n")
    if node is not None:
        (etc / "fake_gpus.conf").write_text(listed(node))
    large = "3g.39gb" if SUITES[cluster.suite] == "22.05" else "3g.40gb"
    conf = re.sub(r"Gres=\S+", f"Gres=gpu:{large}:4,gpu:1g.10gb:4,gpu:h100:4", (etc / "slurm.conf").read_text())
    (etc / "slurm.conf").write_text(conf)
    cluster.start_slurmctld("-c")
    cluster.start_slurmd("n1")
    wait_idle(cluster)


def wait_idle(cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while " State=IDLE" not in (shown := cluster.scontrol("-o", "show", "node", "n1")):
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


@pytest.fixture(scope="module", params=list(SUITES))
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    plugin = nvml_plugin(request.param)
    content = tmp_path_factory.mktemp("mixed")
    content.chmod(0o755)
    conf = write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    divide(content, DIVIDED, SLOTS)
    (content / "cgroup/cpuset").mkdir(parents=True)
    for name in ("cpuset/cpuset.effective_cpus", "cpuset.cpus.effective"):  # v1, v2: tasks in the top group may use all
        (content / "cgroup" / name).write_text("0-111\n")
    library = build(Path(request.config.cache.mkdir("simulated-nvml")))
    inside = {PACKAGE: f"/run/lab-hooks{PACKAGE}", conf.parent: "/etc/fairlead-sim", content / "mig": "/opt/mig"}
    inside |= {library: "/opt/libnvidia-ml.so.1", content / "cgroup": "/sys/fs/cgroup"}
    inside |= {plugin: "/opt/gpu_nvml.so"} if plugin else {}
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
        prepare(up, None if plugin else node)
        GATHERED[up.suite] = node
        yield up


def test_tasks_are_bound_near_the_gpus_of_their_instances(mixed: Cluster) -> None:
    found = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW)
    assert all(row[1].count("MIG-") == 4 for row in found.values()), found
    assert cpus(found) == ["0-27", "28-55", "56-83", "84-111"]
    off = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW, FAIRLEAD_PROFILE="off")
    assert cpus(off) == TURNS


def test_a_step_with_whole_gpus_keeps_slurms_cpus_where_slurm_names_them_by_index(mixed: Cluster) -> None:
    """26.05 sets UUIDs there, so the tasks are bound."""
    found = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:h100:4", script=SHOW)
    if SUITES[mixed.suite] == "26.05":
        assert all(row[1].count("GPU-") == 4 for row in found.values()), found
        assert cpus(found) == ["0-27", "28-55", "56-83", "84-111"]
        return
    assert all(re.fullmatch(r"\d+(,\d+)*", row[1]) for row in found.values()), found
    assert cpus(found) == TURNS


def test_the_users_binding_stays_with_instances_too(mixed: Cluster) -> None:
    order = "map_cpu:57,0,1,56"
    found = tasks(mixed, "n1", "-n4", "-c1", "--gres=gpu:1g.10gb:4", f"--cpu-bind={order}", script=SHOW)
    assert cpus(found) == ["57", "0", "1", "56"]


def test_instances_that_gres_conf_lists_are_bound_by_index(mixed: Cluster) -> None:
    """No AutoDetect. Task i has the CPUs near the GPU of the i-th index, whose order is that of gres.conf."""
    node = GATHERED[mixed.suite]
    listed = list_instances(mixed, node)
    lay_out(mixed, "n1", node, python="/usr/bin/python3", listed=listed)
    found = tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW)
    assert all(re.fullmatch(r"\d+(,\d+){3}", row[1]) for row in found.values()), found
    assert {row[2] for row in found.values()} == {",".join(str(i) for i, uuid in listed.uuids.items() if uuid in small(node))}
    assert cpus(found) == LISTED_CPUS
    assert cpus(tasks(mixed, "n1", "-n4", "-c28", "--gres=gpu:1g.10gb:4", script=SHOW, FAIRLEAD_PROFILE="off")) == TURNS


def small(node: Node) -> dict[str, int]:
    """UUID -> minor number of the GPU of each instance 1g.10gb."""
    assert not isinstance(node.gpus, Missing)
    devices = {gpu.minor: gpu.mig_devices for gpu in node.gpus if gpu.mig_current is True}
    return {each.uuid: minor for minor, found in devices.items() for each in found if each.profile == "1g.10gb"}  # type: ignore[union-attr, misc]


def list_instances(cluster: Cluster, node: Node) -> published_files.ListedDevices:
    """Restart Slurm with a gres.conf that lists all devices, in another order than the types in slurm.conf and the GPUs. slurmd's
    log must have the files of each index as fairlead counts them. Return the instances 1g.10gb by index."""
    order = [6, 0, 7, 1]
    lines = [f"Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia{gpu}{caps_of(gpu, SMALL)}" for gpu in order]
    lines += [f"Name=gpu Type=h100 File=/dev/nvidia{gpu}" for gpu in (5, 2, 4, 3)]
    lines += [f"Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia{gpu}{caps_of(gpu, LARGE)}" for gpu in order]
    counted = list_by_hand(cluster, lines)
    conf = slurm_conf.parse(str(cluster.folder / "etc/slurm.conf"), lambda path: Path(path).read_text())
    types = listed_gpus.counted_types(conf.nodes, "n1")
    files = listed_gpus.files_by_index(listed_gpus.gpu_lines(lines, "n1") or (), types)
    assert [list(each) for each in files] == counted
    uuids = {f"/dev/nvidia{minor}": uuid for uuid, minor in small(node).items()}
    found = {index: uuids[each[0]] for index, each in enumerate(files) if "1g.10gb" in kind_of(lines, each)}
    assert [small(node)[uuid] for uuid in found.values()] == order
    return published_files.ListedDevices(found, 0.0)


def kind_of(lines: list[str], files: tuple[str, ...]) -> str:
    return next(line for line in lines if line.endswith(f"={','.join(files)}"))


def caps_of(gpu: int, gi: int) -> str:
    """The device files of an instance, by the numbers of the lab's list of the divided GPUs."""
    first = 2 * (DIVIDED.index(gpu) * IDS + gi) + 1
    return f",/dev/nvidia-caps/nvidia-cap{first},/dev/nvidia-caps/nvidia-cap{first + 1}"


def list_by_hand(cluster: Cluster, lines: list[str]) -> list[list[str]]:
    """Restart Slurm with these lines of gres.conf and nothing detected. Return the device files of each GRES index, in
    the order of slurmd's log (DebugFlags=Gres)."""
    cluster.stop_slurmd("n1")
    cluster.stop_slurmctld()
    cluster.run(["/bin/sh", "-ec", DEVICES])
    etc, log = cluster.folder / "etc", cluster.folder / "log/slurmd.n1.log"
    (etc / "gres.conf").write_text("".join(f"{line}\n" for line in lines))
    (etc / "fake_gpus.conf").unlink(missing_ok=True)
    text = (etc / "slurm.conf").read_text().replace("Gres=gpu:3g.39gb:4", "Gres=gpu:3g.40gb:4")
    text = text.replace("SlurmdDebug=info", "SlurmdDebug=verbose\nDebugFlags=Gres")
    (etc / "slurm.conf").write_text(text)
    before = log.stat().st_size
    cluster.start_slurmctld("-c")
    cluster.start_slurmd("n1")
    wait_idle(cluster)
    said = log.read_text()[before:]
    found: list[list[str]] = []
    for path in re.findall(r"gpu device number -?\d+\(([^)]*)\)", said):
        if "caps" in path:
            found[-1].append(path)
        else:
            found.append([path])
    return found[-12:]
