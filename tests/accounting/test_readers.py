"""jobstats, reportseff and job_defense_shield, unmodified, read a job report from a real Slurm database.

The payload is written by hand here: it is what these programs are promised, whoever writes it.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.accounting import readers
from tests.lab.accounting import OPERATOR, backdate, set_admin_comment, wait_in_database
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.root, pytest.mark.slurm]
GIB = 1 << 30
HOUR = 3600
#: Hours before now in which no other test has a job.
_hours = itertools.count(2, 2)
Reader = Callable[[Cluster, int], str]


def payload(node: str, **changes: Any) -> str:
    """A JS1 payload for one hour on one node with two GPUs, GPU 1 never used; ``fl`` is a key that no reader knows."""
    of_node = {
        "total_memory": 16 * GIB,
        "used_memory": 4 * GIB,
        "total_time": 1800.0,
        "cpus": 1,
        "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
        "gpu_used_memory": {"0": 20 * GIB, "1": 0},
        "gpu_utilization": {"0": 87.5, "1": 0.0},
    }
    of_node = {key: value for key, value in {**of_node, **changes}.items() if value is not None}
    stats = {"nodes": {node: of_node}, "total_time": HOUR, "gpus": 2, "fl": {"v": 1, "def": "busy/1", "kj": 1234.5, "zero_h": 1.0}}
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(stats, separators=(",", ":")).encode())).decode()


def report(slurm: Cluster, **changes: Any) -> int:
    """A job that, by the database, ran for one hour on n1 with two GPUs, and has a report."""
    job = slurm.submit("#!/bin/sh\ntrue\n", "-wn1", "--gres=gpu:2")
    slurm.wait_job(job, "COMPLETED")
    wait_in_database(slurm, job)
    backdate(slurm, job, HOUR, next(_hours) * HOUR)
    set_admin_comment(slurm, job, payload("n1", **changes), user=OPERATOR)
    return job


def read(reader: Reader, slurm: Cluster, job: int) -> str:
    try:
        return reader(slurm, job)
    except readers.ReaderMissing as missing:
        pytest.skip(str(missing))


def test_jobstats_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    text = read(readers.jobstats, slurm, report(slurm))
    print(text)
    assert 0


def test_jobstats_needs_the_cpu_keys(slurm: Cluster) -> None:
    job = report(slurm, total_time=None, cpus=None, total_memory=None, used_memory=None)
    with pytest.raises(readers.ReaderFailed, match="TypeError"):
        read(readers.jobstats, slurm, job)


def test_reportseff_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    text = read(readers.reportseff, slurm, report(slurm))
    print(text)
    assert 0


def test_job_defense_shield_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    text = read(readers.job_defense_shield, slurm, report(slurm))
    print(text)
    assert 0
