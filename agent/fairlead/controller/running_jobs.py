"""Lists the running jobs with GPUs, by one squeue. Of a job's comment it reads only fairlead's own words."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from fairlead.errors import SlurmError
from fairlead.jobs.idle_rule import RunningJob
from fairlead.jobs.job_run import BATCH, JobRun, gpus_of
from fairlead.model.nodelist import expand, is_name
from fairlead.slurm.scontrol import Scontrol, rows

FIELDS = (
    *("JobID", "UserName", "Account", "Partition", "QOS", "Reservation", "StartTime", "BatchFlag", "NodeList", "Comment"),
    *("tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task"),
)
#: What an owner may write into the comment of a job: scontrol update JobId=ID Comment=fairlead:keep
MARKS = ("keep", "serve", "work", "idle", "requeue")


def running_jobs(client: Scontrol) -> list[RunningJob]:
    """Return the running jobs that have GPUs. Raises SlurmUnavailable, SlurmError."""
    mark = f"@{secrets.token_hex(12)}@"
    text = client.queue("-r", "-t", "RUNNING", "-O", ",".join(f"{field}:{mark}" for field in FIELDS))
    return jobs_of_rows(rows(text, mark, len(FIELDS)))


def jobs_of_rows(found: Iterable[list[str]]) -> list[RunningJob]:
    """Return the jobs of squeue's rows, which have the columns of ``FIELDS``. Raises SlurmError for a row that is none."""
    jobs = []
    for job, user, account, partition, qos, reservation, start, batch, nodelist, comment, *tres in found:
        try:
            nodes = tuple(expand(nodelist))
            if not all(map(is_name, nodes)):
                raise ValueError
            if (gpus := gpus_of_tres(tres, len(nodes))) == 0:
                continue
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


def gpus_of_tres(tres: Sequence[str], nodes: int) -> int | None:
    """Return how many GPUs a job has, or None if it has some and Slurm does not say how many.

    tres: what was allocated, and what was asked for by job, node, socket and task. Slurm counts allocated GPUs only with slurmdbd
    and AccountingStorageTRES=gres/gpu. Without these, what was asked for by job and by node says the number too.
    """
    allocated, *asked = tres
    if counted := gpus_of(allocated):
        return counted
    by_job, by_node, by_socket, by_task = (_asked_gpus(text) for text in asked)
    return by_job or by_node * nodes or (None if by_socket or by_task else 0)


def _asked_gpus(text: str) -> int:
    """Return the number of GPUs in a text such as ``gres:gpu:2`` (22.05) or ``gres/gpu:h100:2``. Without a number, it is 1."""
    total = 0
    for each in text.split(","):
        words = each.strip().removeprefix("gres").lstrip(":/").replace("=", ":").split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdecimal() else 1
    return total


def _name(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def running_of(runs: Iterable[JobRun]) -> list[RunningJob]:
    """Return the running jobs among the runs of a folder."""
    return [
        RunningJob(
            job=run.job,
            user=run.user,
            account=run.account,
            partition=run.partition,
            qos=run.qos,
            begin_unix=run.begin_unix,
            nodes=run.nodes,
            gpus=run.gpus,
            batch=run.kind == BATCH if run.kind else None,
        )
        for run in runs
        if run.end_unix is None and run.state == "RUNNING" and run.gpus
    ]
