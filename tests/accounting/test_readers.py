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
from tests.lab.accounting import OPERATOR, backdate, query, set_admin_comment, wait_in_database
from tests.lab.cluster import Cluster
from tests.lab.roots import USER

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
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
    stats = {
        "nodes": {node: of_node},
        "total_time": HOUR,
        "gpus": 2,
        "fl": {"v": 1, "def": "busy/1", "kj": 1234.5, "zero_h": 1.0},
    }
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(stats, separators=(",", ":")).encode())).decode()


def report(slurm: Cluster, **changes: Any) -> int:
    """A job that, by the database, ran for one hour on n1 with two GPUs, and has a report.

    sacctmgr of 22.05 would write the report in lower case, so scontrol does so there while the job runs.
    """
    job = slurm.submit(
        "#!/bin/sh\nuntil [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.1; done\n", "-wn1", "--gres=gpu:2", "--time=2:00:00"
    )
    slurm.wait_job(job, "RUNNING")
    text = payload("n1", **changes)
    if slurm.suite == "bookworm":
        slurm.scontrol("update", f"jobid={job}", f"admincomment={text}")
    slurm.run(["/usr/bin/touch", f"/tmp/go-{job}"])
    slurm.wait_job(job, "COMPLETED")
    wait_in_database(slurm, job)
    backdate(slurm, job, HOUR, next(_hours) * HOUR)
    if slurm.suite != "bookworm":
        set_admin_comment(slurm, job, text, user=OPERATOR)
    return job


def read(reader: Reader, slurm: Cluster, job: int) -> str:
    try:
        return reader(slurm, job)
    except readers.ReaderMissing as missing:
        pytest.skip(str(missing))


def lines(text: str) -> list[str]:
    """Its lines with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_jobstats_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    text = lines(read(readers.jobstats, slurm, report(slurm)))
    for line in (
        "GPUs: 2",
        "Run Time: 01:00:00",
        "n1: 00:30:00/01:00:00 (efficiency=50.0%)",
        "n1: 4.0GB/16GB",
        "n1 (GPU 0): 87.5%",
        "n1 (GPU 1): 0% <-- GPU was not used",
        "n1 (GPU 0): 20.0GB/80GB (25.0%)",
    ):
        assert line in text
    assert any("This job did not use 1 of the 2 allocated GPUs" in line for line in text)


def test_jobstats_needs_the_cpu_keys(slurm: Cluster) -> None:
    """So that a report which lacks them fails here, before it stops jobstats at a site."""
    job = report(slurm, total_time=None, cpus=None, total_memory=None, used_memory=None)
    with pytest.raises(readers.ReaderFailed, match="TypeError"):
        read(readers.jobstats, slurm, job)


def test_reportseff_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    job = report(slurm)
    assert lines(read(readers.reportseff, slurm, job)) == [
        "JobID State Elapsed CPUEff MemEff GPUEff GPUMem",
        f"{job} COMPLETED 01:00:00 50.0% 25.0% 43.8% 12.5%",
        "n1 50.0% 25.0% 43.8% 12.5%",
        "0 87.5% 25.0%",
        "1 0.0% 0.0%",
    ]


def test_job_defense_shield_reads_a_report_with_a_key_of_ours(slurm: Cluster) -> None:
    """One GPU-hour of two at 0 %; 44 % of the GPUs' time used, 50 % of the CPU's."""
    job = report(slurm)
    text = lines(read(readers.job_defense_shield, slurm, job))
    assert f"1 {USER} 1 1 {job} 0" in text  # GPU-hours at 0 %, jobs, job, mails
    assert f"1 {USER} 2 100 44 1 0 1.0 1.0 0" in text  # GPU-hours, share of all, efficiency, jobs
    assert f"1 {USER} 1 100 50 1 0 1.0 1.0 0" in text  # CPU-hours and the same


def test_job_defense_shield_stops_at_a_text_that_is_no_report(slurm: Cluster) -> None:
    """One comment of free text ends its run for every job."""
    job = report(slurm)
    query(slurm, f"UPDATE lab_job_table SET admin_comment='fairlead: GPU 3 waited' WHERE id_job={job}")
    with pytest.raises(readers.ReaderFailed, match=r"binascii.Error|BadGzipFile"):
        read(readers.job_defense_shield, slurm, job)
