"""The task prolog in steps of real Slurm, beside steps without any and beside the wrapper script that sites write by hand.

Kinds take turns step by step in one job, so that whatever else the machine does falls on all of them. The node's CPUs are
simulated (2 x 56), so all eight tasks and their hooks share this machine's own few CPUs: on a node with a core for each task they
run side by side, as two tasks do here.

An empty task prolog has its price too: slurmstepd forks, starts sh, reads a pipe, and after it has ended kills what may be left
of its process group, for which it sleeps 10 ms (``_kill_pg`` in src/common/run_command.c, from 22.05 to 26.05; seen with strace).
So what is ours is the difference to an empty one, and has what that sleep leaves of the budget (decision 18).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.jobenv.environment_text import render
from fairlead.topology.binding import binding_plan, published_files
from tests.bench.rows import Row, median
from tests.lab.cluster import Cluster
from tests.lab.cpus import v1_controllers
from tests.topology.build import hgx

HOOKS = Path(__file__).resolve().parents[2] / "slurm"
HOOK = f"/run/lab-hooks{HOOKS}/task-prolog"
ROUNDS = 25
SLURMS_OWN = 10  # ms: the sleep
CPUS = len(os.sched_getaffinity(0))
#: What a site's own wrapper does: look the local rank up in a table and call taskset.
WRAPPER = """#!/bin/sh
case $SLURM_LOCALID in
0) c=0-13 ;; 1) c=14-27 ;; 2) c=28-41 ;; 3) c=42-55 ;; 4) c=56-69 ;; 5) c=70-83 ;; 6) c=84-97 ;; *) c=98-111 ;;
esac
exec taskset -c $c "$@"
"""
#: A task prolog that does nothing: what Slurm itself takes for starting one (a fork of slurmstepd, sh, a pipe, a wait).
EMPTY = "#!/bin/sh\nexit 0\n"
#: The least that binds: a table as the wrapper's, and taskset.
LEAST = WRAPPER.replace('exec taskset -c $c "$@"', '/usr/bin/taskset -cp $c "$SLURM_TASK_PID" >/dev/null\nexit 0')
#: A release as provisioning lays it out, with what the planner needs: compiled beforehand.
RELEASE = """set -e
v=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
site=/opt/fairlead/current/lib/python$v/site-packages/fairlead
mkdir -p $site/model $site/topology/binding /opt/fairlead/current/bin
ln -s /usr/bin/python3 /opt/fairlead/current/bin/python
echo home = /usr/bin >/opt/fairlead/current/pyvenv.cfg
b=topology/binding
for f in __init__.py model/__init__.py model/cpulist.py topology/__init__.py $b/__init__.py $b/binding_plan.py $b/transport.py; do
  cp /run/package/$f $site/$f
