"""bind-plan: which other steps of a job are beside this one, by their cgroups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hooks.stage import HOOKS

#: Loads the file as a module, in an interpreter of its own: it changes sys.path and sets no compiled file down.
PRINT_MASK = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = SourceFileLoader("bind_plan", sys.argv[1])
module = module_from_spec(spec_from_loader("bind_plan", loader))
loader.exec_module(module)
print(*(module.alone(sys.argv[2], int(tasks)) for tasks in sys.argv[3:]))
"""
RUNNING, BEGUN = "100\n101\n102\n", "100\n"  # slurmstepd and tasks; slurmstepd alone


@pytest.mark.parametrize(
    ("groups", "one", "several"),
    [
        ({}, True, True),
        ({"step_batch": RUNNING, "step_extern": RUNNING, "step_interactive": RUNNING, "step_4294967290": RUNNING}, True, True),
        ({"step_3": RUNNING}, False, False),
        ({"step_3": BEGUN}, True, True),
        ({"step_3": BEGUN, "step_3/task_0": "101\n"}, False, False),  # 24.11 and later, and cgroup v2
        ({"step_3": "", "step_3/slurm": BEGUN, "step_3/user": "", "step_3/user/task_0": "101\n102\n"}, False, False),
        ({"step_12": RUNNING}, False, True),  # a later step; with several tasks all must see the same
        ({"step_30": BEGUN, "step_4/task_1": "7\n"}, True, True),
    ],
)
def test_other_steps_of_the_job(tmp_path: Path, groups: dict[str, str], one: bool, several: bool) -> None:
    for name, pids in {**groups, "step_5": RUNNING, "step_5/task_0": "200\n201\n"}.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(pids)
    argv = [sys.executable, "-c", PRINT_MASK, str(HOOKS / "bind-plan"), f"{tmp_path}/step_5/task_0", "1", "8"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{one} {several}\n"
