"""The SPANK plugin on a node with MIG instances, under real Slurm with AutoDetect=nvml and without a task prolog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from tests.hooks.test_mig_on_slurm import DIVIDED, GATHERED, LISTED_CPUS, SLOTS, TREE, TURNS, list_instances, prepare
from tests.hooks.test_on_slurm import cpus, lay_out, tasks
from tests.hooks.test_spank import PLUGSTACK, TASK, policy
from tests.lab import spank
from tests.lab.cluster import Cluster
from tests.lab.hardware import nvml_plugin
from tests.lab.nvml.library import build, write_conf
from tests.lab.roots import SUITES
from tests.lab.slurmd import divide
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
FOUR = ("-n4", "-c28", "--gres=gpu:1g.10gb:4")


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    module = nvml_plugin(request.param)
    content = tmp_path_factory.mktemp("spank")
    content.chmod(0o755)
    conf = write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    divide(content, DIVIDED, SLOTS)
    library = build(Path(request.config.cache.mkdir("simulated-nvml")))
    binds: dict[str | Path, str] = {
        conf.parent: "/etc/fairlead-sim", content / "mig": "/opt/mig", library: "/opt/libnvidia-ml.so.1",
        spank.plugin(request.param): spank.INSIDE,
    }  # fmt: skip
    binds |= {module: "/opt/gpu_nvml.so"} if module else {}
    cluster = Cluster(
        request.param, nodes=1, simulated=True, binds=binds, extra_conf=f"PlugStackConfig={PLUGSTACK}",
        files={PLUGSTACK: f"optional {spank.INSIDE}\n"},
    )  # fmt: skip
    with running(cluster) as up:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_LIBRARY_PATH", str(library.parent))
            patch.setenv("FAIRLEAD_SIM_NVML", str(conf))
            patch.setenv("FAIRLEAD_SIM_CONTROL", str(content / "control"))
            worker = Worker(60)
            try:
                node = gather(Root(str(TREE)), worker.sweep().raw)
            finally:
                worker.close()
        lay_out(up, "n1", node)
        prepare(up, None if module else node)
        GATHERED[up.suite] = node
        yield up


def test_the_plugin_binds_tasks_near_the_gpus_of_their_instances(site: Cluster) -> None:
    found = tasks(site, "n1", *FOUR, script=TASK)
    assert cpus(found) == ["0-27", "28-55", "56-83", "84-111"]
    assert [found[rank][3] for rank in range(4)] == [policy(0), policy(0), policy(1), policy(1)]
    for options in ((*FOUR, "--fairlead=off"), (*FOUR, "--cpu-bind=cores")):
        assert cpus(tasks(site, "n1", *options, script=TASK)) == TURNS, options
    # Only 26.05 names whole GPUs of such a node by UUID. The plugin leaves steps without an instance to the task prolog.
    assert cpus(tasks(site, "n1", "-n4", "-c28", "--gres=gpu:h100:4", script=TASK)) == TURNS
    order = ("-n4", "-c1", "--gres=gpu:1g.10gb:4", "--cpu-bind=map_cpu:57,0,1,56")
    assert cpus(tasks(site, "n1", *order, script=TASK)) == ["57", "0", "1", "56"]


def test_the_plugin_finds_instances_that_gres_conf_lists(site: Cluster) -> None:
    node = GATHERED[site.suite]
    lay_out(site, "n1", node, listed=list_instances(site, node))
    found = tasks(site, "n1", *FOUR, script=TASK)
    assert cpus(found) == LISTED_CPUS
    assert [found[rank][3] for rank in range(4)] == [policy(1), policy(0), policy(1), policy(0)]
    assert cpus(tasks(site, "n1", *FOUR, "--fairlead=off", script=TASK)) == TURNS
