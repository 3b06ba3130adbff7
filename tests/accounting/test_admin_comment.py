"""Who may write a job's AdminComment, when, to which records, and what becomes of the text: real slurmdbd of each Slurm release.

A collector of job reports relies on each of these facts. Sources: sacctmgr(1), src/sacctmgr/common.c (strip_quotes) and
src/plugins/accounting_storage/mysql/as_mysql_job.c.
"""

from __future__ import annotations

import pytest

from tests.lab.accounting import OPERATOR, STRANGER, admin_comment, query, set_admin_comment, wait_in_database
from tests.lab.cluster import Cluster
from tests.lab.roots import USER, LabError

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
#: MySQL's type ``text``, in which the database keeps AdminComment, holds this many bytes.
COLUMN_BYTES = 65_535


def ended(slurm: Cluster, *options: str, records: int = 1) -> int:
    """A job that has ended, with ``records`` ends in the database."""
    job = slurm.submit("#!/bin/sh\ntrue\n", *options)
    slurm.wait_job(job, "COMPLETED")
    wait_in_database(slurm, job, records=records)
    return job


def running(slurm: Cluster) -> int:
    """A running job that the database knows."""
    job = slurm.submit("#!/bin/sh\nsleep 300\n")
    slurm.wait_job(job, "RUNNING")
    wait_in_database(slurm, job, ended=False)
    return job


def cancel(slurm: Cluster, job: int) -> None:
    slurm.run(["/usr/bin/scancel", str(job)])
    slurm.wait_job(job)  # CANCELLED; 22.05 says FAILED of one that was requeued
    wait_in_database(slurm, job)


def comments(slurm: Cluster, job: int) -> dict[str, str]:
    """JobID and AdminComment of each allocation of a job."""
    words = ["/usr/bin/sacct", "--allusers", "--noheader", "--parsable2", "--allocations", "--format=jobid,admincomment"]
    return dict(line.split("|") for line in slurm.run([*words, f"--jobs={job}"]).stdout.splitlines())


def test_an_operator_writes_after_the_end_and_again(slurm: Cluster) -> None:
    job = ended(slurm)
    assert admin_comment(slurm, job) == ""
    for text in ("first", "second"):
        set_admin_comment(slurm, job, text, user=OPERATOR)
        assert admin_comment(slurm, job) == text


@pytest.mark.parametrize("user", [USER, STRANGER])
def test_nobody_below_an_operator_writes(slurm: Cluster, user: str) -> None:
    """Not even the job's own user, who is the coordinator of the account too."""
    slurm.run(["/usr/bin/sacctmgr", "-iQ", "add", "coordinator", "account=research", f"name={USER}"], check=False)
    job = ended(slurm)
    with pytest.raises(LabError, match=r"(?i)permission denied|doesn't have privilege"):
        set_admin_comment(slurm, job, "mine", user=user)
    assert admin_comment(slurm, job) == ""


def test_slurmctld_refuses_once_the_job_has_ended(slurm: Cluster) -> None:
    """Root too."""
    job = ended(slurm)
    with pytest.raises(LabError, match="Job has already finished"):
        slurm.scontrol("update", f"jobid={job}", "admincomment=late")


