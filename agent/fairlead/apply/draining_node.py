"""Finds out which GPUs and MIG instances the running jobs use, on a node that is drained in Slurm while its jobs still run."""

from __future__ import annotations

from fairlead.config import Document
from fairlead.errors import NodeBusy
from fairlead.host import job_records
from fairlead.model.node_jobs import JobGpus, NodeJobs
from fairlead.slurm.scontrol import Scontrol


def on_draining_node(document: Document) -> NodeJobs:
    """Return the jobs on this node. Raise NodeBusy if jobs can still start here, and SlurmError if slurmctld does not answer."""
    options = document.slurm
    slurm = Scontrol(conf=options.conf, bin_dir=options.bin_dir, deadline_seconds=options.deadline_seconds)
    name = options.node_name or document.node
    state = slurm.node(name)
    if not state.drained:
        hint = f"drain it first: scontrol update NodeName={name} State=DRAIN Reason=..."
        raise NodeBusy(f"--draining: jobs can start on {name}, which is not drained in Slurm; nothing was changed", hint=hint)
    ids = [int(job.id) for job in slurm.jobs_on(name)]
    return node_jobs(ids, job_records.scan(f"{document.agent.run_dir}/jobs"), slurm.release())


def node_jobs(ids: list[int], records: job_records.Jobs, release: str) -> NodeJobs:
    """Return the jobs with these ids, with the GPUs of their job records. ``release``: Slurm's as text, or "".

    A job without a record may have any GPU, so its ``indices`` and ``names`` cannot be told: both are (-1,) and (). The record of
    a job without GPUs says so.
    """
    known = {job.id: job for job in records.known}
    found = []
    for number in sorted(ids):
        job = known.get(number)
        indices = (-1,) if job is None or not job.start else tuple(sorted(job.gpus))
        found.append(JobGpus(id=number, indices=indices, names=job.names if job else ()))
    return NodeJobs(jobs=tuple(found), release=tuple(int(part) for part in release.split(".") if part.isdigit()))
