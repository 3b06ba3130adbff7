"""Submits, finds and cancels the jobs of a run in Slurm. A run has one job for each node. All jobs of a run have the same name,
which no job of another run has, and fairlead finds them again by this name.

Everything is done as the calling user. A job is never cancelled by its job id alone, because Slurm uses job ids again.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.model.plain_text import one_line
from fairlead.slurm.client import NodeState
from fairlead.slurm.scontrol import Scontrol, plain

PREFIX = "fairlead-accept-"
#: What squeue prints of a job: its id, its state, the time it has run, the nodes it requested, its name, and why it waits.
COLUMNS = "%A|%T|%M|%n|%j|%r"
#: The variables of the caller's environment that a job gets: the user, and the paths of programs. Other variables, such as
#: NCCL_*, are not passed on.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LD_LIBRARY_PATH", "MODULEPATH", "MODULESHOME", "BASH_ENV", "ENV")
#: States of jobs that have not ended (squeue(1), JOB STATE CODES).
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
#: States in which a node starts no job. A node in another state (MAINT of a reservation, powered down) may still start the job.
#: After its restart, slurmctld has a node as UNKNOWN until it has asked it. So that says nothing.
BLOCKED = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE"})
WHY_MAX = 800  # characters of a node's reason


class AcceptanceJob(Struct, frozen=True, kw_only=True):
    """Describes a job as squeue prints it. ``node``: the node that the job requested. ``reason``: why the job waits, or "".
    used_seconds: how long the job has run, without the time in which it was suspended, or None if squeue does not say it."""

    id: int
    name: str
    node: str
    state: str
    reason: str = ""
    used_seconds: int | None = None

    @property
    def ended(self) -> bool:
        return self.state not in WAITING | RUNNING

    @property
    def over(self) -> bool:
        """Whether the job has ended or completes. No step starts in a job that completes, and scancel refuses to end it."""
        return self.ended or self.state == "COMPLETING"


def user() -> str:
    """Return the caller's user name, or the user id if the user has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class AcceptanceJobs(Scontrol):
    """Calls sbatch, squeue and scancel, as the calling user."""

    def environment(self) -> Mapping[str, str]:
        own = {name: os.environ[name] for name in KEPT if name in os.environ}
        return {**super().environment(), **own}

    def submit(self, path: str, node: str, *, name: str, minutes: int, more: Sequence[str], folder: str) -> int:
        """Submit a script for one node, and return the job id. Raises SlurmError, SlurmUnavailable."""
        said = self.ask(submit_command(path, node, name=name, minutes=minutes, more=more, folder=folder)).strip().splitlines()
        number = said[-1].split(";")[0] if said else ""
        if not number.isdecimal():
            raise SlurmError(f"sbatch: its answer is no job number: {' '.join(said)[:100]!r}")
        return int(number)

    def seen(self, name: str) -> tuple[AcceptanceJob, ...]:
        """Return the jobs with this name that slurmctld still has, including ended jobs."""
        return self._listed(["-n", name])

    def own(self) -> tuple[AcceptanceJob, ...]:
        """Return all jobs of the caller that any run of accept has submitted and that have not ended."""
        return tuple(j for j in self._listed(["-u", user()]) if j.name.startswith(PREFIX) and not j.ended)

    def _listed(self, which: Sequence[str]) -> tuple[AcceptanceJob, ...]:
        return parse(self.queue("-t", "all", *which, "-o", COLUMNS))

    def cancel(self, name: str) -> None:
        """End every job of this name that the caller has submitted. Raises SlurmError if one cannot be ended, and
        SlurmUnavailable."""
        try:
            self.ask(["scancel", f"--name={name}", f"--user={user()}"])
        except SlurmUnavailable:
            raise
        except SlurmError:  # scancel has also warned of something else, or a job was over in the meantime
            if self._is_left(name):
                raise

    def cancel_one(self, job: int, name: str) -> None:
        """End one job, if it still has this name. Raises SlurmError if the job cannot be ended, and SlurmUnavailable."""
        try:
            self.ask(["scancel", f"--name={name}", f"--user={user()}", str(job)])
        except SlurmUnavailable:
            raise
        except SlurmError:  # scancel also refuses if the job is over in the meantime
            if self._is_left(name, job):
                raise

    def _is_left(self, name: str, job: int | None = None) -> bool:
        """Say whether this job, or any of this name, has not ended, as far as slurmctld says."""
        try:
            return any(not seen.over and job in (None, seen.id) for seen in self.seen(name))
        except SlurmError:
            return True

    def accounted(self, job: int | None) -> tuple[str, int | None]:
        """Return the state in which a job ended and how many seconds it ran, by Slurm's accounting. Return ("", None) if there is
        no accounting, no such job in it, or if it does not know of the job's end yet."""
        if job is None:
            return "", None
        try:
            said = self.ask(["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "State,ElapsedRaw"])
        except SlurmError:
            return "", None
        words = said.partition("\n")[0].split("|")
        state = (words[0].split() or [""])[0]
        if len(words) != 2 or state in WAITING | RUNNING:
            return "", None
        return state, int(words[1]) if words[1].isdecimal() else None

    def reserved(self, reservation: str) -> tuple[str, ...]:
        """Return the nodelist of a reservation as a tuple with one text, or () if it has no nodes. Raises SlurmError."""
        found = re.search(r"\bNodes=(\S+)", self.ask(["scontrol", "-o", "show", "reservation", plain(reservation)]))
        return (found[1],) if found and found[1] != "(null)" else ()


def submit_command(path: str, node: str, *, name: str, minutes: int, more: Sequence[str], folder: str) -> list[str]:
    """Return the command that submits a job to one node. The job has the node to itself, with all its memory, and is not
    requeued. Output and error go beside the script."""
    base = _literal(path.removesuffix(".sh"))
    return [
        *("sbatch", "--parsable", f"--job-name={name}", f"--nodelist={plain(node)}", "--nodes=1", "--ntasks=1"),
        *("--exclusive", "--mem=0", "--no-requeue", f"--time={minutes}", f"--chdir={folder}", "--open-mode=truncate"),
        *(f"--output={base}.out", f"--error={base}.err", *more, path),
    ]


def _literal(path: str) -> str:
    """Return a path for --output with every % doubled, because a single % begins a filename pattern (sbatch(1))."""
    return path.replace("%", "%%")


def parse(text: str) -> tuple[AcceptanceJob, ...]:
    """Return the jobs in squeue's lines of ``COLUMNS``. Raises SlurmError for a line that is no job."""
    found = []
    for line in text.splitlines():
        words = line.split("|", 5)
        if len(words) != 6 or not words[0].isdecimal():
            raise SlurmError(f"squeue: its output is not what was asked for: {line[:80]!r}")
        number, state, used, node, name, reason = words
        found.append(
            AcceptanceJob(
                id=int(number),
                name=name,
                node=node,
                state=state,
                reason="" if reason == "None" else reason,
                used_seconds=_seconds(used),
            )
        )
    return tuple(found)


def _seconds(text: str) -> int | None:
    """Return the seconds of a time such as ``1-02:03:04`` or ``3:04`` (squeue(1), %M), or None if it is no time."""
    found = re.fullmatch(r"(?:(\d{1,6})-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{1,2})", text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def by_node(jobs: Iterable[AcceptanceJob]) -> dict[str, AcceptanceJob]:
    """Return the newest job for each node."""
    return {job.node: job for job in sorted(jobs, key=lambda job: job.id)}


def blocked(state: NodeState) -> str:
    """Return the state in which the node starts no job, with its reason, or "" if it may start one."""
    words = sorted(state.states & BLOCKED)
    why = f" ({one_line(state.reason, WHY_MAX)})" if state.reason else ""
    return f"{'+'.join(words)}{why}" if words else ""
