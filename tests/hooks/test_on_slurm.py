"""The task prolog under real Slurm of every release: what the steps' affinity is afterwards, read back in the tasks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairlead.jobenv.environment_text import render
from fairlead.model.facts import Missing
from fairlead.topology.binding import binding_plan, published_files
from tests.hooks.stage import HOOKS
from tests.hooks.steps import for_planner
from tests.lab.cluster import Cluster
from tests.lab.cpus import v1_controllers
from tests.lab.roots import SUITES
from tests.slurm.conftest import running
from tests.topology.build import hgx

pytestmark = [pytest.mark.root, pytest.mark.slurm]
TASK = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") ${OMP_NUM_THREADS:--} ${FAIRLEAD_SET:+set}"'
CYCLIC = ["0-13", "56-69", "14-27", "70-83", "28-41", "84-97", "42-55", "98-111"]
NEAR = ["0-13", "14-27", "28-41", "42-55", "56-69", "70-83", "84-97", "98-111"]
#: What becomes of CYCLIC: who is near keeps the CPU set, the others swap.
PERMUTED = ["0-13", "28-41", "14-27", "42-55", "56-69", "84-97", "70-83", "98-111"]
PACKAGE = HOOKS.parent / "agent" / "fairlead"


def lay_out(
    cluster: Cluster,
    name: str,
    node: object,
    python: str = "-",
    listed: published_files.ListedDevices = published_files.NOT_LISTED,
) -> None:
    dirs = cluster.node_dirs(name)
    from fairlead.model.facts import Node

    assert isinstance(node, Node)
    (dirs.run / "jobs").mkdir(exist_ok=True)
    (dirs.run / "plans").mkdir(exist_ok=True)
    (dirs.run / "topology").write_text(published_files.render_topology(node, listed=listed))
    for file, text in published_files.plan_files(node).items():
        (dirs.run / "plans" / file).write_text(text)
    (dirs.run / "env").write_text(render())
    (dirs.etc / "hooks").write_text(f"1\tallow\tfull\t-\t{python}\n")


def tasks(cluster: Cluster, node: str, *options: str, script: str = TASK, **env: str) -> dict[int, list[str]]:
    """srun's tasks: local id -> [CPUs, OMP_NUM_THREADS, "set"]."""
    argv = ["/usr/bin/env", *(f"{k}={v}" for k, v in env.items()), "/usr/bin/srun", "-w", node, *options]
    said = cluster.run([*argv, "/bin/sh", "-c", script], timeout=200).stdout
    return {int(m[1]): m[2].split() for m in re.finditer(r"^(\d+) (.*)$", said, re.MULTILINE)}


def said(cluster: Cluster, job: int) -> list[str]:
    """The lines of a job's tasks: words and CPUs, not what srun says where it has to wait for a step."""
    return [line for line in cluster.output(job).splitlines() if re.fullmatch(r"\w+( [\d,-]+)+", line)]


def cpus(found: dict[int, list[str]]) -> list[str]:
    return [found[rank][0] for rank in sorted(found)]


@pytest.fixture(scope="module", params=list(SUITES))
def simulated(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two sockets of 56 simulated cores, 8 GPUs."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    cluster = Cluster(request.param, nodes=1, simulated=True, prolog=HOOKS / "prolog", task_prolog=HOOKS / "task-prolog")
    with running(cluster) as up:
        lay_out(up, "n1", hgx())
        yield up


def test_the_cyclic_default_is_put_right(simulated: Cluster) -> None:
    found = tasks(simulated, "n1", "-n8", "-c14", "--gres=gpu:8")
    assert cpus(found) == PERMUTED
    assert {tuple(row[1:]) for row in found.values()} == {("14", "set")}


def typed(order: list[str]) -> str:
    return ",".join(f"0x{(((1 << 14) - 1) << int(c.split('-')[0])):028X}" for c in order)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--cpu-bind=none",), ["0-111"] * 8),
        (("--cpu-bind=map_cpu:0,56,1,57,2,58,3,59",), ["0", "56", "1", "57", "2", "58", "3", "59"]),
        # Masks exactly as Slurm writes its own, in its own order: typed by the user, so they stay.
        ((f"--cpu-bind=mask_cpu:{typed(CYCLIC)}",), CYCLIC),
        ((f"--cpu-bind=mask_cpu:{typed(NEAR[::-1])}",), NEAR[::-1]),
        (("--gpus-per-task=1",), CYCLIC),
        (("--gpu-bind=closest",), CYCLIC),
        (("--gpu-bind=map_gpu:7,6,5,4,3,2,1,0",), CYCLIC),
    ],
)
def test_the_users_binding_stays(simulated: Cluster, options: tuple[str, ...], expected: list[str]) -> None:
    gres = () if "--gpus-per-task=1" in options else ("--gres=gpu:8",)
    found = tasks(simulated, "n1", "-n8", "-c14", *gres, *options)
    assert cpus(found) == expected
    assert {row[1] for row in found.values()} == {
        "14" if options[0].startswith("--gpu") else "-"
    }  # threads by the CPU set that Slurm assigned


