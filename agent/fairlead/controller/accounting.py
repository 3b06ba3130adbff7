"""Asks Slurm which jobs have ended, and reads and writes a job's AdminComment.

slurmdbd is asked through sacct and sacctmgr. Where there is no slurmdbd, slurmctld is asked through squeue: it knows an ended job
for MinJobAge (300 s by default). AdminComment of an ended job can only be written in slurmdbd, by an operator (sacctmgr(1)).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from fairlead.errors import NoSuchJob, SlurmError
from fairlead.jobs.job_run import SACCT_COLUMNS, SQUEUE_COLUMNS, JobRun, kind_of, sacct_runs, squeue_runs, steps_of
from fairlead.slurm.scontrol import Scontrol, rows

#: The states of ended jobs in Slurm's short words (squeue(1), JOB STATE CODES). sacct also knows RQ, for a run that was requeued.
_ENDED = "BF,CA,CD,DL,F,NF,OOM,PR,TO"
_HOLDING = "R,CG,S,SO,ST,SI"  # the states in which a job has its nodes
_STEPS = ("batch", "interactive", "0")  # a job of sbatch has the first one, and one of salloc or srun the others
_JOBS_AT_ONCE = 500
WRITES_PER_SECOND = 5
#: Releases whose sacctmgr writes AdminComment in lower case (strip_quotes with make_lower, src/sacctmgr/job_functions.c).
LOWER_CASE = frozenset(("20.11", "21.08", "22.05"))


class WritesNothing(SlurmError):
    """Is raised when no AdminComment can be written: the account is no operator, or this Slurm would spoil the text."""


class Accounting:
    """Speaks to slurmdbd and slurmctld of one cluster. Each call may raise SlurmUnavailable or SlurmError."""

    def __init__(
        self,
        client: Scontrol,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._clock, self._sleep = clock, sleep
        self._next_write = float("-inf")
        self._release: str | None = None

    def ended(self, since_unix: int, until_unix: int, mistakes: list[str]) -> list[JobRun]:
        """Return the runs that ended in a time, as slurmdbd knows them."""
        words = ["sacct", "-a", "-D", "-X", "-P", "-S", f"uts{since_unix}", "-E", f"uts{until_unix}", "-s", f"{_ENDED},RQ"]
        return sacct_runs(self._client.ask([*words, "-o", ",".join(SACCT_COLUMNS)]).splitlines(), mistakes)

    def kinds(self, jobs: Sequence[int]) -> dict[int, str]:
        """Return the kind of each job by its steps ("batch", "interactive", ""). Only three steps of each job are asked for: a
        user may start any number."""
        found: dict[int, str] = {}
        for at in range(0, len(jobs), _JOBS_AT_ONCE):
            wanted = ",".join(f"{job}.{step}" for job in jobs[at : at + _JOBS_AT_ONCE] for step in _STEPS)
            text = self._client.ask(["sacct", "-a", "-D", "-P", "-o", "JobIDRaw", "-j", wanted])
            found |= {job: kind_of(steps) for job, steps in steps_of(text).items()}
        return found

    def just_ended(self, mistakes: list[str]) -> list[JobRun]:
        """Return the runs that have ended, as slurmctld still knows them."""
        return [run for run in self._queue(["-t", _ENDED], mistakes) if run.end_unix is not None]

    def running(self, job: str) -> list[JobRun]:
        """Return the run of a job that has its nodes now, or those of the tasks of an array."""
        try:
            return self._queue(["-t", _HOLDING, "-j", job], [])
        except NoSuchJob:
            return []

    def all_running(self, mistakes: list[str]) -> list[JobRun]:
        """Return the runs that have their nodes now."""
        return self._queue(["-t", _HOLDING], mistakes)

    def _queue(self, options: list[str], mistakes: list[str]) -> list[JobRun]:
        mark = f"@{os.urandom(12).hex()}@"  # the module secrets imports OpenSSL, for which each command would wait 10 ms
        columns = ",".join(f"{column}:{mark}" for column in SQUEUE_COLUMNS)
        return squeue_runs(rows(self._client.queue("-r", *options, "-O", columns), mark, len(SQUEUE_COLUMNS)), mistakes)

    def comment(self, label: str) -> str:
        """Return the AdminComment of a job, as slurmdbd has it."""
        said = self._client.ask(["sacct", "-P", "-X", "-o", "AdminComment", "-j", label])  # the header shows that sacct answered
        return said.partition("\n")[2].rstrip("\n")

    def write_comment(self, label: str, text: str) -> None:
        """Write the AdminComment of a job: at most WRITES_PER_SECOND, whoever calls. Raises WritesNothing."""
        if self._release is None:
            self._release = self._client.release()
        if self._release in LOWER_CASE:
            raise WritesNothing(
                f"sacctmgr of Slurm {self._release} writes AdminComment in lower case, which nothing can read",
                hint="Slurm 23.02 or newer is needed",
            )
        wait = self._next_write - self._clock()
        if wait > 0:
            self._sleep(wait)
        self._next_write = self._clock() + 1 / WRITES_PER_SECOND
        command = ["sacctmgr", "-i", "modify", "job", "where", f"jobid={label}", "set", f"AdminComment={text}"]
        try:
            said = self._client.ask(command)
        except SlurmError as e:
            if any(words in str(e).lower() for words in ("permission denied", "doesn't have privilege", "not authorized")):
                raise WritesNothing(
                    "this account may not write AdminComment", hint="sacctmgr add user NAME ... AdminLevel=Operator"
                ) from None
            raise
        if "nothing modified" in said.lower():
            raise SlurmError(f"sacctmgr: job {label} was not modified")

    def is_operator(self, user: str) -> bool:
        """Return whether Slurm says that a user is an operator or an administrator."""
        said = self._client.ask(["sacctmgr", "-n", "-P", "show", "user", user, "format=AdminLevel"])
        return said.strip() in ("Operator", "Administrator")
