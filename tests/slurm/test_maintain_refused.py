"""`fairlead maintain` where slurmctld refuses a node, scontrol is slow or its answer is lost: on real slurmctld.

What happens to one node is told in one line and stops no other node, and what a person sets meanwhile stays.
"""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.drains import node_writer
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.ownership import build
from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_display import SilentDisplay
from fairlead.provision.maintain.maintenance_journal import MaintenanceRun
from fairlead.provision.maintain.maintenance_loop import Maintenance
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.slurm.conftest import PATIENCE_SECONDS, client_of, no_calls, running
from tests.slurm.maintained import Bench, benched, driven, on, wait
from tests.slurm.test_slow_writes import running as slow_ones
from tests.slurm.test_slow_writes import slow, until

pytestmark = pytest.mark.slurm

TEXT = build("maintain", "aaaaaaaaaaaa", "new driver").text
MARK = build("maintain", "aaaaaaaaaaaa", "new driver; FAILED: sick").text
WORK = NodeWork(node="n1", slurm="n1", text=TEXT, mark=MARK, detail="why", since=1.0)
PLAN = MaintenancePlan(reason="new driver")
ANN = "ann: riser swap"
SHORT_SECONDS = 3.0
CONF = "ReturnToService=1\nSuspendTime=86400\nSuspendProgram=/bin/true\nResumeProgram=/bin/true\n"


class Lines(SilentDisplay):
    """What the run says, and the steps of its nodes, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def bench(cluster: Cluster, client: Scontrol, tmp_path: Path) -> Iterator[Bench]:
    with benched(cluster, client, tmp_path) as made:
        yield made


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may stay so long in a step in which slurmctld does not let it go on."""
    monkeypatch.setattr(maintenance_steps, "ANSWER_SECONDS", SHORT_SECONDS)


def tools(cluster: Cluster, folder: Path, update: str) -> Scontrol:
    """A client whose scontrol does this before each update, and whose other commands are Slurm's. ``update``: lines of sh. The
    file ``calls`` of the folder has a line for each call of scontrol."""
    folder.mkdir()
    for name in ("sinfo", "squeue"):
        (folder / name).symlink_to(cluster.bin / name)
    calls = f'echo "$*" >> {folder}/calls'
    program = f'#!/bin/sh\nreal={cluster.bin}/scontrol\n{calls}\nif [ "$1" = update ]; then\n{update}\nfi\nexec $real "$@"\n'
    (folder / "scontrol").write_text(program)
    (folder / "scontrol").chmod(0o755)
    return Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(folder), deadline_seconds=60)


def drive(bench: Bench, run: MaintenanceRun, *, aborting: bool = False, seconds: float = 120) -> tuple[list[str], bool]:
    """Drive the run, and leave it after ``seconds``. Return what it has said, and whether it has ended."""
    shown = Lines()
    maintenance = bench.maintenance(run, aborting=aborting)
    maintenance._shown = shown
    leave = threading.Timer(seconds, lambda: setattr(maintenance, "leave_asked", True))
    leave.start()
    try:
        ended = maintenance.drive()
    finally:
        leave.cancel()
    return shown.lines, ended


CHANGES: dict[str, tuple[MaintenanceStep, Callable[[Controller, NodeWork], object]]] = {
    "drain": (MaintenanceStep.DRAINING, lambda controller, work: controller.drain(work, "")),
    "lift": (MaintenanceStep.LIFTING, lambda controller, work: controller.lift(work, PLAN)),
    "lift after a reboot": (MaintenanceStep.RESUMING, lambda controller, work: controller.lift(work, PLAN)),
    "mark": (MaintenanceStep.MARKING, lambda controller, work: controller.mark(work)),
}


