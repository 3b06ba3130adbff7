"""Steps that make binding hard, under real Slurm: one-core masks, steps side by side, GPUs for each task, parts of jobs.

n1 has 2 sockets of 56 pretended cores (fakeaff.c) and 8 GPUs. What the kernel says of those CPUs is pretended too: the list of
online CPUs, and the cpuset of a step (a real v1 group that slurmd is in; its CPUs are read from a file of the test's).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.topology.binding import binding_plan
from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import CYCLIC, NEAR, PACKAGE, cpus, lay_out, tasks
from tests.lab.cluster import Cluster
from tests.lab.cpus import make, v1_controllers
from tests.lab.roots import SUITES
from tests.slurm.conftest import running
from tests.topology.build import hgx

EVERY = pytest.mark.parametrize("site", list(SUITES), indirect=True)
ONE_RELEASE = pytest.mark.parametrize("site", ["trixie"], indirect=True)
pytestmark = [pytest.mark.root, pytest.mark.slurm]
#: step, local id, CPUs, OMP_NUM_THREADS, visible GPUs
TASK = 'echo "${STEP:-s} $SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") ${OMP_NUM_THREADS:--} ${CUDA_VISIBLE_DEVICES:--}"'


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    cpuset: Path

    def seen(self, *options: str, **env: str) -> list[str]:
        return cpus(tasks(self.cluster, "n1", *options, **env))

    def batch(self, script: str, *options: str) -> dict[str, list[list[str]]]:
        """A job's steps by $STEP: the tasks' words in order of their local ids."""
        text = "#!/bin/sh\n" + script.replace("TASK", f"/bin/sh -c '{TASK}'") + "\n"
        job = self.cluster.submit(text, "-w", "n1", *options, user="root")
        assert self.cluster.wait_job(job) == "COMPLETED", self.cluster.output(job)
        return words(self.cluster.output(job))


def words(said: str) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for line in sorted(said.splitlines(), key=lambda text: [int(n) if n.isdigit() else -1 for n in text.split()[1:2]]):
        if re.match(r"\w+ \d+ [\d,-]+ ", line):
            found.setdefault(line.split()[0], []).append(line.split()[2:])
    return found


def isolated(masks: list[str]) -> int:
    """The union of CPU lists of which no two have a CPU in common."""
    union = 0
    for mask in map(binding_plan.parse_cpu_set, masks):
        assert not union & mask, masks
        union |= mask
    return union


def first(rows: list[list[str]]) -> list[str]:
    return [row[0] for row in rows]


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    if "cpuset" not in v1_controllers():
        pytest.skip("needs a v1 cpuset controller")
    folder = tmp_path_factory.mktemp("kernel")
    online = folder / "online"
    online.write_text("0-111\n")
    inside = f"/run/lab-hooks{PACKAGE}"
    cluster = Cluster(
        request.param,
        nodes=2,
        simulated=True,
        task_prolog=HOOKS / "task-prolog",
        extra_conf="TaskPluginParam=autobind=cores\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1",
        binds={PACKAGE: inside, online: "/sys/devices/system/cpu/online", folder / "cgroup": "/sys/fs/cgroup"},
    )
    group = v1_controllers()["cpuset"] / f"fairlead-lab-{cluster.name}"
    told = folder / "cgroup/cpuset" / group.name / "step_0"
    told.mkdir(parents=True)
    (told / "cpuset.effective_cpus").write_text("0-111\n")
    with running(cluster) as up:
        for made in (group, group / "step_0"):
            up.ledger.add("cgroup", made)
            make({"cpuset": made})
        for pid in up.pids("slurmd"):
            (group / "step_0/cgroup.procs").write_text(str(pid))
        lay_out(up, "n1", hgx(), python="/usr/bin/python3")
        lay_out(up, "n2", hgx(numa=[1] * 4 + [0] * 4), python="/usr/bin/python3")
        yield Site(up, told / "cpuset.effective_cpus")


WHOLE = ("--exclusive", "-n1", "--gres=gpu:8")
#: One core each, assigned in turn over the sockets: who is near keeps it, the others swap.
ONE = [str(cpu) for cpu in (0, 2, 1, 3, 56, 58, 57, 59)]


@EVERY
def test_one_core_on_a_whole_node_is_repaired_and_a_deliberate_one_is_not(site: Site) -> None:
    """The site binds to cores (TaskPluginParam): a step without -c gets one core for each task, whatever the job has."""
    steps = site.batch(
        """
        STEP=wide srun -n8 TASK; STEP=single srun -n1 TASK; STEP=hint srun -n2 --hint=nomultithread TASK
        STEP=asked srun -n8 -c1 TASK; STEP=askedone srun -n1 -c1 TASK
        STEP=exact srun -n8 --exact TASK; STEP=exactone srun -n1 --exact TASK
        STEP=none srun -n8 --cpu-bind=none TASK; STEP=map srun -n1 --cpu-bind=map_cpu:5 TASK
        STEP=mask srun -n1 --cpu-bind=mask_cpu:0x20 TASK; SLURM_CPU_BIND=map_cpu:5 STEP=variable srun -n1 TASK
        FAIRLEAD_PROFILE=off STEP=off srun -n1 TASK; FAIRLEAD_CPU_BIND=user STEP=marked srun -n1 TASK
        FAIRLEAD_SKIP=CPUS STEP=skip srun -n1 TASK; STEP=cpu srun -n1 --gres=none TASK
        STEP=part srun -n1 --gres=gpu:2 TASK; FAIRLEAD_PROFILE=off STEP=partoff srun -n1 --gres=gpu:2 TASK
        STEP=memory srun -n8 --mem-bind=local TASK; STEP=batch TASK
        """,
        *WHOLE,
    )
    assert steps.pop("part") == steps.pop("partoff")  # the releases differ; ours changes nothing
    assert {name: first(rows) for name, rows in steps.items()} == {
        "wide": NEAR,
        "single": ["0-111"],
        "hint": ["0-55", "56-111"],  # the nodes have one thread a core
        "asked": ONE,
        "askedone": ["0"],
        "exact": ONE,
        "exactone": ["0"],
        "none": ["0-111"] * 8,
        **{name: ["5"] for name in ("map", "mask", "variable")},
        **{name: ["0"] for name in ("off", "marked", "skip", "cpu")},
        "memory": NEAR,  # a memory policy is no choice of CPUs
        "batch": ["0-111"],
    }


@ONE_RELEASE
def test_cores_that_the_step_does_not_have_are_not_taken(site: Site) -> None:
    """Core specialisation: the step's cpuset lacks the last core, or one that Slurm assigned; the job has the whole node."""
    try:
        site.cpuset.write_text("0-110\n")
        assert [first(rows) for rows in site.batch("srun -n8 TASK; STEP=single srun -n1 TASK", *WHOLE).values()] == [ONE, ["0"]]
        site.cpuset.write_text("1-111\n")
        assert [first(rows) for rows in site.batch("srun -n8 -c4 TASK", *WHOLE).values()] == [
            [f"{cpu}-{cpu + 3}" for cpu in (0, 56, 4, 60, 8, 64, 12, 68)]
        ]
    finally:
        site.cpuset.write_text("0-111\n")


