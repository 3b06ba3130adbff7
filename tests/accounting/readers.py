"""Programs of others that read a job's AdminComment, run unmodified against a lab's real sacct.

    text = jobstats(cluster, job)

``reportseff`` and ``job_defense_shield`` come from the package index, at the versions of ``readers.txt``, into a virtual
environment in the lab's folder; it is made at the first use. ``jobstats`` is in no index: its repository
(https://github.com/PrincetonUniversity/jobstats, seen working at commit dfc9aa0) has to lie in the folder ``jobstats`` of
``FAIRLEAD_READERS_DIR``, or of ``shared/data/readers`` beside the checkout. Nothing of them is part of fairlead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

from tests.lab import roots

HERE = Path(__file__).resolve().parent
BESIDE = HERE.parents[2] / "shared/data/readers"
PINNED = HERE / "readers.txt"
#: Thresholds of 0, so that one short job of a test appears in each report.
SHIELD = """\
violation-logs-path: {folder}/violations
email-files-path: {folder}
email-domain-name: "@example.org"
sender: nobody@example.org
reply-to: nobody@example.org
show-empty-reports: True
low-gpu-efficiency:
  cluster: lab
  partitions: [main]
  min_run_time: 0
  eff_thres_pct: 100
  eff_target_pct: 100
  absolute_thres_hours: 0
  email_file: none.txt
low-cpu-efficiency:
  cluster: lab
  partitions: [main]
  min_run_time: 0
  eff_thres_pct: 100
  eff_target_pct: 100
  absolute_thres_hours: 0
  email_file: none.txt
zero-util-gpu-hours:
  cluster: lab
  partitions: [main]
  min_run_time: 0
  gpu_hours_threshold_user: 0
  gpu_hours_threshold_admin: 0
  email_file: none.txt
"""


class ReaderMissing(Exception):
    """A reader is not there and cannot be had; the message says how to get it."""


class ReaderFailed(Exception):
    """A reader ended with an error; the message is what it printed."""


class Slurm(Protocol):
    """What a reader needs of a cluster or a rack: the folder with the commands that reach its Slurm."""

    @property
    def bin(self) -> Path: ...


def environment(pinned: Path = PINNED) -> Path:
    """Return the virtual environment with the packages of a file of pins, and make it first where it is not there.

    Raises ReaderMissing where pip cannot have them.
    """
    recipe = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()[:12]
    made = roots.lab_dir() / "build" / f"{pinned.stem}-{recipe}"
    with roots.locked(pinned.stem):
        if not (made / ".complete").is_file():
            shutil.rmtree(made, ignore_errors=True)
            roots.say(f"installing the packages of {pinned.name} into {made}")
            subprocess.run([sys.executable, "-m", "venv", str(made)], check=True, timeout=120)
            words = [str(made / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
            done = subprocess.run(
                [*words, "--requirement", str(pinned)], capture_output=True, text=True, timeout=600, check=False
            )
            if done.returncode:
                raise ReaderMissing(f"pip cannot install {pinned}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
            (made / ".complete").touch()
    return made


def jobstats_source() -> Path:
    """Return the folder of jobstats' repository. Raises ReaderMissing where it is not there."""
    folder = Path(os.environ.get("FAIRLEAD_READERS_DIR") or BESIDE) / "jobstats"
    if not (folder / "jobstats.py").is_file():
        raise ReaderMissing(
            f"{folder} has no jobstats.py: clone github.com/PrincetonUniversity/jobstats there (FAIRLEAD_READERS_DIR)"
        )
    return folder


def jobstats(slurm: Slurm, job: int | str) -> str:
    """Return jobstats' report of a job, without colours. There is no Prometheus: AdminComment is all that it can read.

    Raises ReaderFailed, ReaderMissing.
    """
    return _run(slurm, [str(environment() / "bin/python"), str(jobstats_source() / "jobstats"), "--no-color", str(job)])


def reportseff(slurm: Slurm, job: int | str) -> str:
    """Return reportseff's table of a job, with a line for each node and GPU. Raises ReaderFailed, ReaderMissing."""
    columns = "JobID,State,Elapsed,CPUEff,MemEff,GPUEff,GPUMem"
    return _run(slurm, [str(environment() / "bin/reportseff"), "--no-color", "--node-and-gpu", f"--format={columns}", str(job)])


def job_defense_shield(slurm: Slurm, job: int | str) -> str:
    """Return job_defense_shield's reports on GPU efficiency, CPU efficiency and unused GPUs over the time of one job.

    It reads each job of that time, of every user; tests/lab/accounting.py, ``backdate``, gives a job a time of its own.
    Raises ReaderFailed, ReaderMissing.
    """
    start, end = (datetime.fromtimestamp(int(seconds)) for seconds in _times(slurm, job))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(SHIELD.format(folder=folder))
        words = [str(environment() / "bin/job_defense_shield"), f"--config-file={config}", "--clusters=lab"]
        words += ["--low-gpu-efficiency", "--low-cpu-efficiency", "--zero-util-gpu-hours"]
        words += [f"--starttime={start:%Y-%m-%dT%H:%M:%S}", f"--endtime={end:%Y-%m-%dT%H:%M:%S}"]
        return _run(slurm, words)


def _times(slurm: Slurm, job: int | str) -> list[str]:
    words = ["sacct", "--allusers", "--noheader", "--parsable2", "--allocations", "--format=start,end", f"--jobs={job}"]
    return _run(slurm, words, {"SLURM_TIME_FORMAT": "%s"}).split()[0].split("|")


def _run(slurm: Slurm, words: list[str], more: Mapping[str, str] | None = None) -> str:
    environ = {"PATH": f"{slurm.bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "200", **(more or {})}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    if done.returncode:
        raise ReaderFailed(f"{Path(words[0]).name} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
