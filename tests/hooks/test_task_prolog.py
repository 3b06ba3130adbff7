"""The task prolog: real affinity of a real process on this machine's CPUs, and the environment that it prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.jobenv.render import render, value_sum
from fairlead.topology import publish
from tests.hooks.stage import HOOKS, NOBODY, SHELLS, Ran, Stage
from tests.topology.build import hgx

pytestmark = pytest.mark.root
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1"}
STEP = {**JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_LOCALID": "0"}
CPUS = sorted(os.sched_getaffinity(0))
CPU_TOTAL = os.cpu_count() or 1
two_cpus = pytest.mark.skipif(CPUS[:2] != [0, 1], reason="needs CPUs 0 and 1")


@pytest.fixture
def task() -> Iterator[int]:
    """A process of nobody on all CPUs, as a task that Slurm has not bound."""
    process = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sleep", "60"])
    deadline = time.monotonic() + 10
    while "sleep" not in Path(f"/proc/{process.pid}/comm").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


def _python() -> str:
    """A Python that every user may run (the one of this environment may lie below /root)."""
    for path in (sys.executable, "/usr/bin/python3"):
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", path, "-I", "-S", "-c", ""]
        if subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0:
            return path
    pytest.fail("no Python that an ordinary user may run: install the distribution's python3")


PYTHON = _python() if os.geteuid() == 0 else sys.executable


def lay_out(stage: Stage, *, python: str = "-", numa: list[int] | None = None, online: int = 2, site: str = "-") -> None:
    """A node of two one-core sockets with GPU 0 on socket 1 and GPU 1 on socket 0, so that Slurm's order is wrong."""
    node = hgx(sockets=online, cores=1, gpus=2, numa=[1, 0] if numa is None else numa)
    (stage.run / "topology").write_text(publish.render_topology(node))
    (stage.run / "plans").mkdir()
    for tasks, text in publish.render_plans(node).items():
        (stage.run / "plans" / str(tasks)).write_text(text)
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


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
def test_ready_plan_puts_the_task_beside_its_gpu(stage: Stage, shell: str, task: int, local: int) -> None:
    lay_out(stage)
    os.sched_setaffinity(task, {local})
    ran = run(stage, shell, step(task, local))
    assert (ran.rc, ran.err) == (0, "")
    assert os.sched_getaffinity(task) == {1 - local}
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
def test_the_planner_does_the_same(stage: Stage, shell: str, task: int, local: int) -> None:
    lay_out(stage, python=PYTHON)
    shutil.rmtree(stage.run / "plans")
    os.sched_setaffinity(task, {local})
    ran = run(stage, shell, step(task, local))
    assert (ran.rc, ran.err) == (0, "")
    assert os.sched_getaffinity(task) == {1 - local}
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


def test_gpus_in_one_place_need_no_planner(stage: Stage, shell: str) -> None:
    """Four GPUs of one socket, part of a node: whoever gets which CPUs, the distance is the same; no process is started."""
    lay_out(stage)
    (stage.run / "topology").write_text(publish.render_topology(hgx()))
    planner = stage.run / "python"
    planner.write_text("#!/bin/sh\n: >/run/fairlead/called\n")
    planner.chmod(0o755)
    stage.hooks_line(python="/run/fairlead/python")
    stage.inside("chmod", "0777", "/run/fairlead")
    for gpus, called in (("0,1,2,3", False), ("5,7", False), ("3,4", True), ("0,10", False)):
        ran = run(stage, shell, step(4194000, 0, masks="0x1,0x2", gpus=gpus))
        assert ran.rc == 0
        assert (stage.run / "called").exists() is called, gpus
        if called:
            (stage.run / "called").unlink()


@two_cpus
def test_what_is_right_stays(stage: Stage, shell: str, task: int) -> None:
    lay_out(stage, numa=[0, 1])
    os.sched_setaffinity(task, {0})
    assert exports(run(stage, shell, step(task, 0)))["OMP_NUM_THREADS"] == "1"
    assert os.sched_getaffinity(task) == {0}