@on("forky")
@pytest.mark.parametrize("what", list(CHANGES))
def test_a_slow_scontrol_of_maintenance_changes_nothing_that_a_person_has_set_meanwhile(
    cluster: Cluster, client: Scontrol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The write is sent soon after the reading or not at all. Otherwise it would lift or overwrite the person's drain or DOWN."""
    down = what == "lift after a reboot"
    state = "down" if down else "drain"
    if what != "drain":
        client.drain("n1", TEXT)
    if down:
        cluster.scontrol("update", "nodename=n1", "state=down", f"reason={TEXT}")
    folder = tmp_path / "bin"
    controller = Controller(tools(cluster, folder, slow(folder, "")))
    step, change = CHANGES[what]
    work = replace(WORK, step=step, boot_after="b" if down else "", since=time.time())
    monkeypatch.setattr(node_writer, "STALE_SECONDS", 5.0)
    with ThreadPoolExecutor(1) as beside:
        changing = beside.submit(change, controller, work)
        try:
            until(lambda: bool(slow_ones(folder)), "scontrol")
            cluster.scontrol("update", "nodename=n1", f"state={state}", f"reason={ANN}")
            with pytest.raises(SlurmUnavailable, match="too slow"):
                changing.result(timeout=30)
        finally:
            (folder / "go").touch()
    until(lambda: not slow_ones(folder), "the end of scontrol")
    no_calls(cluster)
    found = client.node("n1")
    assert found.reason == ANN and ("DOWN" in found.states if down else found.drained)


def fewer_gpus(bench: Bench, name: str) -> None:
    """slurmd of the node comes back with less hardware than slurm.conf says."""
    gres = bench.cluster.folder / "etc/gres.conf"
    kept = [ln for ln in gres.read_text().splitlines() if not (ln.split()[0] == f"NodeName={name}" and "nvidia7" in ln)]
    gres.write_text("\n".join(kept) + "\n")
    bench.cluster.stop_slurmd(name)
    bench.cluster.start_slurmd(name)
    wait(lambda: "INVALID_REG" in bench.client.node(name).states, "an invalid registration")


@on("bookworm")
def test_a_node_whose_resume_slurmctld_refuses_stops_no_other(bench: Bench, short: None) -> None:
    """n1 registers with a GPU less while it waits, and the run is aborted. 22.05 keeps our reason and refuses UNDRAIN."""
    jobs = [bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", name) for name in ("n1", "n2")]
    for job in jobs:
        bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1", "n2", verify_seconds=SHORT_SECONDS)
    child = driven(bench, run)
    wait(lambda: bench.steps(run) == {"n1": "waiting", "n2": "waiting"}, "both wait")
    child.kill()
    child.wait()
    try:
        fewer_gpus(bench, "n1")
        said, ended = drive(bench, run, aborting=True, seconds=60)
        assert ended and bench.steps(run) == {"n1": "failed", "n2": "given_back"}, (said, bench.steps(run))
        assert not bench.reason("n2") and [bench.cluster.job_state(job) for job in jobs] == ["RUNNING", "RUNNING"]
        if bench.cluster.suite == "bookworm":
            assert "FAILED: slurmctld refuses to resume it: " in bench.reason("n1")
            assert len([line for line in said if "refuses" in line]) == 1, said
    finally:
        bench.cluster.write_conf()
        bench.cluster.run(["/usr/bin/scancel", *map(str, jobs)])
        bench.cluster.stop_slurmd("n1")
        bench.cluster.start_slurmd("n1")
        wait(lambda: "INVALID_REG" not in bench.client.node("n1").states, "a valid registration")


@pytest.fixture(params=["trixie", *(pytest.param(s, marks=pytest.mark.slow) for s in ("bookworm", "forky"))])
def own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A cluster of this test alone, whose slurm.conf it may change."""
    monkeypatch.setattr(node_writer, "STALE_SECONDS", PATIENCE_SECONDS)
    made = Cluster(request.param, nodes=3, cores=4, reboot="/bin/true", extra_conf=CONF)
    with running(made) as cluster, benched(cluster, client_of(cluster), tmp_path) as bench:
        yield bench


def test_a_node_that_is_taken_out_of_slurm_conf_stops_no_other(own: Bench, short: None) -> None:
    """The run was killed while n1 was applied, and n1 is no longer in slurm.conf when the run goes on. n2 waits behind n1."""
    run = own.begin("n1", "n2", batch=1, verify_seconds=SHORT_SECONDS)
    own.client.drain("n1", TEXT)
    now = time.time()
    applying = replace(WORK, step=MaintenanceStep.APPLYING, since=now, began=now, drained=now, boot_before="b")
    own.journal.put(run.id, 0, applying)
    own.cluster.slurm_nodes = tuple(n for n in own.cluster.slurm_nodes if n.name != "n1")
    own.cluster.write_conf()
    own.cluster.stop_slurmctld()
    own.cluster.start_slurmctld()
    wait(lambda: {n.name: n.states for n in own.client.nodes()} == dict.fromkeys(("n2", "n3"), frozenset({"IDLE"})), "two nodes")
    said, ended = drive(own, run, seconds=60)
    assert ended and own.steps(run) == {"n1": "taken", "n2": "done"}, (said, own.steps(run))
    assert [line for line in said if "no such node" in line] == ["n1: slurmctld has no such node any more"]


def test_a_node_that_slurmctld_reboots_is_not_resumed_before_it_is_verified_again(own: Bench) -> None:
    """A person orders the reboot after the verification. The node is DOWN by that reboot, and not by the run's own."""
    own.client.drain("n1", TEXT)
    own.cluster.scontrol("reboot", "n1")
    wait(lambda: "REBOOT_ISSUED" in own.client.node("n1").states, "the reboot is issued")
    move = own.controller.lift(replace(WORK, step=MaintenanceStep.RESUMING, boot_after="b", since=time.time()), PLAN)
    found = own.client.node("n1")
    assert {"DRAIN", "REBOOT_ISSUED"} <= found.states and found.reason == f"{TEXT} : reboot issued", found
    assert move is not None and move.step is MaintenanceStep.VERIFYING and "rebooting" in move.why


def test_a_node_that_slurmctld_reboots_is_applied_only_when_it_is_back(own: Bench) -> None:
    """A person has ordered the reboot while the node had a job. The job ends, and slurmctld reboots the node."""
    run = own.begin("n1")
    own.client.drain("n1", TEXT)
    now = time.time()
    own.journal.put(run.id, 0, replace(WORK, step=MaintenanceStep.WAITING, since=now, began=now, drained=now, kept=True))
    own.cluster.scontrol("reboot", "n1")
    wait(lambda: "REBOOT_ISSUED" in own.client.node("n1").states, "the reboot is issued")
    said, ended = drive(own, run, seconds=6)
    assert not ended and own.steps(run) == {"n1": "waiting"}
    assert [line for line in said if "rebooting" in line] == ["n1: in slurmctld it is rebooting"]
    own.cluster.stop_slurmd("n1")
    own.cluster.start_slurmd("n1", "-b")
    wait(lambda: "REBOOT_ISSUED" not in own.client.node("n1").states, "the node is back")
    assert [n.step for n in own.drive(run).nodes] == ["done"]


def test_a_node_that_slurmctld_powers_down_is_not_said_to_be_resumed_by_a_person(own: Bench) -> None:
    run = own.begin("n1")
    own.client.drain("n1", TEXT)
    now = time.time()
    own.journal.put(run.id, 0, replace(WORK, step=MaintenanceStep.WAITING, since=now, began=now, drained=now, kept=True))
    own.cluster.scontrol("update", "nodename=n1", "state=power_down")
    wait(lambda: not own.client.node("n1").drained, "slurmctld lifts the drain")
    own.drive(run)
    (work,) = own.journal.run(run.id).works
    assert work.step is MaintenanceStep.TAKEN and "slurmctld or somebody has lifted its drain (power" in work.detail


@on("trixie")
def test_a_node_that_was_verified_before_the_run_was_away_is_verified_again(bench: Bench) -> None:
    """The run was killed right before the resume, and goes on an hour later. Meanwhile a GPU is lost."""
    run = bench.begin("n1", verify_seconds=SHORT_SECONDS)
    bench.client.drain("n1", TEXT)
    then = time.time() - 3600
    well = replace(WORK, step=MaintenanceStep.RESUMING, since=then, began=then, drained=then, kept=True, mark="", detail="well")
    bench.journal.put(run.id, 0, well)
    bench.nodes.findings["n1"] = [{"id": "x", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8"}]
    bench.drive(run)
    (work,) = bench.journal.run(run.id).works
    assert work.step is MaintenanceStep.FAILED and "gpu_count: 7 of 8" in bench.reason("n1")


@on("trixie")
def test_a_node_in_a_maintenance_reservation_is_begun_once_and_not_again_and_again(bench: Bench) -> None:
    """The reservation alone leaves fewer usable nodes than the floor, and the run's drain takes none of them."""
    nodes = "n1,n2,n3,n4,n5"
    bench.cluster.scontrol(
        "create", "reservation=maint", "starttime=now", "duration=30", f"nodes={nodes}", "users=root", "flags=maint"
    )
    wait(lambda: "MAINTENANCE" in bench.client.node("n1").states, "the reservation")
    run = bench.begin("n1", floor=["main=50%"])
    _, ended = drive(bench, run, seconds=40)
    steps = [s.step for s in bench.journal.log(run.id)]
    assert ended and bench.steps(run) == {"n1": "done"}, steps
    assert steps.count("draining") == 1, steps


@on("bookworm")
def test_a_node_that_is_done_costs_no_question_in_each_turn(bench: Bench, tmp_path: Path) -> None:
    """n1 was done so fast that slurmctld may not have saved its drain. n2 waits for its job."""
    bench.controller = Controller(tools(bench.cluster, tmp_path / "bin", ":"))
    job = bench.cluster.submit("#!/bin/sh\nsleep 600\n", "-w", "n2")
    bench.cluster.wait_job(job, "RUNNING")
    run = bench.begin("n1", "n2", max_wait=600.0)
    maintenance = bench.maintenance(run)
    asked: list[int] = []

    def watch() -> None:
        steps = lambda: [w.step for w in maintenance.works]  # noqa: E731
        try:
            wait(lambda: steps() == [MaintenanceStep.DONE, MaintenanceStep.WAITING], "n1 is done, n2 waits")
            for _ in range(2):
                asked.append((tmp_path / "bin/calls").read_text().count("show config"))
                time.sleep(4)
        finally:
            maintenance.leave_asked = True

    with ThreadPoolExecutor(1) as beside:
        watching = beside.submit(watch)
        maintenance.drive()
        watching.result()
    assert asked[1] - asked[0] <= 1, asked  # one more may be on its way for n2, whose drain is new


@on("bookworm")
def test_a_drain_whose_answer_is_lost_is_the_runs_own(bench: Bench, tmp_path: Path) -> None:
    """slurmctld drains the node, and scontrol ends with an error all the same: the node is not left drained as "not touched"."""
    lost = '$real "$@" >/dev/null; case "$*" in *State=DRAIN*) echo "slurm_update error: Unexpected message received" >&2; exit 1'
    bench.controller = Controller(tools(bench.cluster, tmp_path / "bin", f"{lost} ;; *) exit 0 ;; esac"))
    said = bench.drive(bench.begin("n1"))
    assert [n.step for n in said.nodes] == ["done"] and not bench.reason("n1"), said


@on("trixie")
def test_a_drain_that_a_person_sets_as_the_node_is_resumed_is_put_back(bench: Bench, tmp_path: Path) -> None:
    """24.11 without slurmdbd leaves the person's reason on the node, so the run sees what its UNDRAIN has lifted."""
    theirs = f"$real update nodename=n1 state=drain reason='{ANN}'"
    once = f'case "$*" in *State=UNDRAIN*) [ -e {tmp_path}/once ] || {{ : > {tmp_path}/once; {theirs}; }} ;; esac'
    bench.controller = Controller(tools(bench.cluster, tmp_path / "bin", once))
    run = bench.begin("n1")
    bench.drive(run)
    assert (tmp_path / "once").exists()
    if bench.cluster.suite == "trixie":
        (work,) = bench.journal.run(run.id).works
        assert bench.reason("n1") == ANN
        assert work.step is MaintenanceStep.TAKEN and "put back" in work.detail


@on("forky")
def test_a_node_whose_mark_slurmctld_refuses_stops_no_other(bench: Bench, tmp_path: Path) -> None:
    refuse = 'case "$*" in *NodeName=n1*FAILED*) echo "slurm_update error: Access/permission denied" >&2; exit 1 ;; esac'
    bench.controller = Controller(tools(bench.cluster, tmp_path / "bin", refuse))
    bench.nodes.findings["n1"] = [{"id": "x", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8"}]
    run = bench.begin("n1", "n2", verify_seconds=SHORT_SECONDS)
    said, ended = drive(bench, run, seconds=60)
    first, second = bench.journal.run(run.id).works
    assert ended and (first.step, second.step) == (MaintenanceStep.FAILED, MaintenanceStep.DONE), said
    assert "gpu_count: 7 of 8" in first.detail and "Access/permission denied" in first.detail
    assert bench.reason("n1") == first.text


@on("forky")
def test_readings_that_take_too_long_are_said_once(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the primary's host does not answer: nothing is written, and the run says why it waits."""
    bin_dir = tmp_path / "bin"
    bench.controller = Controller(tools(bench.cluster, bin_dir, ":"))
    wait_for_one = f'case "$*" in *" -n "*) [ -e {bin_dir}/fast ] || sleep 1.2 ;; esac'
    slow_sinfo = f'#!/bin/sh\n{wait_for_one}\nexec {bench.cluster.bin}/sinfo "$@"\n'
    (bin_dir / "sinfo").unlink()
    (bin_dir / "sinfo").write_text(slow_sinfo)
    (bin_dir / "sinfo").chmod(0o755)
    monkeypatch.setattr(node_writer, "STALE_SECONDS", 1.0)
    run = bench.begin("n1")
    shown = Lines()
    maintenance: Maintenance = bench.maintenance(run)
    maintenance._shown = shown

    def be_fast() -> None:
        """The readings are fast again some turns after the line."""
        try:
            wait(lambda: any("take longer than" in line for line in shown.lines), "a line", 30)
            time.sleep(4)
            assert not bench.reason("n1")
        finally:
            monkeypatch.setattr(node_writer, "STALE_SECONDS", PATIENCE_SECONDS)
            (bin_dir / "fast").touch()

    with ThreadPoolExecutor(1) as beside:
        watching = beside.submit(be_fast)
        assert maintenance.drive()
        watching.result()
    assert bench.steps(run) == {"n1": "done"}, bench.journal.log(run.id)
    assert len([line for line in shown.lines if "take longer than" in line]) == 1, shown.lines


@on("bookworm")
def test_a_drain_that_is_back_and_cannot_be_lifted_stops_no_other(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the end of the run slurmctld has restored both drains. It refuses to resume n1."""
    run = bench.begin("n1", "n2")
    bench.drive(run)
    for work in bench.journal.run(run.id).works:
        bench.cluster.scontrol("update", f"nodename={work.slurm}", "state=drain", f"reason={work.text}")
    refuse = 'case "$*" in *NodeName=n1*UNDRAIN*) echo "slurm_update error: Invalid node state specified" >&2; exit 1 ;; esac'
    tools(bench.cluster, tmp_path / "bin", refuse)
    words = bench.words("--resume", run.id)
    words[words.index("--bin-dir") + 1] = str(tmp_path / "bin")
    capsys.readouterr()
    assert main(words) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("n1: not resumed: ") and "Invalid node state specified" in first
    assert second.startswith("n2: resumed again") and not bench.reason("n2") and bench.reason("n1")


@on("forky")
def test_a_warning_that_every_command_prints_is_no_error(bench: Bench) -> None:
    """A line of an old slurm.conf: each command warns on standard error. Without a job squeue then prints nothing else."""
    before = bench.cluster.extra_conf
    bench.cluster.write_conf(extra_conf=f"{before}BackupController=elsewhere\n")
    try:
        run = bench.begin("n1")
        said, ended = drive(bench, run, seconds=60)
    finally:
        bench.cluster.write_conf(extra_conf=before)
    assert ended and bench.steps(run) == {"n1": "done"} and not said, said


@pytest.mark.parametrize("printed", ["", "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0"])
def test_a_cut_answer_is_no_registration_after_a_reboot(tmp_path: Path, printed: str) -> None:
    """Another text than before the reboot would count as a new registration."""
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(SlurmError, match="has no SlurmdStartTime"):
        Controller(Scontrol(bin_dir=str(tmp_path))).registered(WORK)


def test_the_user_of_a_drain_is_the_process_not_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`runuser -u` and `setpriv` leave LOGNAME as it is. Every drain of the run would count as somebody else's."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "ann")
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    assert Controller(Scontrol())._rules.own_users == ("root", "slurm", "nobody")


@pytest.mark.parametrize("warning", ["", "sinfo: error: read_slurm_conf: default partition not set"])
def test_a_list_without_a_node_takes_no_node_out_of_slurm(tmp_path: Path, warning: str) -> None:
    """`--abort` would otherwise leave every node of the run drained, because slurmctld has no such node any more."""
    for name in ("sinfo", "squeue"):
        (tmp_path / name).write_text(f"#!/bin/sh\n[ -z '{warning}' ] || echo '{warning}' >&2\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(SlurmError, match="sinfo"):
        Controller(Scontrol(bin_dir=str(tmp_path))).listing()
