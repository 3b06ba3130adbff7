"""One cluster with slurmdbd for each Slurm release, shared by the tests of that release."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES

#: Het jobs are started by the backfill scheduler alone, each 30 s by default. A cancelled script may live for KillWait seconds.
QUICK = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1\nKillWait=2\n"


@pytest.fixture(scope="session", params=list(SUITES))
def slurm(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with Cluster(request.param, nodes=2, cores=4, accounting=True, extra_conf=QUICK) as cluster:
        hold = cluster._hold
        yield cluster
    if hold is not None and hold.stdout is not None:
        hold.stdout.close()
