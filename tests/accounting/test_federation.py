"""A job of a federation has the number of its cluster in the upper bits of its id. fairlead sees this cluster alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.controller.accounting import Accounting
from fairlead.slurm.listing import listed
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.pause import until

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(240)]
HOOKS = Path(__file__).resolve().parents[2] / "slurm"


def test_ids_with_a_clusters_number_pass_everywhere() -> None:
    conf = "FederationParameters=fed_display\n"
    hooks = {"prolog": HOOKS / "prolog", "epilog": HOOKS / "epilog"}
    with Cluster("trixie", nodes=1, cores=4, accounting=True, extra_conf=conf, **hooks) as slurm:  # type: ignore[arg-type]
        slurm.run(["/usr/bin/sacctmgr", "-i", "add", "federation", "fed", "clusters=lab"])
        until(lambda: "fed" in slurm.scontrol("show", "federation"), "the federation")
        run = slurm.node_dirs("n1").run
        (run / "jobs").mkdir(exist_ok=True)
        (run / "ended").mkdir(exist_ok=True)
        client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(slurm.bin), deadline_seconds=60)
        began = int(time.time())
        job = slurm.submit("#!/bin/sh\nuntil [ -e /tmp/go ]; do sleep 0.1; done\n", "-n1", "--gres=gpu:1")
        assert job > 1 << 26
        slurm.wait_job(job, "RUNNING")
        until(lambda: (run / "jobs" / str(job)).exists(), "the prolog's record")
        assert [int(each.id) for each in client.jobs_on("n1")] == [job]
        (node,) = listed(client)
        assert [int(each.id) for each in node.jobs] == [job]
        assert client.gres_indices(job, "n1") == {0}
        slurm.run(["/usr/bin/touch", "/tmp/go"])
        slurm.wait_job(job, "COMPLETED")
        mistakes: list[str] = []
        found = Accounting(client).ended
        until(lambda: job in {each.job for each in found(began - 60, int(time.time()) + 1, mistakes)}, "the job in sacct")
        assert not mistakes