@EVERY
def test_steps_side_by_side_keep_their_cores(site: Site) -> None:
    """GPU steps and a CPU-only step at the same time, each task waiting for all: no CPU twice, each step on its own cores."""
    wait = "n=0; : >/tmp/side-$STEP-$SLURM_LOCALID; "
    wait += "while [ $(ls /tmp/side-* | wc -l) -lt 16 ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n+1)); done"
    steps = site.batch(
        f"""
        rm -f /tmp/side-*; cat >/tmp/side.sh <<'END'
{wait}; {TASK}
END
        for step in "a -n4 -c4 --gres=gpu:4" "b -n4 -c7 --gres=gpu:4" "cpu -n8 -c5 --gres=none"; do
            set -- $step; export STEP=$1; shift; srun --exact "$@" /bin/sh /tmp/side.sh &
        done; wait
        """,
        "-n16",
        "-c6",
        "--gres=gpu:8",
    )
    masks = {name: first(rows) for name, rows in steps.items()}
    assert [len(masks[name]) for name in ("a", "b", "cpu")] == [4, 4, 8]
    isolated([mask for step in masks.values() for mask in step])
    sizes = {name: {binding_plan.parse_cpu_set(mask).bit_count() for mask in step} for name, step in masks.items()}
    assert sizes == {"a": {4}, "b": {7}, "cpu": {5}}


@ONE_RELEASE
def test_another_jobs_cores_are_not_touched(site: Site) -> None:
    """Parts of a node, with holes: what a job's tasks have together is what slurmctld says the job has."""
    fill = site.cluster.submit("#!/bin/sh\nexec sleep 300\n", "-w", "n1", "-n3", "-c5", user="root")
    try:
        site.cluster.wait_job(fill, "RUNNING")
        for options in (("-n8", "-c9", "--gres=gpu:8"), ("-n3", "-c20", "--gres=gpu:3"), ("-n5", "-c19", "--gres=gpu:7")):
            script = f"#!/bin/sh\nscontrol -o -d show job $SLURM_JOB_ID\nsrun -c$SLURM_CPUS_PER_TASK /bin/sh -c '{TASK}'\n"
            job = site.cluster.submit(script, "-w", "n1", "-N1", *options, user="root")
            assert site.cluster.wait_job(job) == "COMPLETED"
            said = site.cluster.output(job)
            given = re.search(r"CPU_IDs=(\S+)", said)
            assert given, said
            masks = first(words(said)["s"])
            assert {binding_plan.parse_cpu_set(mask).bit_count() for mask in masks} == {int(options[1][2:])}
            assert binding_plan.format_cpu_set(isolated(masks)) == given[1]
    finally:
        site.cluster.run(["/usr/bin/scancel", str(fill)])
        site.cluster.wait_job(fill)


