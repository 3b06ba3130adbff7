"""Finds out which GPUs and MIG instances the running jobs use, on a node that is drained in Slurm while its jobs still run."""

from __future__ import annotations

from collections.abc import Mapping

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
    allocated = {number: slurm.gres_indices(number, name) for number in ids}
    return node_jobs(allocated, job_records.scan(f"{document.agent.run_dir}/jobs"), slurm.release())


def node_jobs(allocated: Mapping[int, frozenset[int] | None], records: job_records.Jobs, release: str) -> NodeJobs:
    """Return these jobs, with the GPUs of their job records. ``release``: Slurm's as text, or "".

    ``allocated``: the GRES indices that slurmctld has given each job, or None if it does not say them. A job without a record may
    have any GPU, so its ``indices`` and ``names`` cannot be known: they are (-1,) and (). So it is with a job to which slurmctld
    has given other GPUs than its record has: if a job has GPUs of several types, slurmd shows the prolog only those of one type.
    The record of a job without GPUs says so.
    """
    known = {job.id: job for job in records.known}
    found = []
    for number, indices in sorted(allocated.items()):
        job = known.get(number)
        if job is None or not job.start or job.gpus != indices:
            found.append(JobGpus(id=number, indices=(-1,)))
        else:
            found.append(JobGpus(id=number, indices=tuple(sorted(job.gpus)), names=job.names))
    return NodeJobs(jobs=tuple(found), release=tuple(int(part) for part in release.split(".") if part.isdigit()))