def test_off(simulated: Cluster) -> None:
    """By the environment, and by the comment, which only the prolog sees."""
    options = ("-n8", "-c14", "--gres=gpu:8")
    for found in (
        tasks(simulated, "n1", *options, FAIRLEAD_PROFILE="off"),
        tasks(simulated, "n1", *options, "--comment=my run, fairlead:off"),
    ):
        assert cpus(found) == CYCLIC
        assert {tuple(row[1:]) for row in found.values()} == {("-",)}


def test_cpu_steps_and_single_tasks_stay(simulated: Cluster) -> None:
    assert cpus(tasks(simulated, "n1", "-n8", "-c14")) == CYCLIC
    assert cpus(tasks(simulated, "n1", "-n1", "-c112", "--gres=gpu:8")) == ["0-111"]


def test_batch_job_with_a_step(simulated: Cluster) -> None:
    """The batch step gets defaults and keeps its CPUs; a plain srun in it is bound."""
    script = (
        f"#!/bin/sh\ntaskset -cp $$ | sed 's/.*: /batch /'\necho \"order $CUDA_DEVICE_ORDER\"\nsrun -n8 -c14 sh -c '{TASK}'\n"
    )
    job = simulated.submit(script, "-n8", "-c14", "--gres=gpu:8", "-o", "/tmp/out-%j")
    simulated.wait_job(job, "COMPLETED")
    said = simulated.run(["/bin/cat", f"/tmp/out-{job}"], timeout=20).stdout
    assert "batch 0-111\n" in said
    assert "order PCI_BUS_ID\n" in said
    found = {int(m[1]): m[2].split() for m in re.finditer(r"^(\d+) (.*)$", said, re.MULTILINE)}
    assert cpus(found) == PERMUTED


def test_a_job_that_a_step_has_submitted(simulated: Cluster) -> None:
    """Its batch step inherits the step's id, but has a local id of its own, 0: that is how it is told from a step's tasks."""
    shown = "nested $SLURM_LOCALID $SLURM_PROCID ${SLURM_STEP_ID-none} ${OMP_NUM_THREADS-unset} $(taskset -cp $$ | sed 's/.* //')"
    inner = f"cat >/tmp/inner.sh <<'END'\n#!/bin/sh\necho {shown}\nEND\n"
    options = ("-n8", "-c14", "--gres=gpu:8", "-o")
    submit = f'if [ "$SLURM_LOCALID" = 3 ]; then sbatch --parsable {" ".join(options)} /tmp/inner.out /tmp/inner.sh; fi'
    job = simulated.submit(f"#!/bin/sh\n{inner}srun -n8 -c14 sh -c '{submit}'\n", *options, "/tmp/outer.out")
    simulated.wait_job(job, "COMPLETED")
    nested = simulated.run(["/bin/cat", "/tmp/outer.out"], timeout=20).stdout
    simulated.wait_job(int(nested), "COMPLETED")
    said = simulated.run(["/bin/cat", "/tmp/inner.out"], timeout=20).stdout
    assert re.fullmatch(r"nested 0 0 \S+ unset 0-111\n", said), said


