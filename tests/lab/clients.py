"""What a test asks of Slurm, the same on a bare cluster and on a rack: nodes, jobs, waiting with a bound."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from subprocess import CompletedProcess

from tests.lab.pause import pause
from tests.lab.roots import USER, LabError

CLIENTS = ("scontrol", "squeue", "sinfo", "sbatch", "srun", "salloc", "scancel", "sdiag", "sacct", "sacctmgr", "sstat")


@dataclass(frozen=True)
class NodeState:
    """A node as slurmctld has it: states such as ('IDLE', 'DRAIN'), the reason and who set it ('' for none)."""

    states: tuple[str, ...]
    reason: str = ""
    user: str = ""


class SlurmClients(ABC):
    """Slurm's own commands, run where slurmctld runs."""

    name: str

    @abstractmethod
    def run(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
        stdin: str = "",
    ) -> CompletedProcess[str]:
        """Run a command where slurmctld runs, as ``user`` or root, in a clean environment plus ``env``.

        Bounded by ``timeout`` seconds (subprocess.TimeoutExpired); raises LabError when ``check`` and it fails.
        """

    @property
    @abstractmethod
    def node_names(self) -> tuple[str, ...]:
        """NodeName of every node."""

    def scontrol(self, *arguments: str, check: bool = True) -> str:
        """scontrol's output."""
        return self.run(["/usr/bin/scontrol", *arguments], check=check).stdout

    def node_state(self, name: str) -> NodeState:
        """One node as slurmctld has it now."""
        return parse_node(self.scontrol("-o", "show", "node", name))

    def wait_idle(self, seconds: float = 90, names: Sequence[str] = ()) -> None:
        """Wait until every node (or those named) says IDLE and nothing else."""
        wanted = set(names or self.node_names)
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            listed = self.run(["/usr/bin/sinfo", "-h", "-N", "-o", "%N %T"], check=False).stdout.split("\n")
            states = dict(line.split() for line in listed if len(line.split()) == 2)
            waiting = {name for name in wanted if states.get(name) != "idle"}
            if not waiting:
                return
            if time.monotonic() > deadline:
                told = ", ".join(f"{name} {states.get(name, 'unknown')}" for name in sorted(waiting))
                raise LabError(f"{self.name}: not idle after {seconds:g} s: {told}")
            pause(began)

    def submit(self, script: str, *options: str, user: str = USER, env: Mapping[str, str] | None = None) -> int:
        """sbatch of a script's text as ``user``; returns the job id. Output goes to /tmp/job-ID.out inside."""
        command = ["/usr/bin/sbatch", "--parsable", "--output=/tmp/job-%j.out", "--chdir=/tmp", *options]
        return int(self.run(command, user=user, env=env, stdin=script).stdout.strip().split(";")[0])

    def job_state(self, job: int) -> str:
        """JobState, such as PENDING, RUNNING, COMPLETED ('' when slurmctld does not know the job)."""
        found = re.search(r"\bJobState=(\S+)", self.scontrol("-o", "show", "job", str(job), check=False))
        return found[1] if found else ""

    def wait_job(self, job: int, *states: str, seconds: float = 90) -> str:
        """Wait until the job is in one of ``states`` (default: any state that it ends in); returns that state."""
        ends = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if (state := self.job_state(job)) in ends:
                return state
            if time.monotonic() > deadline:
                raise LabError(f"job {job} is {state or 'unknown'} after {seconds:g} s, not {' or '.join(ends)}")
            pause(began)

    def output(self, job: int) -> str:
        """What the job printed."""
        return self.run(["/bin/cat", f"/tmp/job-{job}.out"]).stdout


def parse_node(text: str) -> NodeState:
    """A NodeState of one line of ``scontrol -o show node``."""
    state = re.search(r"\bState=(\S+)", text)
    if not state:
        raise LabError(f"scontrol says nothing about that node: {text.strip()[:200]}")
    reason = re.search(r"\bReason=(.*?) \[([^@\]]*)@[^\]]*\]", text)
    states = tuple(word.rstrip("*~#!%$@^-") for word in state[1].split("+"))
    return NodeState(states, reason[1] if reason else "", reason[2] if reason else "")
