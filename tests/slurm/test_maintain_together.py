"""Two maintenance runs over one floor, on real slurmctld; and what `fairlead maintain` says where its journal is lost, or where
a person or slurmctld has the last word.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.drains.outcome import Outcome, finish
from fairlead.policy.ownership import MAINTAIN
from fairlead.provision.maintain.controller import silent
from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_steps import MaintenanceStep, NodeWork
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import drain_of
from tests.slurm.maintained import EVERYWHERE, PROJECT, Bench, benched, driven, on, wait

pytestmark = pytest.mark.slurm


@pytest.fixture
def bench(cluster: Cluster, client: Scontrol, tmp_path: Path) -> Iterator[Bench]:
    with benched(cluster, client, tmp_path) as made:
        yield made


MEET = """#!/bin/sh
# Whoever drains first has read and waits here, until the other has read too.
case "$*" in *State=DRAIN*)
    for word; do case $word in NodeName=*) : > {here}/met.$word ;; esac; done
    tries=0
    while [ "$(ls {here}/met.* | wc -l)" -lt 2 ] && [ $tries -lt 900 ]; do sleep 0.05; tries=$((tries + 1)); done ;;
esac
exec {real}/scontrol "$@"
"""


def meeting(bench: Bench, folder: Path) -> str:
    """Slurm's commands, of which the first two drains meet between their reading and their writing."""
    folder.mkdir()
    for name in ("sinfo", "squeue"):
        (folder / name).symlink_to(bench.cluster.bin / name)
    (folder / "scontrol").write_text(MEET.format(here=folder, real=bench.cluster.bin))
    (folder / "scontrol").chmod(0o755)
    return str(folder)


def watched(
    bench: Bench, runs: list[tuple[Bench, MaintenanceRun]], children: list[subprocess.Popen[str]], floor: int, go_on: str
) -> tuple[float, float]:
    """The longest time in seconds that fewer nodes than the floor were usable, until all have ended, and that a question to
    slurmctld took; who is killed goes on. ``go_on``: made when one has given back, for the jobs."""
    longest, since, last, slowest = 0.0, 0.0, time.monotonic(), 0.0
    while any(child.poll() is None for child in children):
        for at, child in enumerate(children):
            if child.poll() == -signal.SIGKILL:
                children[at] = driven(*runs[at])
        if any(s.step == "undoing" for b, run in runs for s in b.journal.log(run.id)):
            bench.cluster.run(["/usr/bin/touch", go_on])
        began = time.monotonic()
        usable = sum(n.available and not silent(n) for n in bench.client.nodes())
        now = time.monotonic()
        slowest = max(slowest, now - began)
        since = 0.0 if usable >= floor else since or last
        longest = max(longest, now - since if since else 0.0)
        last = now
        time.sleep(0.05)
    return longest, slowest


@on("bookworm")
@pytest.mark.parametrize("killed", [None, "after"], ids=["", "killed"])
def test_two_runs_of_two_admin_hosts_keep_one_floor(bench: Bench, tmp_path: Path, killed: str | None) -> None:
    """Each has read room for one more node before the other has drained: one gives back, later both are done. One of them may
    be killed as it has given back."""
    go_on = f"/tmp/go-on-{tmp_path.name}"
    job_script = f"#!/bin/sh\nn=0; while [ ! -e {go_on} ] && [ $n -lt 900 ]; do sleep 0.1; n=$((n+1)); done\n"
    jobs = [bench.cluster.submit(job_script, "-w", node) for node in ("n1", "n2")]
    for job in jobs:
        bench.cluster.wait_job(job, "RUNNING")
    bin_dir = meeting(bench, tmp_path / "bin")
    other = Bench(bench.cluster, bench.client, bench.nodes, tmp_path / "other")
    runs = [(bench, bench.begin("n1", floor=["main=7"])), (other, other.begin("n2", floor=["main=7"]))]
    # 0: draining, 1: sent, 2: waiting, 3: undoing
    children = [driven(b, run, at=3, when=killed or "never", bin_dir=bin_dir) for b, run in runs]
    below, slowest = watched(bench, runs, children, 7, go_on)
    print(f"below the floor for {below:.2f} s at most, load {os.getloadavg()[0]:.0f}; a question took {slowest:.2f} s at most")
    assert [child.returncode for child in children] == [0, 0]
    log = [(s.node, s.step) for b, run in runs for s in b.journal.log(run.id)]
    assert [step for _, step in log].count("undoing") >= 1, log
    assert set(bench.steps(runs[0][1]).values()) | set(other.steps(runs[1][1]).values()) == {"done"}, log
    assert killed or below <= 5.0 + 30 * slowest, "an overshoot lasts five seconds, and what a loaded machine adds"
    assert [bench.cluster.job_state(job) for job in jobs] == ["COMPLETED"] * 2 and not any(map(bench.reason, ("n1", "n2")))


