"""Delivers messages to the owners of idle jobs, and runs the site's act. Says how sure it is that a message was taken.

Each call has an id, the same in every try. The site's program is called as

    PROGRAM deliver ID JOB USER      the text is on standard input
    PROGRAM query ID                 asks what became of an earlier message

It answers by one line and its exit code: exit 0 and "accepted ID" if it has the message for good, exit 0 without this line if it
does not know (sent, not known to be delivered), 75 if it did not take the message. After query: "accepted ID", or "unknown ID" if
it has never got the message. Everything else is no answer: the message is unconfirmed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Literal, Protocol

from fairlead.errors import ExitCode, SlurmError, SlurmUnavailable
from fairlead.jobs.idle_rule import RunningJob
from fairlead.slurm.scontrol import Scontrol

Outcome = Literal["accepted", "sent", "refused", "unconfirmed"]
Found = Literal["accepted", "not_taken", "unconfirmed"]
DEADLINE_SECONDS = 60.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class Channel(Protocol):
    def deliver(self, message: str, job: RunningJob, text: str) -> Outcome:
        """Deliver a text to the owner of a job. ``message``: its id."""

    def query(self, message: str) -> Found:
        """Return what became of a message."""


class ScontrolNotify:
    """Writes to the job's standard error, or to the session of srun or salloc (scontrol notify). slurmctld does not say whether
    anybody saw the text, and cannot be asked later."""

    def __init__(self, client: Scontrol) -> None:
        self.client = client

    def deliver(self, message: str, job: RunningJob, text: str) -> Outcome:
        try:
            self.client.ask(["scontrol", "notify", str(job.job), f"{text} [{message}]"])
        except SlurmUnavailable:
            return "unconfirmed"
        except SlurmError:
            return "refused"
        return "sent"

    def query(self, message: str) -> Found:
        return "unconfirmed"


class SiteProgram:
    """Delivers by the site's own program."""

    def __init__(self, program: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.program, self.deadline_seconds = program, deadline_seconds

    def deliver(self, message: str, job: RunningJob, text: str) -> Outcome:
        code, said = called([self.program, "deliver", message, str(job.job), job.user], text, self.deadline_seconds)
        if code == 0:
            return "accepted" if f"accepted {message}" in said.splitlines() else "sent"
        return "refused" if code == ExitCode.TRY_AGAIN else "unconfirmed"

    def query(self, message: str) -> Found:
        code, said = called([self.program, "query", message], "", self.deadline_seconds)
        lines = said.splitlines() if code == 0 else []
        if f"accepted {message}" in lines:
            return "accepted"
        return "not_taken" if f"unknown {message}" in lines else "unconfirmed"


class SiteAct:
    """Runs the site's own act on a job: PROGRAM JOB BEGIN ID requeue|-. Exit 0: it has acted. 75: it has not."""

    def __init__(self, program: str, bin_dir: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.program, self.bin_dir, self.deadline_seconds = program, bin_dir, deadline_seconds

    def act(self, message: str, job: RunningJob) -> Outcome:
        words = [self.program, str(job.job), f"{job.begin_unix:.0f}", message, "requeue" if job.requeue else "-"]
        code, _ = called(words, "", self.deadline_seconds, first_in_path=self.bin_dir)
        return "accepted" if code == 0 else "refused" if code == ExitCode.TRY_AGAIN else "unconfirmed"


def called(command: Sequence[str], text: str, deadline_seconds: float, first_in_path: str = "") -> tuple[int | None, str]:
    """Run a program and return its exit code and its output. The code is None if it was too late, ended by a signal, or could
    not be started."""
    path = f"{first_in_path}:{_ENVIRONMENT['PATH']}" if first_in_path else _ENVIRONMENT["PATH"]
    try:
        done = subprocess.run(
            list(command),
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=deadline_seconds,
            check=False,
            cwd="/",
            env={**_ENVIRONMENT, "PATH": path},
            start_new_session=True,
        )
    except FileNotFoundError:
        return int(ExitCode.TRY_AGAIN), ""  # it was not started, so it has taken nothing
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return (done.returncode if done.returncode >= 0 else None), done.stdout[:65536].decode("ascii", "replace")
