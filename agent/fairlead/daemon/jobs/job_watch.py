"""Reads the job records of prolog and epilog under RUN_DIR/jobs: which jobs run on this node, and what has changed."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fairlead.daemon.jobs.blame import NO_JOBS, Blame, Part, has_mig, published
from fairlead.daemon.jobs.local_jobs import LocalJobs
from fairlead.host import job_records, log
from fairlead.host.job_records import Jobs
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Node
from fairlead.model.node_jobs import GpuOfJob


class JobNews(Struct, frozen=True, kw_only=True):
    """Holds what is new since the last reading of the job records.

    refused: the jobs that fairlead's prolog has refused since that reading. ended: True if a record shows that the epilog of a
    job has run. changed: True if the set of running jobs has changed since that reading.
    """

    refused: frozenset[int] = frozenset()
    ended: bool = False
    changed: bool = False


class JobWatch:
    """Reads the job records. ``jobs``: their content at the last reading. ``live``: True for this machine itself, where a
    running job must also have a slurmstepd. False for a machine tree, which has no processes."""

    def __init__(self, *, live: bool) -> None:
        self.jobs: Jobs = NO_JOBS
        self._blame = Blame()
        self._local = LocalJobs() if live else None
        self._gone: frozenset[int] = frozenset()
        self._names: dict[tuple[int, float | None], tuple[str, ...]] = {}  # by job and start, where gres.conf lists MIG devices
        self._reported: frozenset[int] = frozenset()  # refused jobs that the courier knew before the last reading

    @property
    def running(self) -> frozenset[int]:
        """Return the jobs that run here."""
        return self.jobs.running

    @property
    def only_job(self) -> int | None:
        """Return the job that runs here if it is the only one, else None."""
        return next(iter(self.running)) if len(self.running) == 1 else None

    def read(self, run_dir: str) -> JobNews:
        """Read the records and return what is new."""
        found = self._with_names(self._without_gone(job_records.scan(_folder(run_dir))), run_dir)
        before, self.jobs = self.jobs, found
        self._blame.heed(found)
        self._reported = found.refused & before.refused
        return JobNews(refused=found.refused - before.refused, ended=bool(found.ended), changed=found.running != before.running)

    def forget(self, run_dir: str, *, refusal_pending: bool) -> None:
        """Remove the records of ended jobs. Also remove the records of refused jobs that were reported before, unless
        ``refusal_pending``: slurmctld may then still drain the node for a refused job."""
        job_records.forget(_folder(run_dir), self.jobs.ended | (frozenset() if refusal_pending else self._reported))

    def attribute(self, records: Iterable[KernelRecord], run_dir: str, node: Node | None) -> list[KernelRecord]:
        """Return the records with the jobs and users on their GPU."""
        return self._blame.attribute(records, run_dir, node)

    def gpus(self, run_dir: str, node: Node | None) -> tuple[GpuOfJob, ...]:
        """Return the GPUs and MIG devices of each running job, by the job records and the topology file.

        A job whose record has the UUIDs of its GPUs or MIG devices is found by them. Otherwise nothing is
        returned with MIG, because GRES indices then name instances.
        """
        with_gpus = [job for job in self.jobs.known if job.id in self.running and job.gpus]
        if not with_gpus:
            return ()
        where = published(run_dir)
        mig = where.mig or (node is not None and has_mig(node))
        addresses = {} if mig else {index: pci for pci, index in where.order.items()}
        found: list[GpuOfJob] = []
        for job in with_gpus:
            if where.is_known(job):
                found += sorted({_gpu_of(job.id, name, where.parts[name]) for name in job.names})
            else:
                found += [GpuOfJob(job.id, addresses[i]) for i in sorted(job.gpus) if i in addresses]
        return tuple(found)

    def _with_names(self, found: Jobs, run_dir: str) -> Jobs:
        """Return the jobs, each with the names of its MIG devices and GPUs if slurmd gave it only indices, and gres.conf lists
        what each index means. A job keeps its names. A job that is older than slurmd's list gets none."""
        unnamed = [job for job in found.known if job.gpus and not job.names and job.start is not None]
        self._names = {key: names for key, names in self._names.items() if key in {(job.id, job.start) for job in unnamed}}
        listed = published(run_dir).listed if unnamed else None
        if listed is None or not (listed.uuids or self._names):
            return found
        for job in unnamed:
            names = tuple(listed.uuids.get(index, "") for index in sorted(job.gpus))
            if (job.start or 0) >= listed.since and all(names):
                self._names.setdefault((job.id, job.start), names)
        return found._replace(
            known=tuple(job._replace(names=self._names.get((job.id, job.start), job.names)) for job in found.known)
        )

    def _without_gone(self, found: Jobs) -> Jobs:
        """Return the jobs without those that have no slurmstepd here. The agent does not wait for such a job, and never blames
        it."""
        gone = self._local.gone(found.running) if self._local is not None else frozenset()
        if not gone:
            return found
        if gone - self._gone:
            log.line(log.NOTICE, "job records without a slurmstepd are ignored", jobs=_list(gone))
        self._gone = gone
        return found._replace(running=found.running - gone)


def _gpu_of(job: int, uuid: str, part: Part) -> GpuOfJob:
    return GpuOfJob(job, part.pci, "" if part.gi is None else uuid)


def _folder(run_dir: str) -> str:
    return f"{run_dir}/jobs"


def _list(jobs: Iterable[int]) -> str:
    return ",".join(map(str, sorted(jobs)))