def test_a_prolog_that_refuses_sends_the_job_away(simulated: Cluster) -> None:
    dirs = simulated.node_dirs("n1")
    verdict = dirs.run / "verdict"
    verdict.write_text("1\tdrain\t99999999999\t7\tGPU 0000:1b:00.0 fell off the bus\n")
    try:
        job = simulated.submit("#!/bin/sh\necho ran\n", "-n1", "-o", "/tmp/out-%j")
        deadline = time.monotonic() + 90
        while "refused" not in (dirs.run / "prolog.log").read_text() if (dirs.run / "prolog.log").exists() else True:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (dirs.run / "jobs" / str(job)).read_text().split("\t")[1] == "refused"
        while "DRAIN" not in simulated.scontrol("-o", "show", "node", "n1"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        verdict.unlink()
        simulated.run(["/usr/bin/scancel", str(job)], check=False)
        simulated.scontrol("update", "nodename=n1", "state=resume", check=False)


def real_cpusets() -> None:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    if not {"cpuset"} <= set(v1_controllers()) or sorted(os.sched_getaffinity(0))[:2] != [0, 1]:
        pytest.skip("needs CPUs 0 and 1 and a v1 cpuset controller")


@pytest.fixture(scope="module", params=list(SUITES))
def real(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """This machine's own two CPUs as two sockets, steps in real cpusets; GPU 0 is on socket 1, GPU 1 on socket 0."""
    real_cpusets()
    inside = f"/run/lab-hooks{PACKAGE}"
    hook, site = HOOKS / "task-prolog", "TaskPluginParam=autobind=cores"
    cluster = Cluster(request.param, nodes=0, real=True, cgroup=True, task_prolog=hook, binds={PACKAGE: inside}, extra_conf=site)
    with running(cluster) as up:
        lay_out(up, "r1", hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]), python="/usr/bin/python3")
        yield up


def test_real_cpus_by_the_ready_plan(real: Cluster) -> None:
    found = tasks(real, "r1", "-n2", "-c1", "--gres=gpu:2")
    assert cpus(found) == ["1", "0"]
    assert {row[1] for row in found.values()} == {"1"}


@pytest.mark.parametrize("way", ["planner", "swap"])
def test_real_cpus_without_a_ready_plan(real: Cluster, way: str) -> None:
    dirs = real.node_dirs("r1")
    topology = (dirs.run / "topology").read_text()
    if way == "planner":
        (dirs.run / "topology").write_text(for_planner(topology))
    else:
        (dirs.etc / "hooks").write_text("1\tallow\tfull\t-\t-\n")
    for path in (dirs.run / "plans").iterdir():
        path.unlink()
    try:
        found = tasks(real, "r1", "-n2", "-c1", "--gres=gpu:2")
        assert cpus(found) == ["1", "0"]
        assert {row[1] for row in found.values()} == {"1"}
    finally:
        lay_out(real, "r1", hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]), python="/usr/bin/python3")


def test_real_gpu_bindings_of_the_user_stay(real: Cluster) -> None:
    for option in ("--gpu-bind=closest", "--gpu-bind=map_gpu:0,1", "--gpu-bind=single:1", "--gpus-per-task=1"):
        gres = () if option == "--gpus-per-task=1" else ("--gres=gpu:2",)
        assert cpus(tasks(real, "r1", "-n2", "-c1", *gres, option)) == ["0", "1"], option


def test_real_status_agrees(real: Cluster) -> None:
    """What the kernel says of the task itself, and of a child of it."""
    script = 'echo "$SLURM_LOCALID $(grep Cpus_allowed_list /proc/$$/status | cut -f2) $(sh -c "nproc")"'
    found = tasks(real, "r1", "-n2", "-c1", "--gres=gpu:2", script=script)
    assert found == {0: ["1", "1"], 1: ["0", "1"]}


def test_real_one_core_mask_on_a_whole_node(real: Cluster) -> None:
    """In a real cpuset: a single task that has the node gets both cores; one that asked for one keeps it; --exact has one."""
    look = 'echo "$STEP $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
    steps = (("wide", ""), ("asked", "-c1"), ("exact", "--exact"))
    script = "#!/bin/sh\n" + "".join(f"STEP={name} srun {option} sh -c '{look}'\n" for name, option in steps)
    job = real.submit(script, "-w", "r1", "-n1", "--exclusive", "--gres=gpu:2", "--error=/dev/null")  # srun may have to wait
    real.wait_job(job, "COMPLETED")
    assert real.output(job) == "wide 0-1\nasked 0\nexact 0\n"


