"""The hooks of two trees side by side: python -m tests.bench.hooks_compare TREE [ROUNDS] (this checkout is the second tree).

TREE is a checkout (git worktree add --detach TREE COMMIT). Both trees' hooks run on the same laid-out node, one after the other
in each round, the order changing from round to round: what else the machine does falls on both. A hook is timed from its start
to its end; several tasks start together, and the last to end counts. CPU time is user and system time of all processes, divided
by the number of tasks. Everything published is this checkout's, which TREE's hooks have to understand. The node's 112 CPUs are a
file, and /usr/bin/taskset is true(1): as many programs start as on such a node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.jobenv.environment_text import render
from fairlead.jobenv.variable_table import assemble
from fairlead.topology.binding import published_files
from tests.bench.rows import median, percentile
from tests.hooks.steps import JOB, PYTHON, STEP, for_planner, step
from tests.topology.build import hgx

ROOT = Path(__file__).resolve().parents[2]
USER = 65534
RUN = Path("/run/fairlead")
DISK = "/run/disk"
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": str(USER), "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_COMMENT": ""}
WHOLE = ",".join(f"0x{((1 << 14) - 1) << first:028X}" for first in (0, 56, 14, 70, 28, 84, 42, 98))
PART = ",".join(f"0x{((1 << 13) - 1) << first:028X}" for first in (0, 56, 13, 69, 26, 82, 39, 95))
PART_OF_TWO = ",".join(f"0x{((1 << 13) - 1) << first:028X}" for first in (0, 56))
ALL_GPUS = "0,1,2,3,4,5,6,7"


@dataclass(frozen=True)
class Case:
    """One way to start a hook: its name, the tasks' environments, and the files of the node that it wants otherwise."""

    hook: str
    environments: tuple[dict[str, str], ...]
    disk: bool = False
    planner: bool = False

    @property
    def as_user(self) -> bool:
        return self.hook == "task-prolog"


def tasks(masks: str, gpus: str = ALL_GPUS) -> tuple[dict[str, str], ...]:
    own = {"SLURMD_NODENAME": "n1", "SLURM_TASK_PID": str(os.getpid()), "SLURM_CPUS_PER_TASK": "1"}
    return tuple({**step(0, i, masks=masks, gpus=gpus), **own} for i in range(masks.count(",") + 1))


