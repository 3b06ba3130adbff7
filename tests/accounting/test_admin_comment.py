"""Who may write a job's AdminComment, when, and what becomes of it: measured on real slurmdbd of every Slurm release.

A collector of job reports relies on each of these. docs and sources: sacctmgr(1), src/plugins/accounting_storage/mysql/as_mysql_job.c.
"""

from __future__ import annotations

import pytest
from tests.lab.accounting import OPERATOR, STRANGER, admin_comment, query, set_admin_comment, wait_in_database
from tests.lab.cluster import Cluster
from tests.lab.roots import USER, LabError

pytestmark = [pytest.mark.root, pytest.mark.slurm]
SHORT = "#!/bin/sh\ntrue\n"
#: MySQL's type ``text``, in which the database keeps AdminComment, holds this many bytes.
COLUMN_BYTES = 65_535


def ended(slurm: Cluster, *options: str) -> int:
    """A job that has ended, with its end in the database."""
    job = slurm.submit(SHORT, *options)
    slurm.wait_job(job, "COMPLETED")
    wait_in_database(slurm, job)
    return job


def running(slurm: Cluster) -> int:
    job = slurm.submit("#!/bin/sh\nsleep 300\n")
    slurm.wait_job(job, "RUNNING")
    return job


def end(slurm: Cluster, job: int) -> None:
    slurm.run(["/usr/bin/scancel", str(job)])
    slurm.wait_job(job, "CANCELLED")
    wait_in_database(slurm, job)


def test_an_operator_writes_after_the_end_and_again(slurm: Cluster) -> None:
    job = ended(slurm)
    assert admin_comment(slurm, job) == ""
    set_admin_comment(slurm, job, "JS1:first", user=OPERATOR)
    assert admin_comment(slurm, job) == "JS1:first"
    set_admin_comment(slurm, job, "JS1:second", user=OPERATOR)
    assert admin_comment(slurm, job) == "JS1:second"


@pytest.mark.parametrize("user", [USER, STRANGER])
def test_nobody_below_an_operator_writes(slurm: Cluster, user: str) -> None:
    """Not even the job's own user, and not the coordinator of the job's account."""
    slurm.run(["/bin/sh", "-c", f"sacctmgr -iQ add coordinator account=research name={USER}"], check=False)
    job = ended(slurm)
    with pytest.raises(LabError, match="Access/permission denied"):
        set_admin_comment(slurm, job, "JS1:mine", user=user)
    assert admin_comment(slurm, job) == ""


def test_slurmctld_refuses_once_the_job_has_ended(slurm: Cluster) -> None:
    job = ended(slurm)
    with pytest.raises(LabError, match="Job has already finished"):
        slurm.scontrol("update", f"jobid={job}", "admincomment=JS1:late")


def test_what_scontrol_sets_on_a_running_job_reaches_the_database_at_the_end(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.scontrol("update", f"jobid={job}", "admincomment=site: by scontrol")
    assert admin_comment(slurm, job) == ""
    end(slurm, job)
    assert admin_comment(slurm, job) == "site: by scontrol"


def test_what_sacctmgr_sets_on_a_running_job_outlives_the_end(slurm: Cluster) -> None:
    job = running(slurm)
    wait_started(slurm, job)
    set_admin_comment(slurm, job, "JS1:early", user=OPERATOR)
    end(slurm, job)
    assert admin_comment(slurm, job) == "JS1:early"


def test_at_the_end_scontrols_text_replaces_that_of_sacctmgr(slurm: Cluster) -> None:
    job = running(slurm)
    wait_started(slurm, job)
    slurm.scontrol("update", f"jobid={job}", "admincomment=site: by scontrol")
    set_admin_comment(slurm, job, "JS1:early", user=OPERATOR)
    assert admin_comment(slurm, job) == "JS1:early"
    end(slurm, job)
    assert admin_comment(slurm, job) == "site: by scontrol"


def wait_started(slurm: Cluster, job: int) -> None:
    """Wait until the database has the job at all."""
    import time

    deadline = time.monotonic() + 60
    while not slurm.run(["/usr/bin/sacct", "-a", "-n", "-X", "-o", "jobid", "-j", str(job)]).stdout.strip():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_task_of_an_array_is_named_by_array_and_task(slurm: Cluster) -> None:
    """The array's bare id names all its tasks."""
    array = ended(slurm, "--array=1-3")
    set_admin_comment(slurm, f"{array}_2", "JS1:two", user=OPERATOR)
    assert [admin_comment(slurm, f"{array}_{task}") for task in (1, 2, 3)] == ["", "JS1:two", ""]
    set_admin_comment(slurm, array, "JS1:all", user=OPERATOR)
    assert [admin_comment(slurm, f"{array}_{task}") for task in (1, 2, 3)] == ["JS1:all"] * 3


def test_a_component_of_a_het_job_is_named_by_its_raw_id(slurm: Cluster) -> None:
    job = ended(slurm, "-n1", ":", "-n1")
    rows = slurm.run(["/usr/bin/sacct", "-a", "-n", "-P", "-X", "-o", "jobid,jobidraw", "-j", str(job)]).stdout.split()
    assert rows == [f"{job}+0|{job}", f"{job}+1|{job + 1}"]
    set_admin_comment(slurm, job + 1, "JS1:second", user=OPERATOR)
    print(rows, slurm.run(["/usr/bin/sacct", "-a", "-n", "-P", "-X", "-o", "jobid,admincomment", "-j", str(job)]).stdout)
    assert 0


@pytest.mark.parametrize("size", [60_000, COLUMN_BYTES, COLUMN_BYTES + 1, 100_000])
def test_the_database_cuts_a_text_at_its_columns_size(slurm: Cluster, size: int) -> None:
    job = ended(slurm)
    text = ("JS1:" + "0123456789" * 13_000)[:size]
    set_admin_comment(slurm, job, text, user=OPERATOR)
    kept = admin_comment(slurm, job)
    print(len(kept), query(slurm, "select action, length(info) from txn_table order by id desc limit 1"))
    assert kept == text[:COLUMN_BYTES]


def test_requeued(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.scontrol("requeue", str(job))
    print(query(slurm, f"select id_job, job_db_inx, state, time_start, time_end, admin_comment from lab_job_table where id_job={job}"))
    assert 0


def test_slurmdbd_down(slurm: Cluster) -> None:
    job = ended(slurm)
    slurm.stop_slurmdbd()
    try:
        done = slurm.run(["/usr/bin/sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", "admincomment=x"], check=False)
        print(done)
    finally:
        slurm.start_slurmdbd()
    assert 0
