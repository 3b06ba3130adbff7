"""The SPANK plugin and cli_filter.lua under real Slurm of every release: masks and memory policies read back in the tasks.

Hostile files and environments: test_spank_input.py. The plugin is alone here (no TaskProlog) unless a test names the
task prolog. CPUs of n1 are pretended; memory policies are real.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import CYCLIC, NEAR, PERMUTED, cpus, lay_out, tasks
from tests.lab import spank
from tests.lab.cluster import Cluster
from tests.lab.cpus import v1_controllers
from tests.lab.roots import SUITES, root
from tests.slurm.conftest import running
from tests.topology.build import hgx

pytestmark = [pytest.mark.root, pytest.mark.slurm]
#: Local id, CPUs, FAIRLEAD_PROFILE, the mark, and the policy of the task's memory by the kernel (proc(5), numa_maps).
TASK = (
    'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") ${FAIRLEAD_PROFILE:--} ${FAIRLEAD_CPU_BIND:--} '
    '$(cut -d" " -f2 /proc/self/numa_maps | sort -u | tr "\\n" " ")"'
)
EIGHT = ("-n8", "-c14", "--gres=gpu:8")
TWO = ("-n2", "-c56", "--gres=gpu:8")  # as planned already: only the memory tells that the plan was applied
PLUGSTACK = "/opt/lab/plugstack.conf"
SITE = "/opt/lab/slurm"
AGENT = "/opt/lab/agent"


def ranks(count: int, command: str) -> str:
    """What torchrun does inside one task: a process for each local rank, with the task's mask and environment."""
    start = f"PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={AGENT} python3 -m fairlead run --verbose -- /bin/sh -c"
    numbers = " ".join(map(str, range(count)))
    return f"for r in {numbers}; do LOCAL_RANK=$r LOCAL_WORLD_SIZE={count} {start} '{command}' & done; wait"


RANK = 'echo "$LOCAL_RANK $(taskset -cp $$ | sed "s/.*: //") $(cut -d" " -f2 /proc/self/numa_maps | sort -u | tr "\\n" " ")"'


def policy(node: int) -> str:
    """What the kernel makes of "preferred": a node that this machine lacks is refused, and nothing changes."""
    return f"prefer:{node}" if Path(f"/sys/devices/system/node/node{node}").exists() else "default"


@dataclass(frozen=True)
class Site:
    cluster: Cluster

    def seen(self, *options: str, **env: str) -> list[list[str]]:
        """The tasks' words by local id."""
        found = tasks(self.cluster, "n1", *options, script=TASK, **env)
        return [found[local] for local in sorted(found)]


BOUND = [["0-55", "-", "-", policy(0)], ["56-111", "-", "-", policy(1)]]
UNBOUND = [["0-55", "-", "-", "default"], ["56-111", "-", "-", "default"]]


def plugins(suite: str) -> dict[str | Path, str]:
    other = "trixie" if suite != "trixie" else "forky"
    return {
        spank.plugin(suite): spank.INSIDE,
        spank.plugin(other): "/opt/lab/other-release.so",
        HOOKS: SITE,
        HOOKS.parent / "agent": AGENT,
    }


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Before the plugin stand three that cannot be loaded: not there, no library, built for another release."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    broken = ("/opt/lab/absent.so", "/opt/lab/garbage.so", "/opt/lab/other-release.so")
    cluster = Cluster(
        request.param,
        nodes=1,
        simulated=True,
        extra_conf=f"PlugStackConfig={PLUGSTACK}",
        files={PLUGSTACK: "".join(f"optional {p}\n" for p in (*broken, spank.INSIDE)), "/opt/lab/garbage.so": "no library\n"},
        binds=plugins(request.param),
    )
    with running(cluster) as up:
        lay_out(up, "n1", hgx())
        yield Site(up)


def test_help_shows_the_switch(site: Site) -> None:
    for client in ("srun", "sbatch", "salloc"):
        assert "--fairlead=on|off|minimal" in site.cluster.run([f"/usr/bin/{client}", "--help"]).stdout