def test_real_steps_that_overlap_are_not_widened_over_one_another(real: Cluster) -> None:
    """Beside an earlier step a step without -c keeps its one core, alone it gets both; of steps that start together at most
    one gets both."""
    look = 'echo "$STEP $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
    wait = "n=0; while [ ! -e $0 ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n+1)); done"
    script = f"""#!/bin/sh
cd /tmp && rm -f up go up-*
STEP=first srun --overlap sh -c '{look}; : >up; {wait.replace("$0", "go")}' &
{wait.replace("$0", "up")}
STEP=beside srun --overlap sh -c '{look}'
STEP=cpus srun --overlap --gres=none sh -c '{look}'
: >go
wait
STEP=alone srun --overlap sh -c '{look}'
for round in 1 2 3; do
	STEP=$round srun --overlap sh -c '{look}; : >up-{{}}$round-a; {wait.replace("$0", "up-$STEP-b")}' &
	STEP=$round srun --overlap sh -c '{look}; : >up-{{}}$round-b; {wait.replace("$0", "up-$STEP-a")}' &
	wait
done
""".replace("{}$round", "$STEP")
    job = real.submit(script, "-w", "r1", "-n1", "--exclusive", "--gres=gpu:2", user="root")
    assert real.wait_job(job) == "COMPLETED", real.output(job)
    found = [line.split() for line in said(real, job)]
    assert found[:4] == [["first", "0-1"], ["beside", "0"], ["cpus", "0"], ["alone", "0-1"]]
    assert [step for step, _ in found[4:]] == ["1", "1", "2", "2", "3", "3"]
    for first, second in zip(found[4::2], found[5::2], strict=True):
        assert sorted([first[1], second[1]]) in (["0", "0-1"], ["0", "0"])


ONE_OF_ALL = ["trixie", *(pytest.param(s, marks=pytest.mark.slow) for s in SUITES if s != "trixie")]


@pytest.mark.parametrize("suite", ONE_OF_ALL)
def test_specialised_cores_stay_the_systems(suite: str) -> None:
    """CoreSpecCount on real cpusets: a job with the whole node is never bound to the core that Slurm keeps from it, and where it
    gave it up (--core-spec=0) the CPU sets are assigned as on any node."""
    real_cpusets()
    hook, inside = HOOKS / "task-prolog", f"/run/lab-hooks{PACKAGE}"
    site = "TaskPluginParam=autobind=cores\nAllowSpecResourcesUsage=1"
    cluster = Cluster(suite, nodes=0, real=True, cgroup=True, task_prolog=hook, binds={PACKAGE: inside}, extra_conf=site)
    cluster.slurm_nodes = tuple(replace(node, core_spec=1) for node in cluster.slurm_nodes)
    look = 'echo "$STEP $SLURM_LOCALID $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
    script = f"#!/bin/sh\nSTEP=one srun -n1 sh -c '{look}'\nSTEP=two srun -n2 --overcommit sh -c '{look}'\n"
    with running(cluster) as up:
        lay_out(up, "r1", hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]), python="/usr/bin/python3")
        found = []
        for options in (("-n1",), ("-n1", "--core-spec=1"), ("-n2", "--core-spec=0")):
            job = up.submit(script, "-w", "r1", "--exclusive", "--gres=gpu:2", *options, user="root")
            assert up.wait_job(job) == "COMPLETED", up.output(job)
            found.append(sorted(said(up, job)))
    assert found[0] == found[1] == ["one 0 0", "two 0 0", "two 1 0"]
    assert found[2] == ["one 0 0-1", "two 0 1", "two 1 0"]


def test_parts_of_gpus_are_left_alone() -> None:
    """MIG without NVML: four instances of two GPUs (gres.conf(5), MultipleFiles). Slurm numbers them 0 to 3, and what a task sees
    looks like whole GPUs; only the published topology tells. Instances 0 and 1 are both of GPU 0."""
    real_cpusets()
    hook, inside = HOOKS / "task-prolog", f"/run/lab-hooks{PACKAGE}"
    lines = [f"NodeName=r1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia{i // 2},/dev/nvidia{2 + i}" for i in range(4)]
    files = {"/etc/slurm/gres.conf": "".join(f"{line}\n" for line in lines)}
    cluster = Cluster("trixie", nodes=0, real=True, cgroup=True, task_prolog=hook, binds={PACKAGE: inside}, files=files)
    cluster.slurm_nodes = tuple(replace(node, gpus=4, gpu_type="1g.10gb") for node in cluster.slurm_nodes)
    node = hgx(sockets=2, cores=1, gpus=2, numa=[1, 0])
    assert not isinstance(node.gpus, Missing)
    split = msgspec.structs.replace(node, gpus=tuple(msgspec.structs.replace(g, mig_current=True) for g in node.gpus))
    look = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS"'
    with running(cluster) as up:
        lay_out(up, "r1", split, python="/usr/bin/python3")
        found = tasks(up, "r1", "-n2", "-c1", "--gres=gpu:1g.10gb:2", script=look)
    assert found == {0: ["0", "0,1", "0,1"], 1: ["1", "0,1", "0,1"]}


