"""The task prolog binds: real affinity of a real process on this machine's CPUs."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS, Ran, Stage
from tests.hooks.steps import PYTHON, exports, lay_out, run, step, two_cpus
from tests.topology.build import hgx
from tests.topology.test_mig_binding import divided

pytestmark = pytest.mark.root


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
def test_ready_plan_puts_the_task_beside_its_gpu(stage: Stage, shell: str, task: int, local: int) -> None:
    lay_out(stage)
    os.sched_setaffinity(task, {local})
    ran = run(stage, shell, step(task, local))
    assert (ran.rc, ran.err) == (0, "")
    assert os.sched_getaffinity(task) == {1 - local}
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


def bound(stage: Stage, shell: str, environment: dict[str, str], task: int, cpu: int) -> Ran:
    """The run of the task prolog that has bound the task to this CPU. A busy machine may overrun the 2 s that the planner has:
    then the task is left as it is, and the task prolog is run again."""
    for _ in range(10):
        ran = run(stage, shell, environment)
        assert (ran.rc, ran.err) == (0, "")
        if os.sched_getaffinity(task) == {cpu}:
            break
    assert os.sched_getaffinity(task) == {cpu}
    return ran


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
@pytest.mark.parametrize("way", ["planner", "swap"])
def test_without_a_ready_plan_the_same(stage: Stage, shell: str, task: int, local: int, way: str) -> None:
    lay_out(stage, python=PYTHON if way == "planner" else "-", clear=way == "swap")
    shutil.rmtree(stage.run / "plans")
    os.sched_setaffinity(task, {local})
    ran = bound(stage, shell, step(task, local), task, 1 - local)
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


def test_gpus_in_one_place_need_no_planner(stage: Stage, shell: str) -> None:
    """Four GPUs of one socket, part of a node: whoever gets which CPUs, the distance is the same; no process is started."""
    lay_out(stage)
    (stage.run / "topology").write_text(published_files.render_topology(hgx()))
    planner = stage.run / "python"
    planner.write_text("#!/bin/sh\n: >/run/fairlead/called\n")
    planner.chmod(0o755)
    stage.hooks_line(python="/run/fairlead/python")
    stage.inside("chmod", "0777", "/run/fairlead")
    masks = f"0x{1:016X},0x{1 << 56:016X}"  # of both sockets
    for gpus, called in (("0,1,2,3", False), ("5,7", False), ("3,4", True), ("0,10", False)):
        ran = run(stage, shell, step(4194000, 0, masks=masks, gpus=gpus))
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


def lay_out_instances(stage: Stage) -> None:
    """The node of lay_out with an instance on each GPU: MIG-0-0 near CPU 1, and MIG-1-0 near CPU 0."""
    lay_out(stage, python=PYTHON)
    node = divided(hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]), at=(0, 1))
    (stage.run / "topology").write_text(published_files.render_topology(node))
    shutil.rmtree(stage.run / "plans")


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
@pytest.mark.parametrize("visible", ["MIG-0-0,MIG-1-0", "MIG-1-1,MIG-0-1"])
def test_a_task_is_put_near_the_gpu_of_its_instance(stage: Stage, shell: str, task: int, local: int, visible: str) -> None:
    """The indices are those that Slurm 24.11 gave instances of a mixed node. Slurm's own order is right for the second list."""
    lay_out_instances(stage)
    swapped = visible.startswith("MIG-0-0")
    os.sched_setaffinity(task, {local})
    environment = step(task, local, gpus="6,8", CUDA_VISIBLE_DEVICES=visible)
    ran = bound(stage, shell, environment, task, 1 - local if swapped else local)
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
@pytest.mark.parametrize("gpus", ["3,5", "5,3", "3,4"])
def test_an_index_is_enough_where_gres_conf_lists_instances(stage: Stage, shell: str, task: int, local: int, gpus: str) -> None:
    """Index 3 is an instance near CPU 1, and 5 one near CPU 0. Nothing is known of index 4."""
    lay_out_instances(stage)
    node = divided(hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]), at=(0, 1))
    listed = published_files.ListedDevices({3: "MIG-0-1", 5: "MIG-1-0"}, 1.0)
    (stage.run / "topology").write_text(published_files.render_topology(node, listed=listed))
    os.sched_setaffinity(task, {local})
    environment = step(task, local, gpus=gpus, CUDA_VISIBLE_DEVICES="0,1")
    ran = bound(stage, shell, environment, task, 1 - local if gpus == "3,5" else local)
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