def test_the_published_plan_and_the_users_choices(site: Site) -> None:
    found = site.seen(*EIGHT)
    assert [row[0] for row in found] == PERMUTED
    assert [row[3:] for row in found] == [[policy(0)]] * 4 + [[policy(1)]] * 4
    # The keyword is Slurm's default here: only the mark tells.
    chosen = site.seen(*EIGHT, "--cpu-bind=cores")
    assert chosen == [[mask, "-", "user", "default"] for mask in CYCLIC]
    assert site.seen(*EIGHT, SLURM_CPU_BIND="cores") == chosen
    assert [row[0] for row in site.seen(*EIGHT, "--gpus-per-task=1")] == CYCLIC
    # A memory policy of the user's is no choice of CPUs, and stays: Slurm's own is a strict binding to node 0.
    for chosen in (site.seen(*EIGHT, "--mem-bind=map_mem:0"), site.seen(*EIGHT, SLURM_MEM_BIND="map_mem:0")):
        assert [row[0] for row in chosen] == PERMUTED
        assert {row[3] for row in chosen} == {"bind:0"}


def test_the_switch(site: Site) -> None:
    assert site.seen(*EIGHT, "--fairlead=off") == [[mask, "off", "-", "default"] for mask in CYCLIC]
    for options, profile, rows in (
        (("--fairlead=minimal",), "minimal", BOUND),
        (("--fairlead=on",), "full", BOUND),
        (("--fairlead=fast",), "off", UNBOUND),  # malformed means off
    ):
        assert site.seen(*TWO, *options) == [[row[0], profile, *row[2:]] for row in rows], options
    assert [row[1] for row in site.seen(*TWO, "--fairlead=on", FAIRLEAD_PROFILE="off")] == ["full", "full"]
    assert [row[1:] for row in site.seen(*TWO, "--export=NONE", "--fairlead=off")] == [["off", "-", "default"]] * 2


def test_a_batch_job_and_its_steps(site: Site) -> None:
    """The switch of sbatch holds in its steps, until the user says otherwise: by the step's switch, or by the environment."""
    step = f"srun -n2 -c56 /bin/sh -c '{TASK}'"
    script = (
        f'#!/bin/sh\n#SBATCH --fairlead=off\necho "batch $FAIRLEAD_PROFILE"\n'
        f"{step}\nsrun --fairlead=on {step[5:]}\nFAIRLEAD_PROFILE=minimal {step}\n"
    )
    job = site.cluster.submit(script, "-n2", "-c56", "--gres=gpu:8", "-w", "n1", "-o", "/tmp/out-%j", "-e", "/dev/null")
    site.cluster.wait_job(job, "COMPLETED")
    said = site.cluster.run(["/bin/cat", f"/tmp/out-{job}"]).stdout
    profiles = [m[1] for m in re.finditer(r"^\d+ \S+ (\S+) - ", said, re.MULTILINE)]
    assert said.startswith("batch off\n")
    assert profiles == ["off"] * 2 + ["full"] * 2 + ["minimal"] * 2, said


def test_an_ordinary_user(site: Site) -> None:
    argv = ["/usr/bin/srun", "-w", "n1", *EIGHT, "-D", "/tmp", "/bin/sh", "-c", TASK]
    said = site.cluster.run(argv, user="alice", timeout=90).stdout
    assert [line.split()[1] for line in sorted(said.splitlines())] == PERMUTED


def test_without_a_published_plan_nothing_changes(site: Site) -> None:
    plan = site.cluster.node_dirs("n1").run / "plans/8"
    text = plan.read_text()
    plan.unlink()
    try:
        assert site.seen(*EIGHT) == [[mask, "-", "-", "default"] for mask in CYCLIC]
    finally:
        plan.write_text(text)


def test_the_task_prolog_beside_it(site: Site) -> None:
    """The task prolog sees the switch and the mark, and its plan is the same."""
    prolog = f"--task-prolog={SITE}/task-prolog"
    script = 'echo "$SLURM_LOCALID $(taskset -cp $$ | sed "s/.*: //") ${OMP_NUM_THREADS:--}"'
    run = [
        tasks(site.cluster, "n1", *EIGHT, prolog, *more, script=script)
        for more in ((), ("--fairlead=off",), ("--cpu-bind=cores",))
    ]
    assert [cpus(found) for found in run] == [PERMUTED, CYCLIC, CYCLIC]
    assert [found[0][1] for found in run] == ["14", "-", "14"]  # the mark concerns CPUs; threads are by the CPU set either way