def cases() -> dict[str, Case]:
    one = {**STEP, "SLURM_STEP_GPUS": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_TASK_PID": str(os.getpid())}
    return {
        "prolog": Case("prolog", (SLURM,)),
        "epilog": Case("epilog", (SLURM,)),
        "epilog, folders on a disk": Case("epilog", (SLURM,), disk=True),
        "health check": Case("health-check", ({},)),
        "task prolog, a batch step": Case("task-prolog", (JOB,)),
        "task prolog, a step without GPUs": Case("task-prolog", (STEP,)),
        "task prolog, 1 task": Case("task-prolog", (one,)),
        "task prolog, 1 task, folders on a disk": Case("task-prolog", (one,), disk=True),
        "task prolog, 8 tasks, whole node": Case("task-prolog", tasks(WHOLE)),
        "task prolog, 8 tasks, part of a node": Case("task-prolog", tasks(PART)),
        "task prolog, 8 tasks, planner": Case("task-prolog", tasks(PART), planner=True),
        "task prolog, 2 tasks, part of a node": Case("task-prolog", tasks(PART_OF_TWO, "0,4")),
        "task prolog, 2 tasks, planner": Case("task-prolog", tasks(PART_OF_TWO, "0,4"), planner=True),
    }


def lay_out(case: Case) -> None:
    """The node, anew for each case."""
    node = hgx()
    topology = published_files.render_topology(node)
    (RUN / "topology").write_text(for_planner(topology) if case.planner else topology)
    for name, text in published_files.plan_files(node).items():
        (RUN / "plans" / name).write_text(text)
    (RUN / "env").write_text(render(assemble(scratch=DISK)) if case.disk else render())
    (RUN / "jobs/4711").write_text(f"1\trunning\t{USER}\t0,1\t100.00\t-\t-\t.\n")
    if case.disk:
        (RUN / "ended").mkdir(exist_ok=True)
        (RUN / "scratch").write_text(f"1\t{DISK}\t.\n")
    elif (RUN / "ended").exists():
        shutil.rmtree(RUN / "ended")
        (RUN / "scratch").unlink()


def fresh_disk(case: Case) -> None:
    """No folder of the job's before its task prolog; one, where releases up to 0.1.0 made it, before its epilog."""
    old = Path(DISK, "fairlead.4711")
    for path in (old, Path(DISK, str(USER), "4711.100.00")):
        shutil.rmtree(path, ignore_errors=True)
    if case.hook == "epilog":
        old.mkdir()
        os.chown(old, USER, USER)


def once(tree: Path, case: Case) -> tuple[float, float]:
    """Milliseconds until the last of them has ended, and milliseconds of CPU time for each."""
    (RUN / "jobs/4711").write_text(f"1\trunning\t{USER}\t0,1\t100.00\t-\t-\t.\n")
    if case.disk:
        fresh_disk(case)
    words = [sys.executable, "-c", STARTER, str(tree / "slurm" / case.hook), str(USER if case.as_user else 0)]
    done = subprocess.run(words, input=json.dumps(case.environments), capture_output=True, text=True, check=True, timeout=120)
    took, cpu = map(float, done.stdout.split())
    return took, cpu / len(case.environments)


#: Starts them as that user and tells how long they took; a Python of its own, so that the measurement stays root.
STARTER = """
import json, os, resource, sys, time
hook, user = sys.argv[1], int(sys.argv[2])
environments = json.load(sys.stdin)
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0), (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)]
begin = time.perf_counter()
pids = [os.posix_spawn("/bin/sh", ["sh", hook], each, file_actions=null) for each in environments]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
took = time.perf_counter() - begin
assert not any(codes), codes
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(took * 1000, (used.ru_utime + used.ru_stime) * 1000)
"""


def measure(base: Path, rounds: int) -> None:
    print(f"{'':42}{'before':>9}{'p90':>8}{'after':>9}{'p90':>8}{'pairs':>9}{'CPU before':>12}{'after':>8}{'pairs':>8}", end="")
    print("   (ms, medians; pairs: of the differences)")
    for name, case in cases().items():
        lay_out(case)
        before: list[tuple[float, float]] = []
        after: list[tuple[float, float]] = []
        for number in range(rounds + 2):
            order = ((base, before), (ROOT, after))
            for tree, took in order if number % 2 else order[::-1]:
                took.append(once(tree, case))
        before, after = before[2:], after[2:]  # the first ones read files from disk
        old, new, old_cpu, new_cpu = ([each[i] for each in times] for i in (0, 1) for times in (before, after))
        wall = "".join(f"{median(x):9.2f}{percentile(x, 90):8.2f}" for x in (old, new))
        print(f"{name:42}{wall}{paired(old, new):+9.2f}{median(old_cpu):12.2f}{median(new_cpu):8.2f}", end="")
        print(f"{paired(old_cpu, new_cpu):+8.2f}", flush=True)


def paired(before: list[float], after: list[float]) -> float:
    return median([b - a for a, b in zip(before, after, strict=True)])


def stage() -> None:
    """In a mount namespace of its own: /run, /etc and /dev/shm that nobody else uses."""
    for words in (["/run"], ["-o", "mode=1777", "/dev/shm"]):
        subprocess.run(["mount", "-t", "tmpfs", *words[:-1], "tmpfs", words[-1]], check=True)
    for name in ("up", "work"):
        Path(f"/run/{name}").mkdir()
    options = "lowerdir=/etc,upperdir=/run/up,workdir=/run/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, "/etc"], check=True)
    Path("/etc/fairlead").mkdir(exist_ok=True)
    Path("/etc/fairlead/hooks").write_text(f"1\tallow\tfull\t-\t{PYTHON}\n")
    for name in ("jobs", "plans"):
        (RUN / name).mkdir(parents=True)
    (RUN / "verdict").write_text("1\tok\t99999999999\t7\t-\n")
    own = Path(DISK, str(USER))
    own.mkdir(parents=True)
    own.parent.chmod(0o1777)
    os.chown(own, USER, USER)
    Path("/run/online").write_text("0-111\n")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup"], check=True)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuset" in controllers.split(","):  # v1; of v2 there is nothing, and the CPUs are those that are online
            group = Path(f"/sys/fs/cgroup/cpuset{path}")
            group.mkdir(parents=True)
            (group / "cpuset.effective_cpus").write_text("0-111\n")
    for source, place in (("/run/online", "/sys/devices/system/cpu/online"), ("/usr/bin/true", "/usr/bin/taskset")):
        subprocess.run(["mount", "--bind", source, place], check=True)


def main() -> int:
    if os.geteuid() != 0 or len(sys.argv) < 2:
        print(__doc__ if os.geteuid() == 0 else "hooks_compare: needs root (a mount namespace)", file=sys.stderr)
        return 64 if os.geteuid() == 0 else 77
    if sys.argv[1] != "--inside":
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.bench.hooks_compare", "--inside"]
        return subprocess.run([*words, str(Path(sys.argv[1]).resolve()), *sys.argv[2:]], cwd=ROOT, check=False).returncode
    base, rounds = Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 100
    if not (base / "slurm/prolog").is_file():
        print(f"hooks_compare: {base} has no slurm/prolog", file=sys.stderr)
        return 66
    stage()
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"before {base}, after {ROOT}, {rounds} rounds, {cpus} CPUs, load {load:.1f}, {time.ctime()}")
    measure(base, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
