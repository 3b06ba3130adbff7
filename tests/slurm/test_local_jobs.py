"""A job whose record says running, and that is over: seen by its processes, on real Slurm."""

from __future__ import annotations

import time

import pytest

from fairlead.daemon.jobs.local_jobs import GONE_AFTER_SECONDS, SCAN_SECONDS, LocalJobs, steps
from tests.lab.cluster import Cluster

pytestmark = pytest.mark.slurm


def test_a_job_is_seen_by_its_steps(cluster: Cluster) -> None:
    proc = f"/proc/{cluster.pid}/root/proc"
    now = [0.0]
    local = LocalJobs(proc, clock=lambda: now[0])
    jobs = [cluster.submit("#!/bin/sh\nsleep 600\n", "-wn1") for _ in range(2)]
    deadline = time.monotonic() + 120
    while not set(jobs) <= steps(proc)[0]:
        assert time.monotonic() < deadline, steps(proc)
        time.sleep(0.05)
    running = frozenset(jobs)
    assert steps(proc)[1] and local.gone(running) == frozenset()
    cluster.run(["/usr/bin/scancel", str(jobs[0])])
    while jobs[0] in steps(proc)[0]:
        assert time.monotonic() < deadline, steps(proc)
        time.sleep(0.05)
    now[0] += SCAN_SECONDS
    assert local.gone(running) == frozenset()  # a job may be between two steps
    now[0] += GONE_AFTER_SECONDS
    assert local.gone(running) == {jobs[0]}
    cluster.run(["/usr/bin/scancel", str(jobs[1])])


def test_where_slurmd_is_not_seen_nothing_is_known() -> None:
    now = [0.0]
    local = LocalJobs("/proc/self/task", clock=lambda: now[0])
    for _ in range(9):
        assert local.gone(frozenset({7})) == frozenset()
        now[0] += SCAN_SECONDS
