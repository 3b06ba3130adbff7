"""What Slurm's commands print in place of an answer: it is asked again, and never taken for a refusal or for health."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.controller.accounting import Accounting
from fairlead.controller.running_jobs import running_jobs
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.measure.fabric_jobs import FabricJobs
from tests.slurm.test_slow_writes import client_with, is_sent, slow

#: Errors of slurm_errno.c after which it is open whether slurmctld has done what it was asked for, or which pass by themselves.
NO_ANSWERS = (
    "slurm_update error: Unable to contact slurm controller (connect failure)",
    "slurm_update error: Controller is in standby mode, try a different controller",
    "slurm_update error: Rate limit exceeded, please retry momentarily",  # 23.02 and newer, rl_enable
    "slurm_update error: Rate limit exceeded, please retry later",
    "slurm_update error: Connection timed out establishing",  # 26.05
    "slurm_update error: Connection timed out reading",
    "slurm_update error: Connection timed out writing",
    "slurm_update error: Connection rejected by handler",
    "slurm_update error: Connection forced closed by quiesce timeout",
)


@pytest.mark.parametrize("text", NO_ANSWERS)
def test_no_answer_is_no_refusal(tmp_path: Path, text: str) -> None:
    client = client_with(tmp_path, f"echo '{text}' >&2; exit 1")
    with pytest.raises(SlurmUnavailable, match="slurm_update error"):
        client.drain("n1", "fairlead:xid:abcdef gone")


def test_a_refusal_is_no_silence(tmp_path: Path) -> None:
    client = client_with(tmp_path, "echo 'slurm_update error: Invalid node state specified' >&2; exit 1")
    with pytest.raises(SlurmError, match="Invalid node state") as error:
        client.drain("n1", "fairlead:xid:abcdef gone")
    assert not isinstance(error.value, SlurmUnavailable)


DEAF = """
import signal, sys
from fairlead.errors import SlurmError
from fairlead.slurm.scontrol import Scontrol
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=sys.argv[1], deadline_seconds=10)
client.not_after(0.5)
try:
    client.resume("n1")
except SlurmError as e:
    print(e)
"""


def test_the_bound_of_a_write_holds_where_the_callers_own_caller_ignores_its_signal(tmp_path: Path) -> None:
    """An ignored or blocked SIGALRM is inherited over fork and exec, down to scontrol."""
    client_with(tmp_path, slow(tmp_path, f": >{tmp_path}/sent"))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "agent")}
    command = [sys.executable, "-c", DEAF, str(tmp_path)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert not is_sent(tmp_path) and "too slow" in said.stdout, said


@pytest.mark.parametrize(
    ("printed", "said"),
    [("", ""), ("", "squeue: error: Ignoring BackupController"), ("JOBID ST", ""), ("JOBID ST NODES\\n7 R 1\\n8 R", "")],
)
def test_an_empty_or_cut_list_has_not_said_which_jobs_there_are(tmp_path: Path, printed: str, said: str) -> None:
    client = client_with(tmp_path, "")
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '{said}' >&2; printf '{printed}'\n")
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(SlurmError, match="squeue: "):
        client.jobs_on("n1")


def test_a_warning_beside_the_header_is_no_error(tmp_path: Path) -> None:
    client = client_with(tmp_path, "")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'squeue: error: Ignoring BackupController' >&2; echo JOBID ST NODES\n")
    (tmp_path / "squeue").chmod(0o755)
    assert client.jobs_on("n1") == ()
    jobs = FabricJobs(conf=client.conf, bin_dir=client.bin_dir)
    assert (jobs.seen("fairlead-accept-1"), jobs.state(7), jobs.steps(7, "fairlead-fabric-1")) == ((), None, [])
    assert Accounting(jobs).all_running([]) == running_jobs(jobs) == []