@ONE_RELEASE
def test_nodes_with_different_topologies(site: Site) -> None:
    """n2's GPUs lie crosswise: each node's tasks follow that node's own topology, in one step."""
    where = TASK.replace("${STEP:-s}", "$SLURMD_NODENAME")
    options = ("-N2", "-n12", "-c14", "--gres=gpu:8", "--exclusive")
    job = site.cluster.submit(f"#!/bin/sh\nsrun -c14 -m block:cyclic /bin/sh -c '{where}'\n", *options, user="root")
    assert site.cluster.wait_job(job) == "COMPLETED", site.cluster.output(job)
    nodes = {name: first(rows) for name, rows in words(site.cluster.output(job)).items()}
    assert nodes == {"n1": [NEAR[i] for i in (0, 2, 1, 5, 4, 6)], "n2": [NEAR[i] for i in (5, 4, 6, 0, 2, 1)]}


@ONE_RELEASE
def test_array_tasks_and_parts_of_a_heterogeneous_job(site: Site) -> None:
    """Two array tasks share n1 at the same time; the parts of a heterogeneous job are on n1 and n2 (whose GPUs lie crosswise)."""
    row = TASK.replace("${STEP:-s}", "$SLURMD_NODENAME")
    wait = "n=0; : >/tmp/{0}-$SLURM_JOB_ID-$SLURM_PROCID; "
    wait += "while [ $(ls /tmp/{0}-* | wc -l) -lt 8 ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n+1)); done; "
    script = f"#!/bin/sh\nsrun -c10 /bin/sh -c '{wait.format('arr')}{row}'\n"
    options = ("-w", "n1", "-N1", "-n4", "-c10", "--gres=gpu:4")
    site.cluster.submit(script, *options, "--array=0-1", "-o", "/tmp/out-arr-%a", "--wait", user="root")
    said = [words(site.cluster.run(["/bin/cat", f"/tmp/out-arr-{index}"]).stdout)["n1"] for index in (0, 1)]
    isolated([*first(said[0]), *first(said[1])])
    for rows in said:
        gpus = {row[2] for row in rows}
        assert gpus in ({"0,1,2,3"}, {"4,5,6,7"})
        assert {int(mask.partition("-")[0]) // 56 for mask in first(rows)} == {int("4" in gpus.pop())}
    part = "-N1 -n4 -c10 --gres=gpu:8"
    script = f"#!/bin/sh\n#SBATCH {part}\n#SBATCH hetjob\n#SBATCH {part}\n"
    job = site.cluster.submit(f"{script}srun --het-group=0,1 -c10 /bin/sh -c '{row}'\n", user="root")
    assert site.cluster.wait_job(job) == "COMPLETED", site.cluster.output(job)
    nodes = words(site.cluster.output(job))
    sockets = {name: [int(mask.partition("-")[0]) // 56 for mask in first(rows)] for name, rows in nodes.items()}
    assert sockets == {"n1": [0, 0, 1, 1], "n2": [1, 1, 0, 0]}, nodes


@EVERY
def test_cli_filter_puts_gpus_per_task_right(site: Site) -> None:
    """Slurm 22.05 assigns GPU i to task i but CPUs by turns of the sockets: the filter asks for CPUs in order."""
    lay = f"mkdir -p /tmp/lua && cp /etc/slurm/*.conf /run/lab-hooks{HOOKS}/cli_filter.lua /tmp/lua/ && chmod -R a+rX /tmp/lua"
    site.cluster.run(["/bin/sh", "-c", f"{lay} && echo CliFilterPlugins=cli_filter/lua >>/tmp/lua/slurm.conf"])
    conf = {"SLURM_CONF": "/tmp/lua/slurm.conf"}
    each = ("-n8", "-c14", "--gpus-per-task=1")

    def seen(*options: str, **env: str) -> list[list[str]]:
        found = tasks(site.cluster, "n1", *each, *options, script=TASK.replace("${STEP:-s} ", ""), **conf, **env)
        return [[found[i][0], found[i][2]] for i in sorted(found)]

    near = [[mask, str(gpu)] for gpu, mask in enumerate(NEAR)]
    assert seen() == near
    assert [mask for mask, _ in seen(FAIRLEAD_PROFILE="off")] == CYCLIC
    for chosen in (seen("-m", "block:cyclic"), seen(SLURM_DISTRIBUTION="block:cyclic"), seen("--cpu-bind=cores")):
        assert [mask for mask, _ in chosen] == CYCLIC
