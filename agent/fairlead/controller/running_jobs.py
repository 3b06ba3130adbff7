"""Lists the running jobs with GPUs, by one squeue. Of a job's comment it reads only fairlead's own words."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from fairlead.errors import SlurmError
from fairlead.jobs.accounting_rows import BATCH, AccountedJob, gpus_of
from fairlead.jobs.idle_rule import RunningJob
from fairlead.model.nodelist import expand, is_name
from fairlead.slurm.scontrol import Scontrol, rows

FIELDS = (
    "JobID",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "Reservation",
    "StartTime",
    "BatchFlag",
    "tres-alloc",
    "NodeList",
    "Comment",
)
#: What an owner may write into the comment of a job: scontrol update JobId=ID Comment=fairlead:keep
MARKS = ("keep", "serve", "work", "idle", "requeue")


def running_jobs(client: Scontrol) -> list[RunningJob]:
    """Return the running jobs that have GPUs. Raises SlurmUnavailable, SlurmError."""
    mark = f"@{secrets.token_hex(12)}@"
    text = client.ask(["squeue", "-h", "-a", "-r", "-t", "RUNNING", "-O", ",".join(f"{field}:{mark}" for field in FIELDS)])
    return jobs_of_rows(rows(text, mark, len(FIELDS)))


def jobs_of_rows(found: Iterable[list[str]]) -> list[RunningJob]:
    """Return the jobs of squeue's rows, which have the columns of ``FIELDS``. Raises SlurmError for a row that is none."""
    jobs = []
    for job, user, account, partition, qos, reservation, start, batch, tres, nodelist, comment in found:
        gpus = gpus_of(tres)
        if not gpus:
            continue
        try:
            nodes = tuple(expand(nodelist))
            if not all(map(is_name, nodes)):
                raise ValueError
            words = set(comment[:2000].split(",")) if comment != "(null)" else set()
            jobs.append(
                RunningJob(
                    job=int(job),
                    user=user,
                    account=_name(account),
                    partition=_name(partition),
                    qos=_name(qos),
                    reservation=_name(reservation),
                    begin_unix=float(int(start)),
                    batch={"1": True, "0": False}.get(batch.strip()),
                    gpus=gpus,
                    nodes=nodes,
                    **{word: f"fairlead:{word}" in {each.strip() for each in words} for word in MARKS},
                )
            )
        except ValueError:
            raise SlurmError("squeue: its output is not what was asked for", hint="Slurm 22.05 or newer is needed") from None
    return jobs


def _name(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def running_of(jobs: Iterable[AccountedJob]) -> list[RunningJob]:
    """Return the running jobs of a folder's jobs.psv."""
    return [
        RunningJob(
            job=job.job,
            user=job.user,
            account=job.account,
            partition=job.partition,
            qos=job.qos,
            begin_unix=job.begin_unix,
            nodes=job.nodes,
            gpus=job.gpus,
            batch=job.kind == BATCH if job.kind else None,
        )
        for job in jobs
        if job.end_unix is None and job.state == "RUNNING" and job.gpus
    ]
