"""Steps on nodes of any size: which task asks taskset for which CPU set, and which asks the planner.

/usr/bin/taskset is a recorder here, the planner a recorder that fails, and the step's cpuset a file.
"""

from __future__ import annotations

import os

from fairlead.model.facts import Node
from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS, SHELLS, Stage
from tests.hooks.steps import step

SAID = "/run/fairlead/said/calls"
RECORDER = f'#!/bin/sh\necho "$SLURM_LOCALID $1 $2" >>{SAID}\n'
PLANNER = f'#!/bin/sh\necho "$SLURM_LOCALID planner" >>{SAID}\nexit 1\n'
EVERY = f"""i=0
while [ $i -lt $TASKS ]; do
	SLURM_LOCALID=$i $SHELL_AND_HOOK >/dev/null || echo "$i failed $?" >>{SAID}
	i=$((i + 1))
done
"""


class Site:
    """The stage, with a recorder in taskset's place, one that fails in the planner's, and cpusets that a test can write."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        top = stage.run.parent
        (top / "recorder").write_text(RECORDER)
        (top / "recorder").chmod(0o755)
        (top / "cgroup").write_text("")
        stage.inside("mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")
        stage.inside("mount", "--bind", "/run/recorder", "/usr/bin/taskset")
        stage.inside("mount", "--bind", "/run/cgroup", f"/proc/{os.getpid()}/cgroup")
        self.top = top.parent / "sys/fs/cgroup"

    def cpuset(self, cpus: str, version: int) -> None:
        """The step's cpuset, of cgroup v1 or v2. This process stands for the task."""
        step = "/slurm/uid_0/job_1/step_0"
        lines = {1: f"4:memory:/\n3:cpu,cpuset:{step}\n0::/\n", 2: f"0::{step}/user/task_1\n"}
        (self.stage.run.parent / "cgroup").write_text(lines[version])
        names = {1: f"cpuset{step}/cpuset.effective_cpus", 2: f"{step[1:]}/cpuset.cpus.effective"}
        file = self.top / names[version]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{cpus}\n")

    def calls(
        self, node: Node | str, masks: str, gpus: str, shell: str = "dash", plans: dict[str, str] | None = None, **more: str
    ) -> list[str]:
        """What the tasks of one step called: ``LOCALID -p MASK``, ``LOCALID planner``; in the order of the tasks."""
        self.stage.reset()
        (self.stage.run / "said").mkdir()
        (self.stage.run / "said").chmod(0o777)
        (self.stage.run / "planner").write_text(PLANNER)
        (self.stage.run / "planner").chmod(0o755)
        self.stage.hooks_line(python="/run/fairlead/planner")
        (self.stage.run / "plans").mkdir()
        for name, text in (plans or {}).items():
            (self.stage.run / "plans" / name).write_text(text)
        (self.stage.run / "topology").write_text(node if isinstance(node, str) else published_files.render_topology(node))
        env = {
            **step(os.getpid(), 0, masks=masks, gpus=gpus, **more),
            "TASKS": str(masks.count(",") + 1),
            "SLURM_CPUS_PER_TASK": "1",
            "SHELL_AND_HOOK": f"{' '.join(SHELLS[shell])} {HOOKS}/task-prolog",
            "PATH": "/usr/bin:/bin",
        }
        ran = self.stage.command("/bin/sh", "-c", EVERY, env=env)
        assert (ran.rc, ran.err) == (0, "")
        said = self.stage.run / "said/calls"
        return said.read_text().splitlines() if said.exists() else []


def hexes(masks: list[int], node: Node) -> str:
    """As Slurm writes them: all as wide as the node, whose CPU numbers may have gaps."""
    digits = (max((cpu.id for cpu in node.cpus), default=0) + 4) // 4
    return ",".join(f"0x{mask:0{digits}X}" for mask in masks)


def swapped(calls: list[str], masks: list[int]) -> list[int] | None:
    """The masks after the calls; None where the planner was asked, by every task."""
    if any("planner" in call for call in calls):
        assert calls == [f"{i} planner" for i in range(len(masks))]
        return None
    after = list(masks)
    for call in calls:
        local, option, mask = call.split()
        assert option == "-p"
        after[int(local)] = int(mask, 16)
    return after