@pytest.mark.parametrize("suite", ONE_OF_ALL)
def test_hardware_threads(suite: str, tmp_path: Path) -> None:
    """2 x 8 cores of two hardware threads: a task keeps as many cores, and as many threads of them, as Slurm gave it."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    tmp_path.chmod(0o755)
    (tmp_path / "cgroup/cpuset").mkdir(parents=True)
    for name in ("cpuset/cpuset.effective_cpus", "cpuset.cpus.effective"):  # v1, v2: tasks in the top group may use all
        (tmp_path / "cgroup" / name).write_text("0-31\n")
    binds: dict[str | Path, str] = {PACKAGE: f"/run/lab-hooks{PACKAGE}", tmp_path / "cgroup": "/sys/fs/cgroup"}
    hook = HOOKS / "task-prolog"
    starts = [0, 4, 2, 6, 8, 12, 10, 14]  # assigned in turn over the sockets: who is near keeps its CPU set, the others swap
    with running(Cluster(suite, nodes=1, simulated=True, cores=8, threads=2, task_prolog=hook, binds=binds)) as up:
        lay_out(up, "n1", hgx(cores=8, threads=2), python="/usr/bin/python3")

        def seen(*options: str) -> list[list[int]]:
            masks = [binding_plan.parse_cpu_set(mask) for mask in cpus(tasks(up, "n1", "-n8", "--gres=gpu:8", *options))]
            return [[cpu for cpu in range(32) if mask >> cpu & 1] for mask in masks]

        assert seen("-c4") == [[a, a + 1, a + 16, a + 17] for a in starts]
        assert seen("-c2", "--hint=nomultithread") == [[a, a + 1] for a in starts]
        # Slurm lets two tasks share a core: the planner swaps whole CPU sets.
        for count in (1, 3):
            off, on = (seen(f"-c{count}", f"--export=ALL,FAIRLEAD_PROFILE={profile}") for profile in ("off", "full"))
            assert sorted(on) == sorted(off) and off != on
            assert [{cpu % 16 // 8 for cpu in mask} for mask in on] == [{0}] * 4 + [{1}] * 4


@pytest.mark.parametrize("suite", ONE_OF_ALL)
def test_a_job_that_is_refused_for_missing_verdicts_does_not_drain_the_cluster(suite: str) -> None:
    """on_stale = refuse and no agent anywhere: the job drains three nodes, with nohold_on_prolog_fail, and runs on the next."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    with running(Cluster(suite, nodes=6, cores=4, prolog=HOOKS / "prolog", nohold=True)) as cluster:
        for name in cluster.node_names:
            dirs = cluster.node_dirs(name)
            (dirs.run / "jobs").mkdir(exist_ok=True)
            (dirs.etc / "hooks").write_text("1\trefuse\tfull\t-\t-\n")
        job = cluster.submit("#!/bin/sh\nexec sleep 60\n", "-n1", "--exclusive")
        deadline = time.monotonic() + 150
        said = [cluster.node_dirs(name).run / "prolog.log" for name in cluster.node_names]
        while not any(log.exists() and "\tallowed\t" in log.read_text() for log in said):
            assert time.monotonic() < deadline, cluster.scontrol("show", "job", str(job))
            cluster.scontrol("update", f"jobid={job}", "starttime=now", check=False)  # not after Slurm's two minutes
            time.sleep(0.2)
        cluster.wait_job(job, "RUNNING")
        assert " Restarts=3 " in cluster.scontrol("-o", "show", "job", str(job))
        states = {n: cluster.scontrol("-o", "show", "node", n) for n in cluster.node_names}
        assert sum("Prolog error" in text for text in states.values()) == 3
        cluster.run(["/usr/bin/scancel", str(job)])
