"""fairlead env: of this process, of a job's tasks on this machine, and the whole table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.cli.env import LEGEND
from fairlead.host.environments import of_job
from fairlead.model.cpulist import format_cpulist

JOB = f"9{os.getpid()}"
OURS = {
    "SLURM_JOB_ID": JOB,
    "SLURM_TASK_PID": "1",
    "FAIRLEAD_SET": "NCCL_DEBUG:=WARN|MASTER_PORT:=20001",
}


@pytest.fixture
def tasks() -> Iterator[None]:
    """A batch step and two tasks of one step, as processes of ours; and a child of one, which is not another task."""
    kinds = (
        {"NCCL_DEBUG": "WARN"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "NCCL_DEBUG": "INFO"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "MASTER_PORT": "20001"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "MASTER_PORT": "of a child"},
    )
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**OURS, **k}) for k in kinds]
    deadline = time.monotonic() + 60
    while len(of_job(JOB)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    yield
    for process in started:
        process.communicate(b"\n")


def test_a_job_of_ones_own(tasks: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "explain", "--job", JOB, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(t["step"], t["rank"]) for t in told] == [("batch", ""), ("0", "0"), ("0", "1")]
    debug = [next(v for v in t["variables"] if v["name"] == "NCCL_DEBUG") for t in told]
    assert [(v["origin"], v["overrides"]) for v in debug] == [("fairlead", ""), ("user", "WARN"), ("user", "WARN")]
    assert next(v for v in told[2]["variables"] if v["name"] == "MASTER_PORT")["origin"] == "fairlead"
    assert main(["env", "explain", "--job", JOB]) == 0
    said = capsys.readouterr().out
    assert f"Job {JOB}, step 0, rank 1 (pid " in said and "instead of fairlead's WARN" in said
    cpus = format_cpulist(tuple(os.sched_getaffinity(0)))
    assert said.splitlines()[:3] == [  # a variable of fairlead that the job has removed is the job's own choice, too
        f"step batch: 1 variable set, 1 of yours kept; CPUs {cpus}",
        f"step 0, rank 0: 0 variables set, 2 of yours kept; CPUs {cpus}",
        f"step 0, rank 1: 1 variable set, 1 of yours kept; CPUs {cpus}",
    ]
    assert [t["cpus"]["cpus"] for t in told] == [cpus] * 3


def test_jobs_that_are_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "explain", "--job", "1" * 12]) == 66
    assert "no task on this node whose environment you may read" in capsys.readouterr().err
    assert main(["env", "list", "--job", "1"]) == 64


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["env", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["set"] and "NCCL_ALGO" in told["never"] and "UCX_TLS" in told["site"]
    assert main(["env", "list"]) == 0
    assert "never set:" in capsys.readouterr().out
    assert main(["env", "explain"]) == 0
    said = capsys.readouterr().out
    whens = {
        line.rpartition("when: ")[2].partition("!")[0].partition(":")[0] for line in said.splitlines() if "   when: " in line
    }
    assert len(whens) > 3 and all(f" {word}: " in LEGEND or word == "always" for word in whens), "each word is explained"
    assert LEGEND in said
    monkeypatch.setenv("FAIRLEAD_PROFILE", "../../etc")
    assert main(["env", "explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variables"] == []
    assert main(["env", "explain"]) == 0
    assert "FAIRLEAD_PROFILE=../../etc is none of full, minimal and off, and no preset here" in capsys.readouterr().out


def test_processes_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    for pid, data in {
        "1": b"",
        "2": b"SLURM_JOB_ID=5\0",
        "3": b"SLURM_JOB_ID=5\0SLURM_TASK_PID=3\0bad\xff=\xfe\0novalue\0",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(data)
    (tmp_path / "4").mkdir()
    (tmp_path / "self").mkdir()
    assert [t.pid for t in of_job("5", str(tmp_path))] == [3]
