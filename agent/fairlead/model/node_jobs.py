"""Describes which GPUs and MIG instances the jobs on a node have."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class GpuOfJob(NamedTuple):
    """Says that a running job has a GPU, or one of its MIG devices. mig_uuid: of the MIG device, or "" for a whole GPU."""

    job: int
    pci: str
    mig_uuid: str = ""


class JobGpus(Struct, frozen=True, kw_only=True):
    """Says which GPUs or MIG instances Slurm has given a job.

    indices: the GRES indices in ascending order. names: what slurmd calls these devices, in the same order: UUIDs of MIG
    instances and GPUs, or GRES indices again. names is () if the prolog could not record them.
    """

    id: int
    indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


class NodeJobs(Struct, frozen=True, kw_only=True):
    """Lists all jobs that have the node while no other job can start there. release: Slurm's, such as (24, 11), or ()."""

    jobs: tuple[JobGpus, ...]
    release: tuple[int, ...]
