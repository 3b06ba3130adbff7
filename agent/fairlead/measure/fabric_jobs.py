"""Submits the job of a run over the fabric, and starts steps in it. The job only keeps the nodes: its own script sleeps.

Each measurement is a step that srun starts on this host, so that the output comes over srun's connection, and no folder is shared
with the nodes. The job goes on if one of its nodes fails (--no-kill).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairlead.errors import NoSuchJob, SlurmError
from fairlead.measure.slurm_jobs import COLUMNS, AcceptanceJob, AcceptanceJobs, parse
from fairlead.model.nodelist import fold
from fairlead.slurm.scontrol import plain


class FabricJobs(AcceptanceJobs):
    """Calls sbatch, squeue, srun and scancel, as the calling user."""

    def hold_nodes(self, nodes: Sequence[str], *, name: str, minutes: int, more: Sequence[str]) -> int:
        """Submit the job that keeps the nodes, and return its id. Raises SlurmError, SlurmUnavailable."""
        said = self.ask(hold_command(nodes, name=name, minutes=minutes, more=more)).strip().splitlines()
        number = said[-1].split(";")[0] if said else ""
        if not number.isdecimal():
            raise SlurmError(f"sbatch: its answer is no job number: {' '.join(said)[:100]!r}")
        return int(number)

    def holding(self, name: str) -> AcceptanceJob | None:
        """Return the newest job of this name that runs or waits, or None."""
        left = [job for job in self.seen(name) if not job.over]
        return max(left, key=lambda job: job.id, default=None)

    def state(self, job: int) -> AcceptanceJob | None:
        """Return the job as slurmctld has it, or None if slurmctld has forgotten it."""
        try:
            found = parse(self.queue("-t", "all", "-j", str(job), "-o", COLUMNS))
        except NoSuchJob:
            return None
        return found[0] if found else None

    def suspensions(self, job: int) -> str | None:
        """Return SuspendTime and SecsPreSuspend of the job as one text. The text changes when the job is suspended and when it
        goes on. Return None if slurmctld has forgotten the job."""
        try:
            said = self.ask(["scontrol", "-o", "show", "job", str(job)])
        except NoSuchJob:
            return None
        found = re.search(r"\bSuspendTime=\S+ SecsPreSuspend=\d+", said)
        return found[0] if found else None

    def steps(self, job: int, name: str) -> list[str]:
        """Return the steps of the run in the job that have not ended. Steps are found by the name of the run."""
        try:
            said = self.queue("-s", "-j", str(job), "-o", "%i|%j")
        except NoSuchJob:
            return []
        return [line.partition("|")[0] for line in said.splitlines() if line.partition("|")[2] == name]

    def end_steps(self, steps: Sequence[str]) -> None:
        """Begin to end these steps, and do not wait for it."""
        if steps:
            self.ask(["scancel", *steps])

    def step_command(self, job: int, nodes: Sequence[str], *, name: str, seconds: int, more: Sequence[str]) -> list[str]:
        """Return the command that starts one step with one task on each of these nodes."""
        minutes = -(-seconds // 60) + 1
        mpi = [] if any(option.startswith("--mpi") for option in more) else ["--mpi=pmix"]
        return [
            *(f"{self.bin_dir}/srun", f"--jobid={job}", f"--job-name={name}", f"--nodelist={','.join(map(plain, nodes))}"),
            *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--overlap", "--mem=0"),
            *("--cpu-bind=none", "--input=none", "--kill-on-bad-exit=1", f"--time={minutes}", *mpi, *more),
        ]


def hold_command(nodes: Sequence[str], *, name: str, minutes: int, more: Sequence[str]) -> list[str]:
    """Return the command that submits the job. It has the nodes to itself, with all their memory, and is not requeued."""
    return [
        *("sbatch", "--parsable", f"--job-name={name}", f"--nodelist={fold(nodes)}", f"--nodes={len(nodes)}"),
        *("--ntasks-per-node=1", "--exclusive", "--mem=0", "--no-requeue", "--no-kill", f"--time={minutes}", "--chdir=/"),
        *("--output=/dev/null", "--error=/dev/null", *more, f"--wrap=exec sleep {60 * minutes}"),
    ]
