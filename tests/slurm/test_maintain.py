"""`fairlead maintain` on real slurmctld of every release: who is drained, who is not, who is resumed, and by whom."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.provision.maintain import drain_room
from fairlead.provision.maintain.controller import silent
from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_report import report
from fairlead.provision.maintain.maintenance_steps import MaintenanceStep
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.provision.test_maintain_journal import fill
from tests.slurm.conftest import save
from tests.slurm.maintained import Bench, benched, driven, on, wait

pytestmark = pytest.mark.slurm


@pytest.fixture
def bench(cluster: Cluster, client: Scontrol, tmp_path: Path) -> Iterator[Bench]:
    with benched(cluster, client, tmp_path) as made:
        yield made


def test_nodes_are_drained_changed_rebooted_and_resumed(bench: Bench) -> None:
    before = {n: bench.nodes.boot_id(n) for n in bench.nodes.names}
    job = bench.cluster.submit("#!/bin/sh\nsleep 3\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING", "COMPLETED")
    said = bench.drive(bench.begin(reboot=True))
    assert {n.node: n.step for n in said.nodes} == dict.fromkeys(bench.nodes.names, "done"), said
    assert bench.cluster.job_state(job) == "COMPLETED"
    for node in bench.nodes.names:
        assert bench.nodes.boot_id(node) != before[node] and bench.nodes.reboots[node] == 1
        assert bench.nodes.effective(node) == "0" and bench.reason(node) == ""
    assert {n.rebooted for n in said.nodes} == {True} and said.exit_code == 0


@on("bookworm")
def test_who_is_held_by_others_is_not_touched(bench: Bench) -> None:
    bench.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=psu, ann")
    bench.cluster.scontrol("update", "nodename=n2", "state=drain", "reason=fairlead:maintain:abcdef123456 from another host")
    said = bench.drive(bench.begin())
    assert {n.node: n.step for n in said.nodes} == {"n1": "skipped", "n2": "skipped", "n3": "done"}
    assert "psu, ann" in said.nodes[0].detail and "another `fairlead maintain`" in said.nodes[1].detail
    assert bench.reason("n1") == "psu, ann" and bench.reason("n2").endswith("from another host") and said.exit_code == 75
    assert not (bench.nodes.folder / "n1/applied").exists()


@on("bookworm")
def test_an_admins_drain_in_the_middle_is_left_alone(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1", "n2", reboot=True)
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "waiting", "n2": "done"}, "n1 waits, n2 is done")
    bench.cluster.scontrol("update", "nodename=n1", "state=drain", "reason=ann: bad fan")
    assert child.wait(90) == 0
    assert bench.steps(run) == {"n1": "taken", "n2": "done"} and bench.reason("n1") == "ann: bad fan"
    assert bench.cluster.job_state(job) == "RUNNING" and bench.nodes.reboots["n1"] == 0
    brought_back(bench, run, capsys)


def brought_back(bench: Bench, run: MaintenanceRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Both drains of a run that has ended stand again, as after a slurmctld that was killed before it had saved the last of it.
    n2 was done: lifted again; n1 was somebody's: said; n3 has a drain of another admin host's."""
    for work in bench.journal.run(run.id).works:
        bench.cluster.scontrol("update", f"nodename={work.slurm}", "state=drain", f"reason={work.text}")
    bench.cluster.scontrol("update", "nodename=n3", "state=drain", "reason=fairlead:maintain:abcdef123456 from another host")
    command = ["maintain", "--resume", run.id, "--journal", bench.path, "--slurm-conf", "/etc/slurm/slurm.conf"]
    capsys.readouterr()
    assert main([*command, "--bin-dir", "/nonexistent"]) == 64 and "nothing to go on with" in capsys.readouterr().err
    assert main([*command, "--bin-dir", str(bench.cluster.bin)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"n1: the drain of run {run.id} is back: ") and first.endswith("nodename=n1 state=resume")
    assert second == f"n2: resumed again, as run {run.id} had left it and slurmctld has forgotten"
    assert bench.reason("n1") and not bench.reason("n2") and bench.reason("n3").endswith("from another host")


@on("forky")
def test_a_busy_node_is_given_back_and_its_job_goes_on(bench: Bench) -> None:
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    said = bench.drive(bench.begin("n1", max_wait=1.0))
    assert (said.nodes[0].step, said.nodes[0].condition) == ("given_back", "given back as it was") and said.exit_code == 75
    assert bench.reason("n1") == "" and bench.cluster.job_state(job) == "RUNNING"


@on("trixie")
def test_what_is_not_well_stays_drained_and_says_why(bench: Bench) -> None:
    """One comes back sick, one not at all; the third is not begun, and a later run takes up what this one has left."""
    bench.nodes.findings["n1"] = [
        {"id": "x", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8 GPUs"}
    ]
    bench.nodes.lost.add("n2")
    run = bench.begin(reboot=True, batch=2, max_failed=1, verify_seconds=6.0, reboot_seconds=20.0)
    said = bench.drive(run)
    assert {n.node: n.step for n in said.nodes} == {"n1": "failed", "n2": "failed", "n3": "not_begun"} and said.exit_code == 69
    assert "FAILED: not well after 6 s: gpu_count: 7 of 8 GPUs" in bench.reason("n1")
    assert "FAILED: did not come back in 20 s: ssh: connect to host n2 port 22: No route to host" in bench.reason("n2")
    assert all(bench.reason(n).startswith("fairlead:maintain:") for n in ("n1", "n2")) and not bench.reason("n3")
    bench.nodes.findings["n1"] = []
    bench.nodes.lost.clear()
    wait(lambda: bench.nodes.up("n2"), "n2 is back")
    again = bench.drive(bench.begin())
    assert {n.step for n in again.nodes} == {"done"} and not any(bench.reason(n) for n in bench.nodes.names)


@on("forky")
def test_another_machine_at_the_address_is_not_resumed(bench: Bench) -> None:
    bench.nodes.swap("n1")
    said = bench.drive(bench.begin("n1", reboot=True))
    assert said.nodes[0].step == "failed" and "FAILED: not the same machine: it was machine-id" in bench.reason("n1")


@on("bookworm")
def test_batch_and_floor_hold(bench: Bench) -> None:
    """Eight nodes, six of which stay usable, of which a person has drained one: one at a time."""
    bench.cluster.scontrol("update", "nodename=n8", "state=drain", "reason=ann")
    run = bench.begin(batch=3, floor=["main=75%"])
    child = driven(bench, run)
    looks = []
    while child.poll() is None:
        looks.append(bench.client.nodes())
        time.sleep(0.05)
    assert child.returncode == 0 and set(bench.steps(run).values()) == {"done"}
    assert max(sum(n.drained and n.name != "n8" for n in reading) for reading in looks) == 1
    serving = [
        [n.name for n in reading if n.available and not silent(n)] for reading in looks
    ]  # what was resumed answers slurmctld
    assert min(map(len, serving)) == 6, min(serving, key=len)


@on("trixie")
def test_a_window_that_ends_in_the_middle_and_the_next_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it begins nothing is drained; what is under way at its end is finished, no other is begun, and the next goes on."""
    monkeypatch.setattr(drain_room, "EXPECTED_SECONDS", {False: 0.1, True: 0.1})
    bench.nodes.lost.add("n1")
    opens = time.time() + 1.5
    run = bench.begin(reboot=True, batch=1, opens=opens, window=opens + 3600)
    maintenance = bench.maintenance(run)

    def close() -> None:
        """The window ends while n1 is down; only then is it back."""
        try:
            wait(
                lambda: maintenance.works[0].step is MaintenanceStep.REBOOTING and not bench.nodes.up("n1"), "n1 is under way", 90
            )
            maintenance._plan = replace(run.plan, window=time.time())
            wait(lambda: bool(maintenance.closed), "the window has ended")
        finally:
            bench.nodes.lost.clear()

    with ThreadPoolExecutor(1) as beside:
        closing = beside.submit(close)
        assert not maintenance.drive()
        closing.result()
    first, *rest = bench.journal.run(run.id).works
    assert (first.step, {w.step for w in rest}) == (MaintenanceStep.DONE, {MaintenanceStep.QUEUED}) and first.began >= opens
    assert maintenance.closed == "the window has ended" and not any(bench.reason(n) for n in bench.nodes.names)
    assert report(bench.journal.run(run.id)).exit_code == 75
    bench.journal.replan(run, replace(run.plan, opens=0.0, window=time.time() + 300))
    assert {n.step for n in bench.drive(run).nodes} == {"done"} and bench.journal.run(run.id).ended


@on("bookworm")
def test_a_clock_that_goes_back_a_year_while_nodes_reboot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """n1 never comes back, and has failed after its few seconds. n2 is done."""
    true, wrong = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: true() + wrong[0])
    bench.nodes.lost.add("n1")
    run = bench.begin("n1", "n2", reboot=True, batch=2, reboot_seconds=8.0)
    maintenance = bench.maintenance(run)

    def go_back() -> None:
        wait(lambda: maintenance.works[0].step is MaintenanceStep.REBOOTING and not bench.nodes.up("n1"), "n1 is under way", 90)
        wrong[0] = -365 * 86400.0

    try:
        with ThreadPoolExecutor(1) as beside:
            going = beside.submit(go_back)
            assert maintenance.drive()
            going.result()
    finally:
        bench.nodes.lost.clear()
    first, second = bench.journal.run(run.id).works
    assert (first.step, second.step) == (MaintenanceStep.FAILED, MaintenanceStep.DONE)
    assert "did not come back in 8 s" in first.detail and bench.reason("n1") and not bench.reason("n2")


@on("forky")
def test_slurmctld_restarted_in_the_middle(bench: Bench) -> None:
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1", "n2")
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "waiting", "n2": "done"}, "n1 waits")
    save(bench.cluster, "n3")  # or it comes back with n2 drained, or with what another test had drained
    bench.cluster.stop_slurmctld(kill=True)
    time.sleep(1.5)
    bench.cluster.start_slurmctld()
    wait(lambda: bench.reason("n1") != "", "our drain, or it again")
    bench.cluster.run(["/usr/bin/scancel", str(job)])
    assert child.wait(120) == 0
    assert bench.steps(run) == {"n1": "done", "n2": "done"}, bench.journal.log(run.id)
    assert not bench.reason("n1") and not bench.reason("n2")


@on("trixie")
def test_two_runs_over_the_same_nodes(bench: Bench) -> None:
    first = bench.begin("n1", "n2")
    second = bench.begin("n2", "n3")
    said = bench.drive(second)
    assert {n.node: n.step for n in said.nodes} == {"n2": "skipped", "n3": "done"} and first.id in said.nodes[0].detail
    assert {n.step for n in bench.drive(first).nodes} == {"done"}


@on("trixie")
def test_a_full_disk_below_the_journal(bench: Bench, tmp_path: Path) -> None:
    """What is in work is written to its end, nothing new is begun, and with room again the same run goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], check=True)
    try:
        bench.path = str(disk / "maintain.db")
        bench.journal = Journal(bench.path)
        jobs = [bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", node) for node in ("n1", "n2")]
        for job in jobs:
            bench.cluster.wait_job(job, "RUNNING")
        run = bench.begin("n1", "n2", batch=1)
        child = driven(bench, run)
        wait(lambda: sorted(bench.steps(run).values()) == ["queued", "waiting"], "one waits")
        fill(disk)
        bench.cluster.run(["/usr/bin/scancel", *map(str, jobs)])
        assert child.wait(120) == 0 and sorted(bench.steps(run).values()) == ["done", "queued"]
        assert not bench.reason("n1") and not bench.reason("n2")
        (disk / "filler").unlink()
        assert {n.step for n in bench.drive(run).nodes} == {"done"}
    finally:
        bench.journal.close()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@on("trixie")
def test_an_abort_leaves_every_node_in_a_stated_condition(bench: Bench) -> None:
    """Waiting for a job: given back. In the reboot: drained, and says so. What is done stays done."""
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n1")
    bench.cluster.wait_job(job, "RUNNING")
    bench.nodes.lost.add("n2")
    run = bench.begin("n2", "n1", "n3", reboot=True, batch=2)
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n2": "rebooting", "n3": "rebooting", "n1": "queued"}, "both are rebooted")
    wait(lambda: bench.steps(run)["n1"] == "waiting", "n3 is done and n1 waits")
    child.kill()
    child.wait()
    said = bench.drive(run, aborting=True)
    assert {n.node: n.step for n in said.nodes} == {"n2": "failed", "n1": "given_back", "n3": "done"}, said
    assert "FAILED: aborted while it was to be rebooted" in bench.reason("n2") and not bench.reason("n1")
    assert said.state == "aborted" and bench.cluster.job_state(job) == "RUNNING"


def killed_and_resumed(bench: Bench, at: int, when: str) -> bool:
    """A run that is killed at that write and driven again; whether it got that far."""
    for name in bench.nodes.names[:2]:
        bench.nodes.fresh(name)
    before = {n: bench.nodes.reboots[n] for n in bench.nodes.names}
    run = bench.begin("n1", "n2", reboot=True, batch=1)
    killed = driven(bench, run, at, when).wait(150) == -signal.SIGKILL
    said = bench.drive(run) if killed else report(bench.journal.run(run.id))
    assert {n.step for n in said.nodes} == {"done"}, (at, when, said)
    for name in ("n1", "n2"):
        assert bench.nodes.reboots[name] == before[name] + 1 and bench.nodes.effective(name) == "0", (at, when)
        assert not bench.reason(name), (at, when)
    return killed


@on("forky")
@pytest.mark.parametrize(("at", "when"), [(1, "after"), (7, "after")])
def test_killed_at_a_write_to_the_journal(bench: Bench, at: int, when: str) -> None:
    assert killed_and_resumed(bench, at, when)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("up", list(SUITES), indirect=True)
def test_killed_at_every_write_to_the_journal(bench: Bench) -> None:
    at = 0
    while killed_and_resumed(bench, at, "before") and killed_and_resumed(bench, at, "after"):
        at += 1
    assert at > 15
