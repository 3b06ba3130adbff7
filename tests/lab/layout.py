"""The layout of a whole node, on real Slurm with simulated CPUs: 8 tasks on 2 x 56 cores and 8 GPUs.

The affinity calls of slurmd, taskset and the tasks go to a stand-in for the kernel (fakeaff.c): scheduling, binding and
the task prolog are the real ones, the CPUs are not. The real masks of this machine's own CPUs are shown on the rack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.jobenv.environment_text import render
from fairlead.topology.binding.published_files import plan_files, render_topology
from tests.lab.cluster import Cluster, NodeDirs
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
TREE = MACHINES / "hgx-h100"
TASK = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //")"'


def publish(dirs: NodeDirs, tree: Path, planner: str = "-") -> dict[str, tuple[str, str]]:
    """Put what the agent would publish for this machine into a node's folders. Returns GPU -> (NUMA node, CPUs)."""
    node = gather(Root(str(tree)), json.loads((tree / "nvml.json").read_text()))
    topology = render_topology(node)
    (dirs.run / "topology").write_text(topology)
    (dirs.run / "plans").mkdir(exist_ok=True)
    for name, text in plan_files(node).items():
        (dirs.run / "plans" / name).write_text(text)
    (dirs.run / "env").write_text(render())
    (dirs.run / "jobs").mkdir(exist_ok=True)
    (dirs.etc / "hooks").write_text(f"1\tallow\tfull\t-\t{planner}\n")
    rows = [line.split("\t") for line in topology.splitlines() if line.startswith("gpu\t")]
    return {r[1]: (r[5], r[6]) for r in rows}


def expand(cpulist: str) -> set[int]:
    """``0-2,5`` as numbers."""
    cpus: set[int] = set()
    for part in cpulist.split(","):
        low, _, high = part.partition("-")
        cpus |= set(range(int(low), int(high or low) + 1))
    return cpus


def masks(cluster: Cluster, *, hooked: bool) -> dict[int, str]:
    """CPUs by local task of `srun -n8 -c14 --gres=gpu:8`, with Slurm's default distribution."""
    cluster.write_conf(task_prolog=PROJECT / "slurm" / "task-prolog" if hooked else None)
    cluster.scontrol("reconfigure")
    told = cluster.run(["/usr/bin/srun", "-n8", "-c14", "--gres=gpu:8", "-w", "n1", "/bin/sh", "-c", TASK], timeout=60).stdout
    return {int(m[1]): m[2] for m in re.finditer(r"^(\d+) (\S+)$", told, re.MULTILINE)}


def show(say: Callable[[str], None], suite: str = "bookworm") -> list[tuple[str, str, str, bool]]:
    """Run the step without and with fairlead. Returns per task: its GPU, the GPU's NUMA node, its CPUs, whether they are near."""
    hook = PROJECT / "slurm" / "task-prolog"
    with Cluster(suite, nodes=1, simulated=True, task_prolog=hook) as cluster:
        near = publish(cluster.node_dirs("n1"), TREE)
        plain = masks(cluster, hooked=False)
        ours = masks(cluster, hooked=True)
    say("task  GPU (NUMA)  Slurm's default  with fairlead")
    rows = []
    for rank in range(8):
        numa, cpus = near[str(rank)]
        good = len(expand(ours[rank])) == 14 and expand(ours[rank]) <= expand(cpus)
        far = "" if expand(plain[rank]) <= expand(cpus) else "  <- the other socket"
        say(f"{rank:4}  {rank:3} ({numa})     {plain[rank]:15}  {ours[rank]}{far}")
        rows.append((str(rank), numa, ours[rank], good))
    return rows