LEFT_ALONE: dict[str, dict[str, str]] = {
    "none": {"SLURM_CPU_BIND_TYPE": "none", "SLURM_CPU_BIND_LIST": ""},
    "map_cpu": {"SLURM_CPU_BIND_TYPE": "map_cpu:", "SLURM_CPU_BIND_LIST": "0,1"},
    "typed in another order": {"SLURM_CPU_BIND_LIST": "0x2,0x1"},
    "typed masks of other widths": {"SLURM_CPU_BIND_LIST": "0x1,0x02"},
    "typed in lower case": {"SLURM_CPU_BIND_LIST": "0x1,0xa"},
    "keyword and mask": {"SLURM_CPU_BIND_TYPE": "cores,mask_cpu:"},
    "not bound": {"SLURM_CPU_BIND_TYPE": "", "SLURM_CPU_BIND_LIST": ""},
    "one mask for all": {"SLURM_CPU_BIND_LIST": "0x3"},
    "overlapping masks": {"SLURM_CPU_BIND_LIST": "0x3,0x3"},
    "a mask outside the node": {"SLURM_CPU_BIND_LIST": "0x1,0x4"},
    "garbage masks": {"SLURM_CPU_BIND_LIST": "0x1,$(id)"},
    "more tasks than masks": {"SLURM_GTIDS": "0,1,2"},
    "step without GPUs": {"SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": "0,1"},
    "hostile GPUs": {"SLURM_STEP_GPUS": "0,1;id"},
    "a GPU that is not there": {"SLURM_STEP_GPUS": "0,7"},
    "a GPU for each task": {"SLURM_GPUS_PER_TASK": "1"},
    "gpu-bind": {"SLURM_GPU_BIND": "single:1"},
    "GPUs hidden by task": {"CUDA_VISIBLE_DEVICES": "0"},
    "fewer GPUs than the step has": {"SLURM_GPUS_ON_NODE": "4"},
    "tres-per-task": {"SLURM_TRES_PER_TASK": "cpu=1,gres/gpu=1"},
    "batch step": {"SLURM_STEP_ID": "-5"},
    "batch step by number": {"SLURM_STEP_ID": "4294967291"},
    "hostile local id": {"SLURM_LOCALID": "a[$(id)]"},
    "octal local id": {"SLURM_LOCALID": "08"},
    "off": {"FAIRLEAD_PROFILE": "off"},
    "malformed profile": {"FAIRLEAD_PROFILE": "$(id)"},
}


@two_cpus
@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(stage: Stage, shell: str, task: int, case: str) -> None:
    """With the planner at hand too: a user's own choice, a doubt and the batch step keep the mask they have."""
    lay_out(stage, python=PYTHON)
    os.sched_setaffinity(task, {0})
    ran = run(stage, shell, {**step(task, 0), **LEFT_ALONE[case]})
    assert ran.rc == 0
    assert os.sched_getaffinity(task) == {0}
    assert "OMP_NUM_THREADS" not in exports(ran)


@two_cpus
@pytest.mark.parametrize(
    "broken", ["no topology", "cut topology", "foreign plan", "cut plan", "hanging planner", "failing planner"]
)
def test_broken_files_leave_slurms_mask(stage: Stage, shell: str, task: int, broken: str) -> None:
    lay_out(stage)
    os.sched_setaffinity(task, {0})
    ready = stage.run / "plans/2"
    if broken == "no topology":
        (stage.run / "topology").unlink()
    elif broken == "cut topology":
        (stage.run / "topology").write_text("1\tnode")
    elif broken == "foreign plan":
        ready.write_text(ready.read_text().replace("\t1\n", "\t4\n").replace("\t2\n", "\t8\n"))
    elif broken == "cut plan":
        ready.write_text(ready.read_text().splitlines(keepends=True)[0])
    else:
        ready.unlink()
        planner = stage.run / "python"
        planner.write_text("#!/bin/sh\n" + ("exec sleep 60\n" if broken == "hanging planner" else "echo 1 1; exit 3\n"))
        planner.chmod(0o755)
        stage.hooks_line(python="/run/fairlead/python")
    ran = run(stage, shell, step(task, 0))
    assert ran.rc == 0
    assert os.sched_getaffinity(task) == {0}
    assert exports(ran)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_task_that_has_gone_does_not_fail_the_hook(stage: Stage, shell: str) -> None:
    lay_out(stage)
    ran = run(stage, shell, step(4194000, 0))
    assert ran.rc == 0
    assert "OMP_NUM_THREADS" not in exports(ran)


def test_environment_of_a_batch_step(stage: Stage, shell: str) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, "SLURM_JOB_GPUS": "0,1"})
    assert exports(ran).keys() == {
        "CUDA_DEVICE_ORDER",
        "NCCL_DEBUG",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "FAIRLEAD_SET",
    }
    assert ran.out.count("\n") == 5


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu[001-004,7]", "gpu001"),
        ("n1,n2", "n1"),
        ("r[2-3]n[07,09-11]x,z", "r2n07x"),
        ("a-b.c-1", "a-b.c-1"),
        ("n[1-", None),
        ("$(id)[1-2]", None),
        ("", None),
    ],
)
def test_rendezvous(stage: Stage, shell: str, nodelist: str, host: str | None) -> None:
    lay_out(stage)
    env = {
        **STEP,
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_ID": "3",
    }
    said = exports(run(stage, shell, env))
    assert said.get("MASTER_ADDR") == host
    assert said["MASTER_PORT"] == str(20000 + (4711 + 131 * 3) % 10000)
    het = exports(run(stage, shell, {**env, "SLURM_HET_SIZE": "2"}))
    assert not {"MASTER_ADDR", "MASTER_PORT"} & het.keys()