def test_ranks_inside_one_task(site: Site) -> None:
    """`fairlead run` in a step with one task, in the batch script, and on part of the node."""
    eight = [[mask, policy(0 if rank < 4 else 1)] for rank, mask in enumerate(NEAR)]
    found = tasks(site.cluster, "n1", "-n1", "-c112", "--gres=gpu:8", script=ranks(8, RANK))
    assert [found[local] for local in sorted(found)] == eight
    two = [["0-13", policy(0)], ["14-27", policy(0)]]
    found = tasks(site.cluster, "n1", "-n1", "-c28", "--gres=gpu:2", script=ranks(2, RANK))
    assert [found[local] for local in sorted(found)] == two
    script = f"#!/bin/sh\n{ranks(2, RANK)}\n"
    job = site.cluster.submit(script, "-n1", "-c28", "--gres=gpu:2", "-w", "n1", "-o", "/tmp/out-%j")
    site.cluster.wait_job(job, "COMPLETED")
    said = site.cluster.run(["/bin/cat", f"/tmp/out-{job}"]).stdout
    assert [line.split()[1:] for line in sorted(re.findall(r"^\d .*$", said, re.MULTILINE))] == two, said


def test_cli_filter_carries_the_same_switch(site: Site) -> None:
    """A submit host with lua and without the plugin."""
    if not list(root(site.cluster.suite).glob("usr/lib/*/slurm*/cli_filter_lua.so")):
        pytest.skip(f"Slurm {SUITES[site.cluster.suite]} of {site.cluster.suite} has no cli_filter/lua")
    lay = f"mkdir -p /tmp/lua && cp /etc/slurm/*.conf {SITE}/cli_filter.lua /tmp/lua/ && chmod -R a+rX /tmp/lua"
    lay += " && sed -i 's,^PlugStackConfig.*,CliFilterPlugins=cli_filter/lua,' /tmp/lua/slurm.conf"
    site.cluster.run(["/bin/sh", "-c", lay])
    conf = {"SLURM_CONF": "/tmp/lua/slurm.conf"}
    assert site.seen(*TWO, "--comment=notfairlead:off", **conf) == BOUND
    assert [row[1] for row in site.seen(*TWO, "--comment=my run, fairlead:off", **conf)] == ["off"] * 2
    assert [row[1] for row in site.seen(*TWO, "--comment=fairlead:minimal", "--export=PATH,LD_PRELOAD", **conf)] == [
        "minimal"
    ] * 2
    assert [row[1] for row in site.seen(*TWO, "--comment=notfairlead:off,fairlead:fast", **conf)] == ["off"] * 2
    assert [row[2] for row in site.seen(*TWO, "--cpu-bind=cores", **conf)] == ["user"] * 2
    assert [row[1] for row in site.seen(*TWO, "--comment=fairlead:off", FAIRLEAD_PROFILE="minimal", **conf)] == ["minimal"] * 2
    submit = ["/usr/bin/env", "SLURM_CONF=/tmp/lua/slurm.conf", "/usr/bin/sbatch", "--parsable", "-w", "n1", "-o", "/tmp/lua/out"]
    job = site.cluster.run([*submit, "--comment=fairlead:off", "--wrap", 'echo "$FAIRLEAD_PROFILE"']).stdout
    site.cluster.wait_job(int(job), "COMPLETED")
    assert site.cluster.run(["/bin/cat", "/tmp/lua/out"]).stdout == "off\n"


@pytest.mark.parametrize("suite", list(SUITES))
def test_real_cpus_in_real_cpusets(suite: str) -> None:
    """/proc/self/status of tasks on this machine's own two CPUs; GPU 0 is on socket 1, GPU 1 on socket 0."""
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    if not {"cpuset"} <= set(v1_controllers()) or sorted(os.sched_getaffinity(0))[:2] != [0, 1]:
        pytest.skip("needs CPUs 0 and 1 and a v1 cpuset controller")
    script = 'echo "$SLURM_LOCALID $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
    conf = {PLUGSTACK: f"optional {spank.INSIDE}\n"}
    extra = f"PlugStackConfig={PLUGSTACK}"
    cluster = Cluster(suite, nodes=0, real=True, cgroup=True, extra_conf=extra, files=conf, binds=plugins(suite))
    with running(cluster) as up:
        lay_out(up, "r1", hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]))
        two = ("-n2", "-c1", "--gres=gpu:2")
        assert cpus(tasks(up, "r1", *two, script=script)) == ["1", "0"]
        assert cpus(tasks(up, "r1", *two, "--fairlead=off", script=script)) == ["0", "1"]
        one = ("-n1", "-c2", "--gres=gpu:2")
        command = 'echo "$LOCAL_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
        assert cpus(tasks(up, "r1", *one, script=ranks(2, command))) == ["1", "0"]
        assert cpus(tasks(up, "r1", *one, script=f"taskset -cp 0 $$ >&2; {ranks(2, command)}")) == ["0", "0"]
        (up.node_dirs("r1").run / "plans/2").unlink()
        assert cpus(tasks(up, "r1", *two, script=script)) == ["0", "1"]