@on("trixie")
def test_the_last_word_on_a_node_is_slurmctlds(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """n1 is done and then drained by Slurm, n2 has failed and a person has resumed it: the report says so."""
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n3")
    bench.cluster.wait_job(job, "RUNNING")
    bench.nodes.findings["n2"] = [
        {"id": "x", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8 GPUs"}
    ]
    run = bench.begin(verify_seconds=1.0)
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "done", "n2": "failed", "n3": "waiting"}, "n3 is in work")
    bench.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=Kill task failed")
    bench.cluster.scontrol("update", "nodename=n2", "state=resume")
    bench.cluster.run(["/usr/bin/scancel", str(job)])
    assert child.wait(90) == 0
    wait(lambda: bench.nodes.up("n2"), "slurmctld hears from n2")
    assert main(bench.words("--show", run.id)) == 0
    said = capsys.readouterr().out
    assert "n1: done, not in service now: drain+idle by root: Kill task failed" in said
    assert "n2: failed, in service now: somebody has resumed it: not well after 1 s: gpu_count: 7 of 8 GPUs" in said
    assert "n3: done, in service\n" in said
    assert [n.in_service for n in bench.report(run).nodes] == [False, True, True]
    words = bench.words("--show", run.id)
    words[words.index("--bin-dir") + 1] = "/nonexistent"
    assert main(words) == 0
    told = capsys.readouterr()
    assert "n1: done, in service when it was done" in told.out or "n[1,3]: done, in service when it was done" in told.out
    assert "not as they are now" in told.err
    only = bench.begin("n3")
    assert bench.drive(only).exit_code == 0
    bench.cluster.scontrol("update", "nodename=n3", "state=drain", "reason=ann")
    assert bench.report(only).exit_code == 75


@on("bookworm")
def test_who_resumes_a_node_that_reboots_is_told_and_wins(bench: Bench) -> None:
    bench.nodes.lost.add("n1")
    run = bench.begin("n1", reboot=True)
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "rebooting"} and bench.nodes.reboots["n1"] == 1, "n1 is down")
    assert bench.reason("n1").endswith(" new driver (node will reboot)")
    bench.cluster.scontrol("update", "nodename=n1", "state=resume")
    assert child.wait(90) == 0
    (work,) = bench.journal.run(run.id).works
    assert work.step is MaintenanceStep.TAKEN and "somebody has resumed it after its reboot was ordered" in work.detail
    assert not bench.reason("n1")


def taken_over(bench: Bench, folder: Path) -> int:
    """`fairlead maintain n1 --take-over`, the whole command up to the apply; its exit code."""
    site = folder / "site.toml"
    site.write_text('schema = 1\n[classes.h100]\nnodes = "n[1-3]"\nprofile = "hgx-h100"\n')
    availability = ("--site", str(site), "--ssh", str(bench.nodes.folder / "ssh"))
    words = bench.words("n1", "--take-over", "--reason", "new driver", *availability)
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    return subprocess.run([sys.executable, "-m", "fairlead", *words], env=env, timeout=120, check=False).returncode


