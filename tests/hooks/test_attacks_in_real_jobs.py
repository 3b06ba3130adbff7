"""What a job's user can do to prolog, task prolog and epilog under real Slurm, from outside of the job, while they run.

Steps are in real control groups (v1). Whoever attacks is a process of the same user that no job ends, as a login is.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fairlead.host import scratch
from fairlead.jobenv.environment_text import render
from fairlead.jobenv.variable_table import assemble
from tests.hooks import attacker
from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import lay_out, real_cpusets
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.slurm.conftest import running
from tests.topology.build import hgx

pytestmark = [pytest.mark.root, pytest.mark.slurm]
AGENT = HOOKS.parent / "agent"
UID = 2001  # alice
ATTACKER = f"/run/lab-hooks{HOOKS.parent}/tests/hooks/attacker.py"
#: Slurm ends what a signal does not end after so many seconds (KillWait).
KILL_SECONDS = 3


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node with a disk. Its user has no folder there, so each task prolog waits, and is there to be attacked."""
    real_cpusets()
    hooks = {"prolog": HOOKS / "prolog", "epilog": HOOKS / "epilog", "task_prolog": HOOKS / "task-prolog"}
    conf = f"KillWait={KILL_SECONDS}\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1"
    folder = HOOKS.parent / "tests/hooks"
    binds = {AGENT: f"/run/lab-hooks{AGENT}", folder: f"/run/lab-hooks{folder}"}
    cluster = Cluster(request.param, nodes=0, real=True, cgroup=True, extra_conf=conf, binds=binds, **hooks)  # type: ignore[arg-type]
    with running(cluster) as up:
        up.run(["/bin/mkdir", "-m", "1777", "/local1"])
        lay_out(up, "r1", hgx(sockets=2, cores=1, gpus=2, numa=[1, 0]))
        program = f"PYTHONPATH=/run/lab-hooks{AGENT} exec /usr/bin/python3 -m fairlead.host.scratch_folders /local1"
        script = f"mount --bind /run/lab-nodes/r1/run /run/fairlead; {program}"
        up.run(["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", script])
        (up.node_dirs("r1").run / "env").write_text(
            render(assemble(scratch=scratch.published(str(up.node_dirs("r1").run), "/local1")))
        )
        yield up


@dataclass
class Attack:
    """One that is under way. ``counts``: of the user's processes, of task prologs, of root's."""

    site: Cluster
    name: str

    def __post_init__(self) -> None:
        self.file = f"/tmp/attack-{self.name.replace(' ', '-')}"
        words = shlex.join(["/usr/bin/python3", ATTACKER, self.name, self.file])
        start = f"exec {words} >/tmp/attacker 2>&1 </dev/null &"
        self.site.run(["/bin/sh", "-c", start], user="alice", check=False)  # the attack may reach this shell before it ends
        until(lambda: len(self.words()) > 3, "the attack has not begun")

    def words(self) -> list[str]:
        return self.site.run(["/bin/cat", self.file], check=False).stdout.split()

    @property
    def counts(self) -> tuple[int, int, int]:
        _, hits, hooks, roots = map(int, self.words()[:4])
        return hits, hooks, roots

    def end(self) -> None:
        self.site.run(["/bin/kill", "-KILL", self.words()[0]], check=False)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def state(site: Cluster, job: int) -> str:
    """Of the job's record on the node; "" while one is being written."""
    record = site.node_dirs("r1").run / f"jobs/{job}"
    fields = record.read_text().split("\t") if record.exists() else []
    return fields[1] if len(fields) > 1 else ""


def idle(site: Cluster) -> bool:
    return " State=IDLE " in site.scontrol("-o", "show", "node", "r1")


#: The releases of `make test` for an attack; "stop" and "freeze" are tried on each.
RELEASES = {
    "kill": ("bookworm",),
    "term": ("trixie",),
    "trace": ("forky",),
    "fork bomb": ("trixie",),
    "rename": ("bookworm",),
    "mounts": ("forky",),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.release(*RELEASES.get(name, SUITES))) for name in attacker.ATTACKS]
)
def test_no_user_holds_a_node_or_touches_root(site: Cluster, name: str) -> None:
    """A job begins and ends under the attack; then the node is idle, not drained, nothing of the user's is waited for, and
    another user's job runs, still under it."""
    attack = Attack(site, name)
    before = attack.counts[0]
    try:
        job = site.submit(
            "#!/bin/sh\nsrun -n1 sleep 300\n", "-w", "r1", "-n1", "--gres=gpu:2", "--uid=alice", "--gid=alice", user="root"
        )
        until(lambda: state(site, job) in ("running", "ended"), "the prolog")
        if name in ("stop", "kill", "term", "trace"):
            until(lambda: attack.counts[0] > before or state(site, job) == "ended", "no process of the job's is reached")
        began = time.monotonic()
        site.run(["/usr/bin/scancel", str(job)])
        until(lambda: state(site, job) == "ended", "the epilog does not begin")
        epilog = time.monotonic()
        until(lambda: idle(site), "the epilog does not end")
        done = time.monotonic()
        print(
            f"{site.suite} {name}: cancel to epilog {epilog - began:.2f} s, then {done - epilog:.2f} s to idle, {attack.counts}"
        )
        assert done - epilog < 20
        assert not site.pids("slurmstepd")
        other = site.submit("#!/bin/sh\nexit 0\n", "-w", "r1", "-n1", user="root")
        assert site.wait_job(other) == "COMPLETED"
        assert attack.counts[2] == 0, "it worked against root"
    finally:
        attack.end()
        site.run(["/usr/bin/scancel", "--user=alice"], check=False)
    assert "DRAIN" not in site.scontrol("-o", "show", "node", "r1")
