"""The job environment under real Slurm: printed inside batch steps and steps, on two nodes that differ in interface and disk.

What is published is what the agent makes of two machine trees with other interfaces, by one site's declaration. n1 has its
scratch folders in /local1, n2 in /local2 (the lab's nodes share one root).
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import config
from fairlead.daemon.jobs.job_tables import JobTables
from fairlead.host import scratch
from fairlead.host.environments import of_job
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.jobenv.environment_text import NOTICE, explain
from fairlead.jobenv.variable_table import assemble
from fairlead.model.facts import unreadable
from fairlead.settings import nccl
from tests.hooks.stage import HOOKS
from tests.hooks.test_on_slurm import lay_out
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.lab.trees import MACHINES
from tests.slurm.conftest import running
from tests.topology.build import hgx

pytestmark = [pytest.mark.root, pytest.mark.slurm]
EVERY = pytest.mark.parametrize("site", list(SUITES), indirect=True)
ONE_RELEASE = pytest.mark.parametrize("site", ["trixie"], indirect=True)
#: Prints one line for each variable of interest: "STEP NODE LOCALID NAME=VALUE".
SHOW = """#!/bin/sh
env | while IFS= read -r line; do
	case $line in
	NCCL_* | GLOO_* | MASTER_* | TORCH* | CUDA_DEV* | CUDA_CACHE* | OMP_* | MKL_* | TMPDIR=* | TRITON* | FAIRLEAD_SET=* | OURS=*)
		echo "${STEP:-s} $SLURMD_NODENAME ${SLURM_LOCALID:-0} $line" ;;
	esac
done
"""
#: The node's machine, NCCL's interface there, its local disk.
WHERE = {"n1": ("hgx-h100", "enp170s0np0", "/local1"), "n2": ("hgx-a100", "enp225s0np0", "/local2")}
FIRST, SECOND = (interface for _, interface, _ in WHERE.values())


AGENT = HOOKS.parent / "agent"
UID = 2001  # alice


def serve(cluster: Cluster, name: str) -> None:
    """One run of fairlead-scratch@.service of that node: its program, with the node's own /run/fairlead."""
    program = f"PYTHONPATH=/run/lab-hooks{AGENT} exec /usr/bin/python3 -m fairlead.host.scratch_folders {WHERE[name][2]}"
    script = f"mount --bind /run/lab-nodes/{name}/run /run/fairlead; {program}"
    cluster.run(["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", script])


def folder(cluster: Cluster, name: str, job: int) -> str:
    """Return the job's folder on that node's local disk. Slurm may show a running job before its record is there."""
    here = cluster.node_dirs(name).run
    record = here / f"jobs/{job}"
    until(lambda: record.exists() and record.read_text().endswith("\n"), "the prolog's record")
    start = record.read_text().split("\t")[4]
    return f"{scratch.published(str(here), WHERE[name][2])}/{UID}/{job}.{start}"


def publish(cluster: Cluster, name: str, *, notice: bool = False) -> None:
    """What the agent of that node publishes."""
    model, _, disk = WHERE[name]
    presets = {"deep": {"extra": {"OURS": f"preset on {name}"}, "skip": ["NCCL_DEBUG"]}}
    layers = [
        ("fabric", config.fabric_layer(config.load_fabric("infiniband"))),
        ("site", {"jobenv": {"scratch": disk, "presets": presets, "notice": notice}}),
    ]
    tables = JobTables(config.resolve_layers(name, layers)[0])
    node = gather(Root(str(MACHINES / model)), unreadable("not asked"), reads=nccl.setting.reads)
    dirs = cluster.node_dirs(name)
    (dirs.run / "presets").mkdir(exist_ok=True)
    for file, text in tables.texts(tables.facts(node)[0], scratch.published(str(dirs.run), disk)).items():
        (dirs.run / file).write_text(text)


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    hooks = {"prolog": HOOKS / "prolog", "epilog": HOOKS / "epilog", "task_prolog": HOOKS / "task-prolog"}
    quick = "KillWait=3\nSchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1"
    binds = {AGENT: f"/run/lab-hooks{AGENT}"}
    with running(Cluster(request.param, nodes=2, simulated=True, extra_conf=quick, binds=binds, **hooks)) as up:  # type: ignore[arg-type]
        installed = up.folder / "etc/fairlead"
        installed.mkdir()
        (installed / "show").write_text(SHOW)
        (installed / "show").chmod(0o755)
        up.run(["/bin/sh", "-c", "mkdir -m 1777 /local1 /local2; chmod 1777 /local1 /local2"])
        for name in WHERE:
            lay_out(up, name, hgx())
            record = up.node_dirs(name).run / "jobs/1"
            record.write_text(f"1\trunning\t{UID}\t-\t1.00\t-\t-\t.\n")
            serve(up, name)  # alice is no new user here
            record.unlink()
            publish(up, name)
        yield up