done
/usr/bin/python3 -m compileall -q $site
"""


@dataclass(frozen=True)
class Kind:
    """One way to run a step of the whole node's job: srun's options, the task prolog if any, what is run."""

    options: str
    hook: str = HOOK
    command: str = "true"


EIGHT, TWO = "-n8 -c14", "-n2 -c56"
NOTHING, TASKSET, BARE = "/usr/local/bin/empty", "/usr/local/bin/wrapper", "/usr/local/bin/least"
#: By tasks: without a task prolog, with an empty one, with one that only calls taskset, with a site's wrapper, and with ours.
KINDS = {
    "none-8": Kind(f"{EIGHT} --gres=gpu:8", hook=""),
    "empty-8": Kind(f"{EIGHT} --gres=gpu:8", hook=NOTHING),
    "least-8": Kind(f"{EIGHT} --gres=gpu:8", hook=BARE),
    "wrapper-8": Kind(f"{EIGHT} --gres=gpu:8", hook="", command=f"{TASKSET} true"),
    "whole-8": Kind(f"{EIGHT} --gres=gpu:8"),
    "part-8": Kind("-n8 -c13 --gres=gpu:8"),  # no ready plan has these CPU sets
    "planner-8": Kind(f"{EIGHT} --gres=gpu:7"),  # five tasks for four CPU sets of a socket
    "none-2": Kind(f"{TWO} --gres=gpu:8", hook=""),
    "empty-2": Kind(f"{TWO} --gres=gpu:8", hook=NOTHING),
    "least-2": Kind(f"{TWO} --gres=gpu:8", hook=BARE),
    "wrapper-2": Kind(f"{TWO} --gres=gpu:8", hook="", command=f"{TASKSET} true"),
    "whole-2": Kind(f"{TWO} --gres=gpu:8"),
    "planner-2": Kind("-n2 -c14 --gres=gpu:5"),  # one task's GPUs are in both sockets
}


@dataclass
class Took:
    """Milliseconds of the steps of one kind, and the CPU time that node and tasks spent on each (none without cgroup v1)."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(
    kinds: Mapping[str, Kind], rounds: int, *, suite: str = "bookworm", binds: Mapping[str | Path, str] | None = None
) -> dict[str, Took]:
    """The i-th step of every kind ran one after the other."""
    read = "c=0; [ -r /run/cpuacct/cpuacct.usage ] && read -r c </run/cpuacct/cpuacct.usage"
    lines = [
        f"{read}; d=$c; a=$(date +%s%N); srun {f'--task-prolog={kind.hook}' if kind.hook else ''} {kind.options} {kind.command}"
        f"; b=$(date +%s%N); sleep 0.05; {read}; echo took {name} $(((b - a) / 1000)) $(((c - d) / 1000))"
        for name, kind in kinds.items()
    ]
    script = f"i=0; while [ $i -lt {rounds} ]; do\n" + "\n".join(lines) + "\ni=$((i + 1)); done"
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        (folder / "online").write_text("0-111\n")
        (folder / "cgroup/cpuset").mkdir(parents=True)
        for file in ("cpuset/cpuset.effective_cpus", "cpuset.cpus.effective"):  # v1, v2: the tasks are in the top group
            (folder / "cgroup" / file).write_text("0-111\n")
        for name, text in (("wrapper", WRAPPER), ("empty", EMPTY), ("least", LEAST)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        bound: dict[str | Path, str] = {
            folder / "online": "/sys/devices/system/cpu/online",
            folder / "cgroup": "/sys/fs/cgroup",
            folder / "wrapper": "/usr/local/bin/wrapper",
            folder / "empty": NOTHING,
            folder / "least": BARE,
            Path(binding_plan.__file__).parents[2]: "/run/package",
            HOOKS: f"/run/lab-hooks{HOOKS}",
            **(binds or {}),
        }
        cluster = Cluster(suite, nodes=1, simulated=True, binds=bound)
        group = v1_controllers().get("cpuacct", folder) / f"fairlead-lab-{cluster.name}"
        group.mkdir()
        cluster.binds = {**bound, group: "/run/cpuacct"}
        with cluster:
            if "cpuacct" in v1_controllers():
                cluster.ledger.add("cgroup", group)
                for pid in cluster.pids("slurmd"):
                    (group / "cgroup.procs").write_text(str(pid))
            cluster.run(["/bin/sh", "-c", RELEASE])
            dirs = cluster.node_dirs("n1")
            node = hgx()
            (dirs.run / "jobs").mkdir(exist_ok=True)
            (dirs.run / "topology").write_text(published_files.render_topology(node))
            (dirs.run / "env").write_text(render())
            (dirs.etc / "hooks").write_text("1\tallow\tfull\t-\t/opt/fairlead/current/bin/python\n")
            (dirs.run / "plans").mkdir(exist_ok=True)
            for name, text in published_files.plan_files(node).items():
                (dirs.run / "plans" / name).write_text(text)
            argv = ["/usr/bin/salloc", "-n8", "-c14", "--gres=gpu:8", "-w", "n1", "/bin/sh", "-c", script]
            said = cluster.run(argv, timeout=900).stdout
    took = {name: Took() for name in kinds}
    for line in said.splitlines():
        match line.split():
            case ["took", name, wall, cpu]:
                took[name].wall.append(int(wall) / 1000)
                took[name].cpu += [int(cpu) / 1000] if int(cpu) else []
    assert all(len(times.wall) == rounds for times in took.values()), said[-2000:]
    return took


def over(took: Took, base: Took) -> float:
    """The median of the paired differences, in milliseconds."""
    return median([t - b for t, b in zip(took.wall, base.wall, strict=True)])


def cpu_over(took: Took, base: Took) -> str:
    """What the CPUs did more for it, in words: the same on a machine that is busy otherwise."""
    if not took.cpu or len(took.cpu) != len(base.cpu):
        return ""
    return f"(CPU time {median([t - b for t, b in zip(took.cpu, base.cpu, strict=True)]):+.0f} ms)"


def rows(suite: str = "bookworm") -> list[Row]:
    took = measure(KINDS, ROUNDS, suite=suite)
    found = []
    for what, name, budget in (
        (f"8 tasks on {CPUS} CPUs, whole node", "whole-8", 15),
        (f"8 tasks on {CPUS} CPUs, part of a node", "part-8", 40),
        (f"8 tasks on {CPUS} CPUs, with the planner", "planner-8", 40),
        (f"2 tasks on {CPUS} CPUs, whole node, nothing to swap", "whole-2", 15),
        (f"2 tasks on {CPUS} CPUs, with the planner", "planner-2", 40),
    ):
        tasks = name.rpartition("-")[2]
        kinds = ("none", "empty", "least", "wrapper")
        mine, none, empty, least, wrapper = (took[n] for n in (name, *(f"{n}-{tasks}" for n in kinds)))
        beside = (
            f"an empty one {over(empty, none):+.1f} ms, a taskset wrapper {over(wrapper, none):+.1f} ms {cpu_over(wrapper, none)}"
        )
        bare = f"taskset alone {over(least, empty):+.1f} ms {cpu_over(least, empty)}"
        detail = f"; ours {cpu_over(mine, none)}; step without any {median(none.wall):.0f} ms; {ROUNDS} steps each, {suite}"
        found.append(Row(f"task prolog, {what}, over none", over(mine, none), budget, "ms", beside, detail))
        found.append(Row("... over an empty one", over(mine, empty), budget - SLURMS_OWN, "ms", bare, cpu_over(mine, empty)))
    return found


if __name__ == "__main__":
    print(*rows(), sep="\n")