def test_the_user_wins(stage: Stage, shell: str) -> None:
    lay_out(stage)
    assert run(stage, shell, {**JOB, "NCCL_DEBUG": "INFO", "CUDA_DEVICE_ORDER": ""}).out == ""


def test_what_srun_carried_over_is_worked_out_anew(stage: Stage, shell: str) -> None:
    lay_out(stage)
    two = {"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    batch = exports(run(stage, shell, {**JOB, **two}))
    assert batch["MASTER_ADDR"] == "n1"
    other = {**STEP, **batch, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[2-3]"}
    said = exports(run(stage, shell, other))
    assert said["MASTER_ADDR"] == "n2"
    assert "NCCL_DEBUG" not in said  # ours, and still right
    # One task: no rendezvous, and ours from the batch step goes.
    alone = run(stage, shell, {**STEP, **batch, "SLURM_STEP_NUM_TASKS": "1"})
    assert "unset MASTER_ADDR\n" in alone.out
    # Changed by the user, or taken away: the user's, also one step further down.
    changed = {**other, "MASTER_ADDR": "mine"}
    del changed["NCCL_DEBUG"]
    said = exports(run(stage, shell, changed))
    assert not {"MASTER_ADDR", "NCCL_DEBUG"} & said.keys()
    assert "FAIRLEAD_SET" not in said or "NCCL_DEBUG:" in said["FAIRLEAD_SET"]


@pytest.mark.parametrize("value", ["", "x", "NCCL_DEBUG", "NCCL_DEBUG:0", "$(id)", ",,::,", "NCCL_DEBUG:" + "9" * 500])
def test_hostile_fairlead_set(stage: Stage, shell: str, value: str) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, "FAIRLEAD_SET": value, "NCCL_DEBUG": "mine"})
    assert ran.rc == 0
    assert "NCCL_DEBUG" not in exports(ran)


def test_skip_and_minimal(stage: Stage, shell: str) -> None:
    lay_out(stage)
    assert "NCCL_DEBUG" not in exports(run(stage, shell, {**JOB, "FAIRLEAD_SKIP": "PATH,NCCL_DEBUG"}))
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "minimal"})).keys() == {"CUDA_DEVICE_ORDER", "FAIRLEAD_SET"}


@pytest.mark.parametrize("wish", [{"FAIRLEAD_PROFILE": "fast"}, {"FAIRLEAD_SKIP": "A;B"}, {"FAIRLEAD_SKIP": "$(id)"}])
def test_malformed_wishes_mean_off_and_one_warning(stage: Stage, shell: str, wish: dict[str, str]) -> None:
    lay_out(stage)
    ran = run(stage, shell, {**JOB, **wish})
    assert ran.rc == 0
    assert ran.out.startswith("print fairlead: FAIRLEAD_")
    assert ran.out.count("\n") == 1
    assert run(stage, shell, {**STEP, **wish}).out == ""


def test_off_by_comment_and_by_the_site(stage: Stage, shell: str) -> None:
    lay_out(stage)
    record = stage.run / "jobs/4711"
    record.write_text("1\trunning\t65534\t0,1\t100\t-\toff\t.\n")
    assert run(stage, shell, JOB).out == ""
    record.write_text("1\trunning\t65534\t0,1\t100\t-\toff")  # incomplete: ignored
    assert exports(run(stage, shell, JOB))
    record.unlink()
    stage.hooks_line(profile="off")
    assert run(stage, shell, JOB).out == ""
    assert exports(run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "full"}))
    (stage.etc / "disabled").touch()
    assert run(stage, shell, {**JOB, "FAIRLEAD_PROFILE": "full"}).out == ""


@pytest.mark.parametrize("end", ["", "CUDA_DEVICE_ORDER\talways\tPCI_BUS_ID\tmin"])
def test_all_lines_or_none(stage: Stage, shell: str, end: str) -> None:
    lay_out(stage)
    (stage.run / "env").write_text("NCCL_DEBUG\talways\tWARN\tfull\n" + end)
    assert run(stage, shell, JOB).out == ""
    (stage.run / "env").write_text("NCCL_DEBUG\talways\tWARN\tfull\nBAD NAME\talways\tx\tfull\n.\n")
    assert run(stage, shell, JOB).out == ""
    (stage.run / "env").unlink()
    assert (run(stage, shell, JOB).rc, run(stage, shell, JOB).out) == (0, "")


def test_nothing_installed(stage: Stage, shell: str) -> None:
    stage.inside("rm", "-rf", "/run/fairlead", "/etc/fairlead")
    assert run(stage, shell, {**STEP, "SLURM_STEP_GPUS": "0,1"}) == Ran(0, "", "")