@two_cpus
@pytest.mark.parametrize(
    ("gpus", "visible"),
    [
        ("0,1", "0,1"), ("6,8", "MIG-0-0,MIG-9-9"), ("6,8", "MIG-0-0,1"), ("6,8", "MIG-0-0,MIG-0-0"), ("6,8", "MIG-0-0"),
        ("6,8", "MIG-0-0,$(touch /tmp/x)"), ("0,1", "GPU-00000000,GPU-00000001"), ("0,1", ""),
    ],
)  # fmt: skip
def test_on_a_node_with_mig_anything_but_known_uuids_stays(stage: Stage, shell: str, task: int, gpus: str, visible: str) -> None:
    """Indices there may be those of instances (MultipleFiles). A user may have changed CUDA_VISIBLE_DEVICES."""
    lay_out_instances(stage)
    os.sched_setaffinity(task, {0})
    ran = run(stage, shell, step(task, 0, gpus=gpus, CUDA_VISIBLE_DEVICES=visible))
    assert (ran.rc, ran.err) == (0, "")
    assert os.sched_getaffinity(task) == {0}
    assert exports(ran)["OMP_NUM_THREADS"] == "1"


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
    "parts of GPUs (MIG)": {"CUDA_VISIBLE_DEVICES": "MIG-1d0f7a5e-0,MIG-1d0f7a5e-1"},
    "fewer GPUs than the step has": {"SLURM_GPUS_ON_NODE": "4"},
    "tres-per-task": {"SLURM_TRES_PER_TASK": "cpu=1,gres/gpu=1"},
    "batch step": {"SLURM_STEP_ID": "-5"},
    "batch step by number": {"SLURM_STEP_ID": "4294967291"},
    "hostile local id": {"SLURM_LOCALID": "a[$(id)]"},
    "octal local id": {"SLURM_LOCALID": "08"},
    "off": {"FAIRLEAD_PROFILE": "off"},
    "marked as the user's by cli_filter or SPANK": {"FAIRLEAD_CPU_BIND": "user"},
    "skipped": {"FAIRLEAD_SKIP": "NCCL_DEBUG,CPUS"},
    "malformed profile": {"FAIRLEAD_PROFILE": "$(id)"},
}


#: The CPUs stay as they are, and threads are counted by the mask that Slurm assigned.
OWN_CPU_SETS = {
    "typed in another order",
    "a mask outside the node",
    "a GPU that is not there",
    "a GPU for each task",
    "gpu-bind",
    "GPUs hidden by task",
    "parts of GPUs (MIG)",
    "fewer GPUs than the step has",
    "tres-per-task",
    "marked as the user's by cli_filter or SPANK",
    "skipped",
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
    own = {exports(ran).get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    assert own == {"1" if case in OWN_CPU_SETS else None}


@two_cpus
@pytest.mark.parametrize(
    "broken", ["no topology", "cut topology", "foreign plan", "cut plan", "hanging planner", "failing planner"]
)
def test_broken_files_leave_slurms_mask(stage: Stage, shell: str, task: int, broken: str) -> None:
    lay_out(stage, clear=False)
    os.sched_setaffinity(task, {0})
    ready = stage.run / "plans/2.ready"
    told = ready.read_text()
    assert told == "fl_ready='0,1 1 0:2 1:1'\n"
    ready.unlink()
    if broken == "no topology":
        (stage.run / "topology").unlink()
    elif broken == "cut topology":
        (stage.run / "topology").write_text("1\tnode")
    elif broken == "foreign plan":
        ready.write_text(told.replace("0:2 1:1", "0:4 1:8"))
    elif broken == "cut plan":
        ready.write_text(told.removesuffix(" 1:1'\n") + "'\n")
    else:
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
    assert exports(ran)["OMP_NUM_THREADS"] == "1"  # by the mask that it had


@two_cpus
def test_an_image_without_taskset(stage: Stage, shell: str, task: int) -> None:
    """As inside a container: the environment is set, the CPUs stay."""
    lay_out(stage)
    os.sched_setaffinity(task, {0})
    stage.inside("mount", "--bind", "/dev/null", "/usr/bin/taskset")
    try:
        ran = run(stage, shell, step(task, 0))
    finally:
        stage.inside("umount", "/usr/bin/taskset")
    assert (ran.rc, ran.err) == (0, "")
    assert os.sched_getaffinity(task) == {0}
    assert exports(ran)["OMP_NUM_THREADS"] == "1" and exports(ran)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@two_cpus
def test_the_planner_of_an_installed_release(stage: Stage, task: int) -> None:
    """As provisioning lays it out: hooks in a folder of their own, the rules in the release's environment only."""
    base = os.path.realpath(PYTHON)
    version = subprocess.run([base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
    site = stage.run / f"release/lib/python{version.stdout.strip()}/site-packages/fairlead"
    (stage.run / "release/bin").mkdir(parents=True)
    (stage.run / "release/bin/python").symlink_to(base)
    (stage.run / "release/pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\n")
    for name in ("", "model/", "topology/", "topology/binding/"):
        (site / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(HOOKS.parent / f"agent/fairlead/{name}__init__.py", site / name)
    for name in ("model/cpulist.py", "topology/binding/binding_plan.py", "topology/binding/transport.py"):
        shutil.copy(HOOKS.parent / "agent/fairlead" / name, site / name)
    (stage.run / "hooks").mkdir()
    for name in ("task-prolog", "bind-plan"):
        shutil.copy(HOOKS / name, stage.run / "hooks")
    lay_out(stage, python="/run/fairlead/release/bin/python", clear=False)
    shutil.rmtree(stage.run / "plans")
    os.sched_setaffinity(task, {0})
    ran = stage.start("dash", "/run/fairlead/hooks/task-prolog", step(task, 0), as_nobody=True)
    assert ran.rc == 0
    assert os.sched_getaffinity(task) == {1}