def test_what_scontrol_sets_on_a_running_job_reaches_the_database_at_the_end(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.scontrol("update", f"jobid={job}", "admincomment=Site: by scontrol")
    assert admin_comment(slurm, job) == ""
    cancel(slurm, job)
    assert admin_comment(slurm, job) == "Site: by scontrol"


def test_what_sacctmgr_sets_on_a_running_job_outlives_the_end(slurm: Cluster) -> None:
    job = running(slurm)
    set_admin_comment(slurm, job, "early", user=OPERATOR)
    cancel(slurm, job)
    assert admin_comment(slurm, job) == "early"


def test_at_the_end_the_text_of_scontrol_replaces_that_of_sacctmgr(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.scontrol("update", f"jobid={job}", "admincomment=by scontrol")
    set_admin_comment(slurm, job, "early", user=OPERATOR)
    assert admin_comment(slurm, job) == "early"
    cancel(slurm, job)
    assert admin_comment(slurm, job) == "by scontrol"


def test_sacctmgr_of_22_05_writes_lower_case(slurm: Cluster) -> None:
    """So it cannot write a base64 payload, quoted or not. Later releases keep the text (NEWS of 23.02)."""
    job = ended(slurm)
    for quote in ("", '"'):
        set_admin_comment(slurm, job, f"{quote}JS1:H4sIAbC={quote}", user=OPERATOR)
        assert admin_comment(slurm, job) == ("js1:h4siabc=" if slurm.suite == "bookworm" else "JS1:H4sIAbC=")


def test_a_task_of_an_array_is_named_by_array_and_task(slurm: Cluster) -> None:
    """The array's bare id names each task of it, and one task has this number as its raw id (SLURM_JOB_ID)."""
    array = ended(slurm, "--array=1-3", records=3)
    set_admin_comment(slurm, f"{array}_2", "two", user=OPERATOR)
    assert comments(slurm, array) == {f"{array}_1": "", f"{array}_2": "two", f"{array}_3": ""}
    set_admin_comment(slurm, array, "all", user=OPERATOR)
    assert comments(slurm, array) == {f"{array}_{task}": "all" for task in (1, 2, 3)}


def test_a_component_of_a_het_job_is_named_by_leader_and_offset(slurm: Cluster) -> None:
    """The leader's bare id names each component."""
    job = ended(slurm, "-n1", ":", "-n1", records=2)
    set_admin_comment(slurm, job + 1, "by its raw id", user=OPERATOR)
    assert comments(slurm, job) == {f"{job}+0": "", f"{job}+1": "by its raw id"}
    set_admin_comment(slurm, f"{job}+0", "first", user=OPERATOR)
    assert comments(slurm, job) == {f"{job}+0": "first", f"{job}+1": "by its raw id"}
    set_admin_comment(slurm, job, "all", user=OPERATOR)
    assert comments(slurm, job) == {f"{job}+0": "all", f"{job}+1": "all"}


def test_of_a_requeued_job_the_newest_run_alone_is_written(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.scontrol("requeue", str(job))
    slurm.wait_job(job, "PENDING")
    slurm.scontrol("update", f"jobid={job}", "starttime=now")  # Slurm lets a requeued job wait for two minutes
    slurm.wait_job(job, "RUNNING")
    cancel(slurm, job)
    set_admin_comment(slurm, job, "second run", user=OPERATOR)
    rows = query(slurm, f"SELECT admin_comment FROM lab_job_table WHERE id_job={job} ORDER BY time_start, job_db_inx")
    assert rows == [["NULL"], ["second run"]]


@pytest.mark.parametrize("size", [60_000, COLUMN_BYTES, COLUMN_BYTES + 1, 100_000])
def test_a_text_is_cut_at_the_columns_size_without_a_word(slurm: Cluster, size: int) -> None:
    job = ended(slurm)
    text = ("0123456789" * 10_000)[:size]
    assert "Modified jobs" in set_admin_comment(slurm, job, text, user=OPERATOR)
    assert admin_comment(slurm, job) == text[:COLUMN_BYTES]


def test_each_write_is_kept_once_more_as_a_transaction(slurm: Cluster) -> None:
    """In txn_table, which slurmdbd purges by PurgeTXNAfter alone: a text that is written twice is kept three times."""
    job = ended(slurm)
    for _ in range(2):
        set_admin_comment(slurm, job, "0" * 5_000, user=OPERATOR)
    assert [int(rows[0]) > 5_000 for rows in query(slurm, "SELECT LENGTH(info) FROM txn_table ORDER BY id DESC LIMIT 2")] == [
        True
    ] * 2


def test_one_sacctmgr_writes_many_lines_of_its_input(slurm: Cluster) -> None:
    """sacctmgr goes on after a line that it refuses, and ends with 1."""
    array = ended(slurm, "--array=1-3", records=3)
    lines = [f"modify job where jobid={name} set admincomment={name}\n" for name in (f"{array}_1", "999999", f"{array}_3")]
    assert slurm.run(["/usr/bin/sacctmgr", "-i"], user=OPERATOR, stdin="".join(lines), check=False).returncode == 1
    assert comments(slurm, array) == {f"{array}_1": f"{array}_1", f"{array}_2": "", f"{array}_3": f"{array}_3"}


def test_a_job_that_the_database_lacks_is_an_error(slurm: Cluster) -> None:
    with pytest.raises(LabError, match=r"ended with 1"):
        set_admin_comment(slurm, 999_999, "nobody", user=OPERATOR)


def test_without_slurmdbd_sacctmgr_says_so_and_what_ended_meanwhile_arrives_later(slurm: Cluster) -> None:
    job = running(slurm)
    slurm.stop_slurmdbd()
    try:
        with pytest.raises(LabError, match="Connection refused"):
            set_admin_comment(slurm, job, "lost", user=OPERATOR)
        slurm.scontrol("update", f"jobid={job}", "admincomment=kept by slurmctld")
        slurm.run(["/usr/bin/scancel", str(job)])
        slurm.wait_job(job, "CANCELLED")
    finally:
        slurm.start_slurmdbd()
    wait_in_database(slurm, job)
    assert admin_comment(slurm, job) == "kept by slurmctld"
