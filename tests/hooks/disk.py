"""A local disk of the stage's node, and the service that makes and removes folders on it, run as its unit runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.host import scratch
from fairlead.jobenv.environment_text import render
from fairlead.jobenv.variable_table import assemble
from tests.hooks.stage import HOOKS, NOBODY, Ran, Stage
from tests.hooks.steps import JOB, exports, run

BASE = "/run/local"
AGENT = HOOKS.parent / "agent"
PROGRAM = (sys.executable, "-m", "fairlead.host.scratch_folders", BASE)
#: The same with other limits, which a test need not wait for.
LIMITED = """
import sys
from fairlead.host import scratch_folders, scratch_sweep
for name, value in zip(*[iter(sys.argv[2:])] * 2):
    assert hasattr(scratch_sweep, name)
    setattr(scratch_sweep, name, float(value))
sys.exit(scratch_folders.main(sys.argv[1:2]))
"""
MALLORY = 4242
BEGIN = {**JOB, "SLURM_JOB_UID": str(NOBODY), "SLURM_JOB_GPUS": "0"}


class Disk:
    """A local disk of the node. ``path``: as seen from outside; ``folder``: this boot's, as jobs are told."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.path = stage.run.parent / "local"
        stage.inside("rm", "-rf", BASE)
        self.path.mkdir()
        self.path.chmod(0o1777)
        self.folder = ""
        self.limits: dict[str, float] = {}
        self.under: tuple[str, ...] = ()  # what the service is started by
        self.environment = {**os.environ, "PYTHONPATH": str(AGENT)}

    def start(self) -> subprocess.Popen[str]:
        words = [word for name, value in self.limits.items() for word in (name, str(value))]
        program = (sys.executable, "-c", LIMITED, BASE, *words) if words else PROGRAM
        argv = ["nsenter", "-m", "-t", str(self.stage.pid), *self.under, *program]
        return subprocess.Popen(argv, env=self.environment, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def serve(self, code: int = 0) -> str:
        """One run of the service; what it said. The agent's tables follow what it published."""
        ran = self.start()
        try:
            said = ran.communicate(timeout=100)[1]
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)  # with the process that removes
            raise
        assert ran.returncode == code, said
        self.folder = scratch.published(str(self.stage.run), BASE)
        (self.stage.run / "env").write_text(render(assemble(scratch=self.folder)))
        return said

    def begin(self, shell: str = "dash", uid: int = NOBODY, job: str = "4711") -> str:
        """The prolog, and the service that a record starts; the name of the job's folder."""
        environment = {**BEGIN, "SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid)}
        assert self.stage.start(shell, "prolog", environment).rc == 0
        self.serve()
        return f"{self.folder}/{uid}/{job}.{self.stage.job(job)[4]}"

    def end(self, shell: str = "dash", job: str = "4711") -> None:
        ran = self.stage.start(shell, "epilog", {**BEGIN, "SLURM_JOB_ID": job})
        assert (ran.rc, ran.out, ran.err) == (0, "", "")

    def seen(self, inside: str) -> Path:
        """From outside the namespace."""
        return Path(f"/proc/{self.stage.pid}/root{inside}")

    def as_user(self, script: str, uid: int = NOBODY) -> Ran:
        words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        argv = ["nsenter", "-m", "-t", str(self.stage.pid), *words, "/usr/bin/python3", "-I", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def environment_of(stage: Stage, shell: str, environment: dict[str, str]) -> dict[str, str]:
    """What a task is given where the disk is well. The hook waits 1.5 s for the folder, which a busy machine may overrun."""
    for _ in range(10):
        if "TMPDIR" in (said := exports(run(stage, shell, environment))):
            break
    return said