def job(cluster: Cluster, script: str, *options: str, **env: str) -> tuple[int, str]:
    text = "#!/bin/sh\n" + script.replace("SHOW", "/etc/slurm/fairlead/show") + "\n"
    number = cluster.submit(text, *options, env=env)
    assert cluster.wait_job(number) == "COMPLETED", cluster.output(number)
    return number, cluster.output(number)


def seen(said: str) -> dict[tuple[str, str, str], dict[str, str]]:
    """(step, node, local id) -> variables."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for step, node, local, name, value in re.findall(r"^(\w+) (n\d) (\d+) ([A-Z_]+)=(.*)$", said, re.MULTILINE):
        if (name, value) != ("TMPDIR", "/tmp"):  # of the lab's shell
            found.setdefault((step, node, local), {})[name] = value
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


TWO = ("-N2", "-n2", "-c56", "--gres=gpu:8", "-w", "n1,n2")


@EVERY
def test_each_node_has_its_own_values(site: Cluster) -> None:
    """What the batch step exports on n1 reaches n2 through srun: there it is worked out anew, and the user's stays."""
    number, said = job(
        site,
        """
        STEP=batch SHOW
        STEP=plain srun -N2 -n2 SHOW
        export STEP=second; srun -N2 -n2 SHOW
        STEP=one srun -N1 -n1 SHOW
        STEP=onb srun -N1 -n1 -w n2 SHOW
        export GLOO_SOCKET_IFNAME=mine TMPDIR=/tmp; unset NCCL_DEBUG; STEP=users srun -N2 -n2 SHOW
        """,
        *TWO,
    )
    found = seen(said)
    batch = found["batch", "n1", "0"]
    assert batch["GLOO_SOCKET_IFNAME"] == FIRST and batch["TMPDIR"] == f"{folder(site, 'n1', number)}/tmp"
    assert (batch["MASTER_ADDR"], batch["NCCL_NET"], batch["CUDA_DEVICE_ORDER"]) == ("n1", "IB", "PCI_BUS_ID")
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & batch.keys()
    ports = {batch["MASTER_PORT"]}
    for step in ("plain", "second"):
        for node, (_, interface, _) in WHERE.items():
            env = next(v for (s, n, _), v in found.items() if (s, n) == (step, node))
            assert (env["GLOO_SOCKET_IFNAME"], env["TMPDIR"]) == (interface, f"{folder(site, node, number)}/tmp")
            assert env["CUDA_CACHE_PATH"] == f"{folder(site, node, number)}/cuda"
            assert (env["MASTER_ADDR"], env["NCCL_DEBUG"], env["NCCL_NET"]) == ("n1", "WARN", "IB")
            ports.add(env["MASTER_PORT"])
            assert "OMP_NUM_THREADS" not in env  # one task with all GPUs: its launcher's workers would each take all
    assert len(ports) == 3  # the job's, and one for each step
    for step, node in (("one", "n1"), ("onb", "n2")):  # one node: nothing of networks, though the batch step exports it
        env = found[step, node, "0"]
        assert not {"NCCL_NET", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT"} & env.keys()
        assert env["TMPDIR"] == f"{folder(site, node, number)}/tmp"
    for node in WHERE:
        env = next(v for (s, n, _), v in found.items() if (s, n) == ("users", node))
        assert (env["GLOO_SOCKET_IFNAME"], env["MASTER_ADDR"]) == ("mine", "n1")
        assert not {"NCCL_DEBUG", "TMPDIR"} & env.keys()


@EVERY
def test_scratch_is_the_users_and_goes_with_the_job(site: Cluster) -> None:
    """Hostile names, links, and folders that their owner cannot enter."""
    script = r"""
        echo "mine $(stat -c %U:%a $TMPDIR/..) $(pwd)"
        srun -N2 -n2 sh -c 'cd $TMPDIR && mkdir -p -- "-rf" "a b" "$(printf "line\nbreak")" deep/er locked/in &&
            : >"-rf/--" && : >"a b/*" && ln -s /etc /home . && ln -s / root && : >locked/in/x && chmod 000 locked/in locked &&
            mkfifo pipe && ls -d "$TMPDIR" && rm -f /nothing'
        """
    number, said = job(site, script, *TWO)
    own = {name: folder(site, name, number) for name in WHERE}
    kept = {(site.node_dirs(name).run / f"jobs/{number}").read_text().count("\t") for name in WHERE}
    assert kept == {9 if site.suite == "forky" else 7}, "Slurm 26.05 gives the job's SLUID"
    assert "mine alice:700" in said and all(f"{path}/tmp" in said for path in own.values())
    for name, path in own.items():
        until(lambda name=name: (site.node_dirs(name).run / "ended").exists() and idle(site, name), "the epilog")  # type: ignore[misc]
        serve(site, name)
        assert site.run(["/bin/ls", "-d", path], check=False).returncode, "the folder stays"
    assert site.run(["/bin/sh", "-c", "ls -d /etc/passwd /home /local1"], check=False).returncode == 0
    assert "DRAIN" not in site.scontrol("-o", "show", "node", "n1")


def idle(cluster: Cluster, name: str) -> bool:
    return " State=IDLE " in cluster.scontrol("-o", "show", "node", name)


STOP_ALL = """
import os, signal, time
print(os.getpid(), flush=True)
end = time.monotonic() + 300
while time.monotonic() < end:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if pid != os.getpid() and os.stat(f"/proc/{pid}").st_uid == os.getuid():
                os.kill(pid, signal.SIGSTOP)
        except OSError:
            pass
"""


@EVERY
def test_no_process_of_the_users_holds_the_epilog(site: Cluster) -> None:
    """A process of the user's that no job ends stops every other one at once, as `kill -STOP -1` does, while the epilog runs."""
    number = site.submit("#!/bin/sh\n: >$TMPDIR/up; exec sleep 300\n", "-w", "n1", "-n1")
    site.wait_job(number, "RUNNING")
    own = folder(site, "n1", number)
    until(lambda: site.run(["/bin/ls", f"{own}/tmp/up"], check=False).returncode == 0, "the job")
    script = f"exec /usr/bin/python3 -c {shlex.quote(STOP_ALL)} >/tmp/stopper 2>&1 </dev/null &"
    site.run(["/bin/sh", "-c", script], user="alice")
    until(lambda: site.run(["/bin/cat", "/tmp/stopper"], check=False).stdout.endswith("\n"), "the attack")
    attacker = site.run(["/bin/cat", "/tmp/stopper"]).stdout.strip()
    try:
        site.run(["/usr/bin/scancel", "--signal=KILL", "--full", str(number)])
        until(lambda: "\tended\t" in (site.node_dirs("n1").run / f"jobs/{number}").read_text(), "the epilog")
        began = time.monotonic()
        until(lambda: idle(site, "n1"), "the epilog is held")
        assert time.monotonic() - began < 60, "the stopped processes would hold it for the 300 seconds of the attack"
        serve(site, "n1")
        assert site.run(["/bin/ls", "-d", own], check=False).returncode, "the folder stays"
    finally:
        site.run(["/bin/kill", "-KILL", attacker])


@EVERY
def test_switches(site: Cluster) -> None:
    """FAIRLEAD_PROFILE=off|minimal|a preset's name, FAIRLEAD_SKIP, --comment=fairlead:off; malformed is off, said once."""
    _, said = job(
        site,
        """
        FAIRLEAD_PROFILE=off STEP=off srun -n2 SHOW
        FAIRLEAD_PROFILE=minimal STEP=minimal srun -n2 SHOW
        FAIRLEAD_PROFILE=deep STEP=deep srun -n2 SHOW
        FAIRLEAD_PROFILE=none STEP=none srun -n2 SHOW
        FAIRLEAD_PROFILE=../env STEP=path srun -n2 SHOW
        FAIRLEAD_PROFILE=full FAIRLEAD_SKIP=NCCL_DEBUG,TMPDIR STEP=skip srun -n2 SHOW
        FAIRLEAD_PROFILE=full FAIRLEAD_SKIP='A B' STEP=bad srun -n2 SHOW
        """,
        "-n2",
        "-w",
        "n1",
        "--gres=gpu:8",
        FAIRLEAD_PROFILE="off",
    )
    found = {step: env for (step, _, _), env in seen(said).items()}
    ours = {step: {name for name in env if name not in ("FAIRLEAD_SET", "FAIRLEAD_PROFILE")} for step, env in found.items()}
    assert not {"off", "none", "path", "bad"} & {step for step, names in ours.items() if names}
    assert ours["minimal"] == {"CUDA_DEVICE_ORDER"}
    assert found["deep"]["OURS"] == "preset on n1" and "NCCL_DEBUG" not in found["deep"]
    assert "CUDA_DEVICE_ORDER" in ours["deep"]
    assert "CUDA_DEVICE_ORDER" in ours["skip"] and not {"NCCL_DEBUG", "TMPDIR"} & ours["skip"]
    assert "fairlead:" not in said  # only a batch step says it
    for wish in ({"FAIRLEAD_PROFILE": "fast"}, {"FAIRLEAD_SKIP": "A;B"}):
        _, said = job(site, "STEP=batch SHOW; STEP=inner srun -n2 SHOW", "-n2", "-w", "n1", **wish)
        assert said.count("fairlead: FAIRLEAD_") == 1 and not seen(said), said
    _, said = job(site, "STEP=batch SHOW; STEP=inner srun -n2 SHOW", "--comment=fairlead:off", "-n2", "-w", "n1")
    assert not seen(said) and "fairlead" not in said, said


@ONE_RELEASE
def test_explained_from_outside(site: Cluster) -> None:
    """`fairlead env explain --job` reads the tasks' environments as its user, and as root; nobody else's."""
    script = "#!/bin/sh\nexport NCCL_DEBUG=INFO\nsrun -N2 -n2 sh -c 'touch /tmp/up-$SLURM_JOB_ID-$SLURM_PROCID; exec sleep 60'\n"
    number = site.submit(script, *TWO)
    try:
        for rank in (0, 1):
            until(lambda rank=rank: site.run(["/bin/ls", f"/tmp/up-{number}-{rank}"], check=False).returncode == 0, "no step")  # type: ignore[misc]
        tasks = of_job(str(number), f"/proc/{site.pid}/root/proc")
        assert [(t.step, t.rank) for t in tasks] == [("batch", ""), ("0", "0"), ("0", "1")]
        told = [{v["name"]: v for v in explain(t.environment, rows=assemble(interface="?"))} for t in tasks]
        assert [each["NCCL_DEBUG"]["origin"] for each in told] == ["fairlead", "user", "user"]
        assert told[1]["NCCL_DEBUG"]["overrides"] == "WARN"
        assert [each["GLOO_SOCKET_IFNAME"]["now"] for each in told] == [FIRST, FIRST, SECOND]
        assert of_job("999999", f"/proc/{site.pid}/root/proc") == ()
    finally:
        site.run(["/usr/bin/scancel", str(number)])
        site.wait_job(number)


@ONE_RELEASE
def test_nothing_of_ours_makes_a_job_fail(site: Cluster) -> None:
    """Tables that are cut off or gone, a scratch folder that is gone, full or read-only: the job runs."""
    dirs = site.node_dirs("n1")
    whole = (dirs.run / "env").read_text()
    try:
        for text in ("", whole[:-3], "garbage\n", whole.replace("/local1", "/nowhere"), whole.replace("/local1", "/proc")):
            (dirs.run / "env").write_text(text)
            _, said = job(site, "STEP=batch SHOW; srun -n2 true; echo ran", "-n2", "-w", "n1")
            assert "ran" in said
            assert all("TMPDIR" not in env for env in seen(said).values())
    finally:
        publish(site, "n1")
    assert Path(dirs.run / "env").read_text() == whole


@ONE_RELEASE
def test_a_site_may_let_each_batch_job_say_once_what_fairlead_does(site: Cluster) -> None:
    """A job of four tasks and two steps has one line; none where the site or the user has switched it off."""
    script = "echo begin; srun -N2 -n4 true; srun -N2 -n4 true"
    options = ("-N2", "-n4", "-c28", "--gres=gpu:8", "-w", "n1,n2")

    def announced(script: str, *more: str, **env: str) -> list[str]:
        return [line for line in job(site, script, *options, *more, **env)[1].splitlines() if "fairlead" in line]

    assert announced(script) == [], "it is off by default"
    try:
        for name in WHERE:
            publish(site, name, notice=True)
        assert announced(script) == [NOTICE]
        assert job(site, script, *options)[1].splitlines()[:2] == [NOTICE, "begin"]
        assert announced(script, FAIRLEAD_PROFILE="off") == []
        assert announced(script, "--comment=fairlead:off") == []
        only_steps = f"export FAIRLEAD_PROFILE=off; {script}"
        assert announced(only_steps) == [NOTICE], "the line was printed before the steps were switched off"
    finally:
        for name in WHERE:
            publish(site, name)
