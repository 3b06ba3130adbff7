"""What becomes of a job that our prolog refuses: every kind of job, with and without nohold_on_prolog_fail, on every release.

docs/how-to/refused-jobs.md says the same to users and admins. The prolog is the real one; each node's verdict is ``drain``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess

import pytest

from tests.hooks.stage import HOOKS
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES, USER
from tests.slurm.conftest import running

pytestmark = pytest.mark.slurm

JOB = "#!/bin/sh\nexit 0\n"
GOOD = ("n9", "n10", "n11")
REFUSING = tuple(f"n{i}" for i in range(1, 9))
LATER = "BeginTime"
#: A job with priority 0 is held. The scheduler writes JobHeldAdmin over the reason when it meets the job before the requeue has
#: written its own: seen on 22.05 (a job on two nodes) and on 24.11 (a part of a heterogeneous job), on a busy machine.
WAIT_REASONS = {"launch_failed_requeued_held", "JobHeldAdmin"}


@pytest.fixture(params=[False, True], ids=["hold", "nohold"])
def nohold(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=list(SUITES))
def refusing(request: pytest.FixtureRequest, nohold: bool) -> Iterator[Cluster]:
    """n1 to n8 refuse every job, n9 to n11 take them; a node has two CPUs."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    scheduler = "batch_sched_delay=0,sched_min_interval=1000,bf_interval=1,bf_resolution=1"  # backfill starts het jobs
    extra = f"SchedulerParameters={scheduler}{',nohold_on_prolog_fail' if nohold else ''}"
    with running(Cluster(request.param, nodes=11, cores=1, prolog=HOOKS / "prolog", extra_conf=extra)) as up:
        for name in up.node_names:
            dirs = up.node_dirs(name)
            (dirs.run / "jobs").mkdir()
            (dirs.etc / "hooks").write_text("1\tallow\tfull\t-\t-\n")
            if name in REFUSING:
                (dirs.run / "verdict").write_text("1\tdrain\t99999999999\t7\tGPU 0000:1b:00.0 fell off the bus\n")
        yield up


def jobs(cluster: Cluster, job: int) -> list[dict[str, str]]:
    """scontrol's fields of a job: one row, or one for each task of an array and each part of a het job."""
    rows = cluster.scontrol("-o", "show", "job", str(job), check=False).splitlines()
    return [dict(re.findall(r"(\w+)=(\S*)", row)) for row in rows]


def until(met: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 180
    while not met():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def interactive(cluster: Cluster, *command: str) -> CompletedProcess[str]:
    return cluster.run(command, user=USER, check=False, timeout=180)


def test_every_kind_of_job(refusing: Cluster, nohold: bool) -> None:
    up = refusing
    others = ",".join(n for n in (*REFUSING, *GOOD) if n not in ("n4", "n9"))
    with ThreadPoolExecutor(2) as pool:
        srun = pool.submit(interactive, up, "/usr/bin/srun", "-wn7", "--chdir=/tmp", "/bin/echo", "ran")
        salloc = pool.submit(interactive, up, "/usr/bin/salloc", "-wn8", "--chdir=/tmp", "/usr/bin/srun", "/bin/echo", "ran")
        for run in (srun.result(), salloc.result()):
            print(run.returncode, run.stderr)
            # 1, or an error number of Slurm's & 255: 168 (4008, ESLURMD_CREDENTIAL_REVOKED) where srun's launch met the revoked
            # job before srun heard of its end. Which of the two it meets first decides the words too.
            assert run.returncode and "ran" not in run.stdout
            assert re.search(r"[Pp]rolog|revoked|expired|[Cc]ancel|complet|[Tt]erminated", run.stderr), run.stderr
    again = {LATER} if nohold else WAIT_REASONS

    def back(job: int) -> bool:
        return [(r["JobState"], r["Restarts"], r["Reason"] in again) for r in jobs(up, job)] == [("PENDING", "1", True)]

    def parts_back(job: int) -> bool:
        return [(r["JobState"], r["Restarts"], r["Reason"] in again) for r in jobs(up, job)] == [("PENDING", "1", True)] * 2

    def half_back(job: int) -> bool:
        """Only the array task that was refused comes back; the other has run."""
        rows = sorted((r["JobState"], r["Reason"]) for r in jobs(up, job))
        return [state for state, _ in rows] == ["COMPLETED", "PENDING"] and rows[1][1] in again

    # A job that is tried again is so after two minutes: each is looked at soon after it was refused.
    batch = up.submit(JOB, "-wn1")
    until(lambda: back(batch), lambda: jobs(up, batch))
    # What the documentation tells people to do: the job runs elsewhere.
    up.scontrol("update", f"jobid={batch}", "reqnodelist=n9")
    if not nohold:
        up.scontrol("release", str(batch))
    up.scontrol("update", f"jobid={batch}", "starttime=now")
    until(lambda: jobs(up, batch)[0]["JobState"] == "COMPLETED", lambda: jobs(up, batch))
    assert jobs(up, batch)[0]["NodeList"] == "n9"

    held = up.submit(JOB, "-wn3", "--hold")
    lost = up.submit(JOB, "-wn2", "--no-requeue")
    array = up.submit(JOB, "--array=0-1", "-N1", "-n2", f"--exclude={others}")
    both = up.submit(JOB, "-N2", "-wn6,n11")
    het = up.submit(JOB, "-wn5", "-n1", ":", "-wn10", "-n1")
    assert jobs(up, held)[0]["JobState"] == "PENDING"  # a held job has not met the prolog
    up.scontrol("release", str(held))
    awaited = {
        held: lambda: back(held),
        lost: lambda: jobs(up, lost)[0]["JobState"] == "CANCELLED",
        array: lambda: half_back(array),
        both: lambda: back(both),
        het: lambda: parts_back(het),
    }

    def all_seen() -> bool:
        for job in [job for job, seen in awaited.items() if seen()]:
            del awaited[job]
        return not awaited

    until(all_seen, lambda: [(r["JobId"], r["JobState"], r["Reason"], r["Restarts"]) for job in awaited for r in jobs(up, job)])
    until(lambda: all("DRAIN" in up.node_state(n).states for n in REFUSING), lambda: [up.node_state(n) for n in REFUSING])
    assert {up.node_state(n).reason for n in REFUSING} == {"Prolog error"}
    assert not any("DRAIN" in up.node_state(n).states for n in GOOD)
