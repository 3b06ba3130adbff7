"""Usage records of jobs that share a GPU by shards (gres.conf(5), "Sharding"), on every release."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hooks.stage import HOOKS
from tests.lab.cluster import Cluster
from tests.lab.nvml.library import build
from tests.lab.roots import SUITES
from tests.slurm.conftest import running
from tests.slurm.test_usage_on_slurm import OnNode, consistent, until

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


class ShardedCluster(Cluster):
    """The first GPU of each node has two shards."""

    def write_conf(self, **changes: object) -> None:
        super().write_conf(**changes)
        conf, gres = self.folder / "etc/slurm.conf", self.folder / "etc/gres.conf"
        text = conf.read_text().replace("GresTypes=gpu\n", "GresTypes=gpu,shard\n")
        conf.write_text(text.replace(" Gres=gpu:h100:8", " Gres=gpu:h100:8,shard:2"))
        shards = (f"NodeName={node.name} Name=shard Count=2 File=/dev/nvidia0\n" for node in self.slurm_nodes)
        gres.write_text(gres.read_text() + "".join(shards))


@pytest.fixture(scope="module", params=list(SUITES))
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnNode]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    library = build(Path(request.config.cache.mkdir("simulated-nvml"))).parent
    with running(ShardedCluster(request.param, nodes=1, cores=4, prolog=HOOKS / "prolog", epilog=HOOKS / "epilog")) as up:
        made = OnNode(up, tmp_path_factory.mktemp("agent"), library)
        try:
            yield made.start()
        finally:
            made.end()


def test_two_jobs_on_shards_of_one_gpu_are_not_blamed_for_each_other(agent: OnNode) -> None:
    """Each record names the GPU, and says that its values are those of the board."""
    agent.faults.work(0, "busy")
    first = agent.cluster.submit("#!/bin/sh\nsleep 45\n", "-n1", "--gres=shard:1")
    second = agent.cluster.submit("#!/bin/sh\nsleep 30\n", "-n1", "--gres=shard:1")
    until(lambda: len(agent.of(first, second)) == 2, "a record of each job")
    records = agent.ended(2, first, second)
    assert [[gpu.gres_index for gpu in record.gpus] for record in records] == [[0], [0]]
    for record in records:
        consistent(record)
        (gpu,) = record.gpus
        assert gpu.shared, gpu
        assert gpu.seen_seconds > 0 and gpu.busy_seconds == pytest.approx(gpu.seen_seconds, rel=0.05), "of the whole board"
    agent.faults.work(0, "idle")
