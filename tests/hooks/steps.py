"""Steps as Slurm describes them to a task prolog, and a node whose GPUs lie crosswise to its sockets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fairlead.jobenv.environment_text import END, quoted, render
from fairlead.topology.binding import published_files
from tests.hooks.stage import NOBODY, Ran, Stage
from tests.topology.build import hgx

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1"}
STEP = {**JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_LOCALID": "0"}
CPUS = sorted(os.sched_getaffinity(0))
CPU_TOTAL = os.cpu_count() or 1
two_cpus = pytest.mark.skipif(CPUS[:2] != [0, 1], reason="needs CPUs 0 and 1")


def python_for_all() -> str:
    """A Python that every user may run (the one of this environment may lie below /root)."""
    for path in (sys.executable, "/usr/bin/python3"):
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", path, "-I", "-S", "-c", ""]
        if subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0:
            return path
    pytest.fail("no Python that an ordinary user may run: install the distribution's python3")


PYTHON = python_for_all() if os.geteuid() == 0 else sys.executable


def for_planner(topology: str) -> str:
    """A published topology whose cores the shell cannot tell from CPU numbers: then the planner is asked."""
    head, line, rest = topology.partition("\n")
    return head.rpartition("\t")[0] + "\t-" + line + rest


def table(*rows: str) -> str:
    """/run/fairlead/env of such rows: ``NAME WHEN VALUE LEVEL``, what FAIRLEAD_SET says of them the shell works out."""
    return quoted("".join(f"{row}\t-\n" for row in rows) + END)


def lay_out(
    stage: Stage,
    *,
    python: str = "-",
    numa: list[int] | None = None,
    online: int = 2,
    site: str = "-",
    clear: bool = True,
) -> None:
    """A node of two one-core sockets with GPU 0 on socket 1 and GPU 1 on socket 0, so that Slurm's order is wrong.

    ``clear``: CPU numbers tell which CPUs are one core.
    """
    node = hgx(sockets=online, cores=1, gpus=2, numa=[1, 0] if numa is None else numa)
    text = published_files.render_topology(node)
    (stage.run / "topology").write_text(text if clear else for_planner(text))
    (stage.run / "plans").mkdir()
    for name, text in published_files.plan_files(node).items():
        (stage.run / "plans" / name).write_text(text)
    (stage.run / "env").write_text(render())
    stage.hooks_line(python=python, site=site)


def step(pid: int, local: int, masks: str = "0x1,0x2", gpus: str = "0,1", **more: str) -> dict[str, str]:
    tasks = masks.count(",") + 1
    return {
        **STEP,
        "SLURM_LOCALID": str(local),
        "SLURM_TASK_PID": str(pid),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        "SLURM_CPU_BIND": f"quiet,mask_cpu:{masks}",
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_CPU_BIND_LIST": masks,
        "SLURM_STEP_GPUS": gpus,
        "SLURM_GPUS_ON_NODE": str(gpus.count(",") + 1),
        "CUDA_VISIBLE_DEVICES": gpus,
        **more,
    }


def run(stage: Stage, shell: str, env: dict[str, str]) -> Ran:
    return stage.start(shell, "task-prolog", env, as_nobody=True)


def exports(ran: Ran) -> dict[str, str]:
    lines = [line for line in ran.out.splitlines() if line.startswith("export ")]
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)