@pytest.mark.parametrize("disabled", [False, True])
def test_the_sites_own_task_prolog(stage: Stage, shell: str, disabled: bool) -> None:
    site = stage.run / "site"
    site.write_text('#!/bin/sh\nprintf "export NCCL_DEBUG=TRACE\\nprint hello x3\\nexport A=$USERS"\nexit ${SITE_STATUS:-0}\n')
    site.chmod(0o755)
    lay_out(stage, site="/run/fairlead/site")
    if disabled:
        (stage.etc / "disabled").touch()
    ran = run(stage, shell, {**JOB, "USERS": "value"})
    assert ran.rc == 0
    assert ran.out.startswith("export NCCL_DEBUG=TRACE\nprint hello x3\nexport A=value")
    assert ran.out.count("NCCL_DEBUG=") == 1
    assert ("export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in ran.out) is not disabled
    failed = run(stage, shell, {**JOB, "SITE_STATUS": "7"})
    assert failed.rc == 7
    assert failed.out.startswith("export NCCL_DEBUG=TRACE\nprint hello x3\n")
    assert "CUDA_DEVICE_ORDER" not in failed.out
    site.unlink()
    assert run(stage, shell, JOB).rc == 0


def test_no_fork_where_nothing_is_bound(stage: Stage, shell: str) -> None:
    lay_out(stage)
    env = {**JOB, "SLURM_JOB_GPUS": "0,1", "SLURM_NTASKS": "4"}
    expected = stage.start(shell, "task-prolog", env)
    assert exports(expected)
    assert stage.start(shell, "task-prolog", env, no_fork=True) == expected


def test_the_shells_sum_is_pythons(stage: Stage, shell: str) -> None:
    lay_out(stage)
    odd = "".join(map(chr, range(0x21, 0x7F)))
    (stage.run / "env").write_text(f"NCCL_DEBUG\talways\t{odd}\tfull\n.\n")
    said = exports(run(stage, shell, JOB))
    assert said == {"NCCL_DEBUG": odd, "FAIRLEAD_SET": f"NCCL_DEBUG:{value_sum(odd)}"}


NASTY = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=24)
NAMES = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_LOCALID",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_STEP_GPUS",
    "SLURM_GTIDS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "CUDA_VISIBLE_DEVICES",
    "FAIRLEAD_SET",
    "FAIRLEAD_SKIP",
    "FAIRLEAD_PROFILE",
    "NCCL_DEBUG",
    "IFS",
    "PATH",
    "ENV",
    "fl_site",
    "fl_lines",
]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(env=st.dictionaries(st.sampled_from(NAMES), NASTY, max_size=6), shell=st.sampled_from(list(SHELLS)))
def test_hostile_environments(stage: Stage, env: dict[str, str], shell: str) -> None:
    """Whatever the user's environment holds: status 0, and nothing printed but our own lines. The pid is never a real one."""
    if not (stage.run / "env").exists():
        lay_out(stage, python="/nonexistent")
    ran = run(stage, shell, {**step(4194001, 0), **env})
    assert ran.rc == 0
    for line in ran.out.splitlines():
        assert line.startswith(("export ", "unset ", "print fairlead: ")), line
        assert "uid=" not in line


def test_hook_files_are_executable() -> None:
    for name in ("prolog", "epilog", "health-check", "task-prolog"):
        assert (HOOKS / name).stat().st_mode & 0o777 == 0o755
        assert (HOOKS / name).read_text().startswith("#!/bin/sh\n")


@two_cpus
def test_the_planner_of_an_installed_release(stage: Stage, task: int) -> None:
    """As provisioning lays it out: hooks in a folder of their own, plan.py in the release's environment only."""
    base = os.path.realpath(PYTHON)
    version = subprocess.run([base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
    site = stage.run / f"release/lib/python{version.stdout.strip()}/site-packages/fairlead/topology"
    site.mkdir(parents=True)
    (stage.run / "release/bin").mkdir()
    (stage.run / "release/bin/python").symlink_to(base)
    (stage.run / "release/pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\n")
    shutil.copy(HOOKS.parent / "agent/fairlead/topology/plan.py", site)
    (stage.run / "hooks").mkdir()
    for name in ("task-prolog", "bind-plan"):
        shutil.copy(HOOKS / name, stage.run / "hooks")
    lay_out(stage, python="/run/fairlead/release/bin/python")
    shutil.rmtree(stage.run / "plans")
    os.sched_setaffinity(task, {0})
    ran = stage.start("dash", "/run/fairlead/hooks/task-prolog", step(task, 0), as_nobody=True)
    assert ran.rc == 0
    assert os.sched_getaffinity(task) == {1}
