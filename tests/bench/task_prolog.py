"""The task prolog in an 8-task step of real Slurm, step by step beside a step without any task prolog.

The node's CPUs are simulated (2 x 56), so all eight tasks and their hooks share this machine's own few CPUs: on a node
with a core for each task they run side by side instead.
"""

from __future__ import annotations

import time
from pathlib import Path

from fairlead.jobenv.render import render
from fairlead.topology import plan, publish
from tests.bench.rows import Row, median
from tests.lab.cluster import Cluster
from tests.topology.build import hgx

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "slurm" / "task-prolog"
ROUNDS = 5
STEPS = 8
KINDS = ("none", "whole", "part")
SCRIPT = f"""
i=0
while [ $i -lt {STEPS} ]; do
	a=$(date +%s%N)
	srun -n8 -c14 --gres=gpu:8 --overlap true
	b=$(date +%s%N)
	echo $(((b - a) / 1000))
	i=$((i + 1))
done"""


def rows(suite: str = "bookworm") -> list[Row]:
    """``part``: no ready plan fits, so every task runs the planner."""
    room = Path(plan.__file__).parent
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cluster = Cluster(suite, nodes=1, simulated=True, task_prolog=HOOK, binds={room: f"/run/lab-hooks{room}"})
    with cluster:
        dirs = cluster.node_dirs("n1")
        node = hgx()
        (dirs.run / "jobs").mkdir(exist_ok=True)
        (dirs.run / "topology").write_text(publish.render_topology(node))
        (dirs.run / "env").write_text(render())
        (dirs.etc / "hooks").write_text("1\tallow\tfull\t-\t/usr/bin/python3\n")
        plans = dirs.run / "plans"
        for _ in range(ROUNDS):
            for kind in KINDS:
                plans.mkdir(exist_ok=True)
                for tasks, text in publish.render_plans(node).items():
                    (plans / str(tasks)).unlink(missing_ok=True)
                    if kind == "whole":
                        (plans / str(tasks)).write_text(text)
                cluster.write_conf(task_prolog=None if kind == "none" else HOOK)
                cluster.scontrol("reconfigure")
                time.sleep(0.5)  # slurmd reads the new file
                argv = ["/usr/bin/salloc", "-n8", "-c14", "--gres=gpu:8", "-w", "n1", "/bin/sh", "-c", SCRIPT]
                said = cluster.run(argv, timeout=120).stdout.split()
                took[kind] += [int(word) / 1000 for word in said if word.isdigit()]
    none = median(took["none"])
    beside = f"step without task prolog {none:.0f} ms"
    detail = f"{len(took['none'])} steps each, Slurm of {suite}"
    return [
        Row("task prolog, 8 tasks, whole node, over none", median(took["whole"]) - none, 15, "ms", beside, detail),
        Row("task prolog, 8 tasks, with the planner, over none", median(took["part"]) - none, 40, "ms", beside, detail),
    ]


if __name__ == "__main__":
    print(rows())
