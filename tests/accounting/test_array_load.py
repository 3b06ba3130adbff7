"""A large array that ends at once is collected in time, and slurmctld answers as before. The figures are printed."""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest

from fairlead.jobs.usage_record import encoded
from tests.accounting.test_collect import Site, site  # noqa: F401
from tests.jobs.job_reports import record_of
from tests.lab.accounting import query, wait_in_database
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]
TASKS = int(os.environ.get("FAIRLEAD_ARRAY_TASKS", "1000"))


def response_seconds(slurm: Cluster, until: threading.Event, most: int = 1 << 30) -> list[float]:
    """How long squeue takes, again and again."""
    taken = []
    while not until.is_set() and len(taken) < most:
        began = time.monotonic()
        slurm.run(["/usr/bin/squeue", "-h", "-t", "R"])
        taken.append(time.monotonic() - began)
        time.sleep(0.2)
    return taken


def test_a_large_array_is_collected_in_time(site: Site) -> None:  # noqa: F811
    slurm = site.slurm
    if slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    array = slurm.submit("#!/bin/sh\ntrue\n", f"--array=1-{TASKS}")
    wait_in_database(slurm, array, records=TASKS, seconds=1200)
    words = ["/usr/bin/sacct", "-n", "-P", "-X", "-o", "jobidraw,nodelist,start,end", "-j", str(array)]
    rows = slurm.run(words, env={"SLURM_TIME_FORMAT": "%s"}).stdout.split()
    assert len(rows) == TASKS
    query(slurm, f"UPDATE lab_job_table SET time_start=time_end-600 WHERE id_array_job={array}")
    for row in rows:
        job, node, _, end = row.split("|")
        folder = site.folder / node / "usage"
        folder.mkdir(parents=True, exist_ok=True)
        begin = float(end) - 600
        made = record_of(node, 600.0, 1, job=int(job), uid=None, begin_unix=begin, end_unix=float(end), written_unix=float(end))
        (folder / f"{job}-{int(begin)}.json").write_bytes(encoded(made))
    ended = threading.Event()
    before = response_seconds(slurm, ended, 30)
    during: list[float] = []
    thread = threading.Thread(target=lambda: during.extend(response_seconds(slurm, ended)))
    thread.start()
    began = time.monotonic()
    counted, said = site.collect()
    seconds = time.monotonic() - began
    ended.set()
    thread.join()
    assert counted["written"] >= TASKS, said
    medians = [statistics.median(values) for values in (before, during)]
    print(f"{TASKS} tasks, {seconds:.0f} s: {counted['written'] / seconds:.1f}/s; squeue {medians[0]:.3f} -> {medians[1]:.3f} s")
    print(slurm.run(["/usr/bin/sdiag"]).stdout[:1500])