@on("forky")
def test_drains_that_a_lost_journal_hides_are_found(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal is emptied while n1 waits: --list and --resume say so and name n1, and --take-over takes it up."""
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1")
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "waiting"}, "n1 waits")
    child.kill()
    child.wait()
    reason = bench.reason("n1")
    bench.journal.close()
    os.truncate(bench.path, 0)
    for word in ("--list", "--show", "--resume", "--abort"):
        assert main(bench.words(word)) == 65
        said = capsys.readouterr().err
        assert f"n1 is drained by a maintenance run that {bench.path} does not know: {reason}\n" in said
        assert "`fairlead maintain 'n1' --take-over --reason TEXT`" in said and "its runs are lost" in said
    os.rename(bench.path, f"{bench.path}.lost")
    damaged = Journal(bench.path)
    damaged._db.execute("INSERT INTO run VALUES ('r1', 1, 0, 'running', 'w', 's', 'x')")
    damaged.close()
    assert main(bench.words("--list")) == 65 and reason in capsys.readouterr().err
    os.unlink(bench.path)
    assert main(bench.words("--list")) == 66 and reason in capsys.readouterr().err
    bench.journal = Journal(bench.path)
    assert [n.step for n in bench.drive(bench.begin("n1")).nodes] == ["skipped"] and bench.reason("n1") == reason
    bench.cluster.run(["/usr/bin/scancel", str(job)])
    assert taken_over(bench, tmp_path) == 69  # the machines of this test are not reached over ssh: its apply fails
    (work,) = (w for run in bench.journal.runs() for w in bench.journal.run(run.id).works if w.replaced_reason)
    assert (work.step, work.replaced_reason) == (MaintenanceStep.FAILED, reason) and bench.reason("n1").startswith(MAINTAIN)
    taken = bench.begin("n1", take_over=True)
    assert [n.step for n in bench.drive(taken).nodes] == ["done"] and not bench.reason("n1")


@EVERYWHERE
def test_a_drain_of_maintenance_is_not_adopted_on_the_node(bench: Bench, tmp_path: Path) -> None:
    reason = "fairlead:maintain:abcdef123456 new driver"
    bench.cluster.scontrol("update", "nodename=n1", "state=drain", f"reason={reason}")
    found = finish(drain_of(bench.client, tmp_path, "n1").adopt())
    assert found.outcome is Outcome.ORPHAN and reason in found.detail and bench.reason("n1") == reason


@on("trixie")
def test_what_is_given_to_resume_holds_and_ctrl_c_ends_as_documented(bench: Bench, tmp_path: Path) -> None:
    """--batch and --floor of a run that goes on; 75 after one Ctrl-C with nodes left, 130 after two."""
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.h100]\nnodes = "n[1-3]"\nprofile = "hgx-h100"\n')
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1", "n2", "n3", batch=1, opens=time.time() + 3600, window=time.time() + 7200)

    def going(*more: str) -> subprocess.Popen[str]:
        words = bench.words("--resume", run.id, "--site", str(site), "--ssh", str(bench.nodes.folder / "ssh"), *more)
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
        return subprocess.Popen([sys.executable, "-m", "fairlead", *words], env=env, stderr=subprocess.PIPE, text=True)

    first = going("--batch", "2", "--floor", "main=50%")
    wait(lambda: Path(f"{bench.path}.{run.id}.lock").exists(), "it is driven")
    plan = bench.journal.run(run.id).plan
    assert (plan.batch, plan.floors, plan.opens) == (2, {"main": 4}, run.plan.opens)
    time.sleep(1)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 75 and set(bench.steps(run).values()) == {"queued"}
    bench.journal.replan(run, replace(plan, opens=0.0, window=0.0, batch=1))
    for name in ("n2", "n3"):
        bench.journal.put(
            run.id, ("n1", "n2", "n3").index(name), NodeWork(node=name, slurm=name).at(MaintenanceStep.NOT_BEGUN, time.time())
        )
    first.communicate()
    second = going()
    wait(lambda: bench.steps(run)["n1"] == "waiting", "n1 waits")
    second.send_signal(signal.SIGINT)
    assert second.stderr is not None and any("Press Ctrl-C again" in line for line in second.stderr), "it has heard the first one"
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130 and bench.reason("n1")
    assert "the run is unfinished; go on with --resume" in second.communicate()[1]
    assert {n.node: n.step for n in bench.drive(run, aborting=True).nodes}["n1"] == "given_back"
