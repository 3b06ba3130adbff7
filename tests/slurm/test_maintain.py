"""`fairlead maintain` on real slurmctld of every release: who is drained, who is not, who is resumed, and by whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.daemon.outcome import Outcome, finish
from fairlead.provision.maintain import run as run_module
from fairlead.provision.maintain.controller import Controller, silent
from fairlead.provision.maintain.journal import Journal, Run
from fairlead.provision.maintain.plan import floors, standing
from fairlead.provision.maintain.report import Report, report
from fairlead.provision.maintain.run import Maintenance
from fairlead.provision.maintain.steps import Plan, Step, Work
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.provision.test_maintain_journal import fill
from tests.slurm.conftest import drain_of, save
from tests.slurm.maintained import SYSTEMCTL, Nodes

pytestmark = pytest.mark.slurm
PROJECT = Path(__file__).resolve().parents[2]


def on(suite: str) -> pytest.MarkDecorator:
    """In `make test` on this release, in `make test-all` on all of them."""
    releases = [suite, *(pytest.param(other, marks=pytest.mark.slow) for other in SUITES if other != suite)]
    return pytest.mark.parametrize("up", releases, indirect=True)


class Bench:
    """A cluster with machines, and a journal."""

    def __init__(self, cluster: Cluster, client: Scontrol, nodes: Nodes, folder: Path) -> None:
        self.cluster, self.client, self.nodes = cluster, client, nodes
        self.path = str(folder / "maintain.db")
        self.journal = Journal(self.path)
        self.controller = Controller(client)

    def begin(self, *names: str, **asked: object) -> Run:
        floor = floors(asked.pop("floor", ()), self.controller.listing().places)  # type: ignore[arg-type]
        given = {"reason": "new driver", "batch": 8, "settle_seconds": 0.0, "verify_seconds": 90.0, "reboot_seconds": 90.0}
        listing, over = self.controller.listing(), asked.pop("take_over", False)
        plan = Plan(**{**given, "floors": floor, **asked})  # type: ignore[arg-type]
        works = [Work(node=n, slurm=n, took=standing(n, listing) if over else "") for n in names or self.nodes.names]
        return self.journal.begin(plan, works, site="none", who="test")

    def maintenance(self, run: Run, *, aborting: bool = False) -> Maintenance:
        found = self.journal.run(run.id)
        side = self.nodes.side
        return Maintenance(found, self.journal, self.controller, side, budgets={}, aborting=aborting, poll_seconds=0.1)

    def drive(self, run: Run, *, aborting: bool = False) -> Report:
        self.maintenance(run, aborting=aborting).drive()
        return self.report(run)

    def report(self, run: Run) -> Report:
        """As the command makes it at the end."""
        found, listing = self.journal.run(run.id), self.controller.listing()
        return report(found, {w.node: now for w in found.works if (now := self.controller.standing(w, listing))})

    def words(self, *more: str) -> list[str]:
        """`fairlead maintain` with this cluster's places."""
        slurm = ("--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(self.cluster.bin))
        return ["maintain", "--journal", self.path, *slurm, *more]

    def steps(self, run: Run) -> dict[str, str]:
        return {w.node: w.step.value for w in self.journal.run(run.id).works}

    def reason(self, node: str) -> str:
        state = self.client.node(node)
        return state.reason if state.drained else ""


@pytest.fixture
def bench(cluster: Cluster, client: Scontrol, tmp_path: Path) -> Iterator[Bench]:
    cluster.run(["/bin/sh", "-c", f"printf '#!/bin/sh\\ntouch /run/fairlead/reboot\\n' >{SYSTEMCTL}; chmod 755 {SYSTEMCTL}"])
    with Nodes(cluster, tmp_path / "nodes", ("n1", "n2", "n3")) as nodes:
        yield Bench(cluster, client, nodes, tmp_path)


def wait(what: Callable[[], bool], said: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


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


def brought_back(bench: Bench, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert first.startswith(f"n1: the drain of run {run.id} stands again: ") and first.endswith("nodename=n1 state=resume")
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
    assert work.step is Step.TAKEN and "somebody has resumed it after its reboot was ordered" in work.detail
    assert not bench.reason("n1")


@on("forky")
def test_drains_that_a_lost_journal_hides_are_found(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main(bench.words("--list")) == 66 and reason in capsys.readouterr().err
    bench.journal = Journal(bench.path)
    assert [n.step for n in bench.drive(bench.begin("n1")).nodes] == ["skipped"] and bench.reason("n1") == reason
    bench.cluster.run(["/usr/bin/scancel", str(job)])
    taken = bench.begin("n1", take_over=True)
    assert [n.step for n in bench.drive(taken).nodes] == ["done"] and not bench.reason("n1")


@on("bookworm")
def test_a_drain_of_maintenance_is_not_adopted_on_the_node(bench: Bench, tmp_path: Path) -> None:
    reason = "fairlead:maintain:abcdef123456 new driver"
    bench.cluster.scontrol("update", "nodename=n1", "state=drain", f"reason={reason}")
    found = finish(drain_of(bench.client, tmp_path, "n1").adopt())
    assert found.outcome is Outcome.ORPHAN and reason in found.detail and bench.reason("n1") == reason


@on("bookworm")
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
        bench.journal.put(run.id, ("n1", "n2", "n3").index(name), Work(node=name, slurm=name).at(Step.NOT_BEGUN, time.time()))
    first.communicate()
    second = going()
    wait(lambda: bench.steps(run)["n1"] == "waiting", "n1 waits")
    for _ in range(2):
        second.send_signal(signal.SIGINT)
        time.sleep(1)
    assert second.wait(60) == 130 and bench.reason("n1")
    assert "left in the middle; go on with --resume" in second.communicate()[1]
    assert {n.node: n.step for n in bench.drive(run, aborting=True).nodes}["n1"] == "given_back"


@on("trixie")
def test_what_is_not_well_stays_drained_and_says_why(bench: Bench) -> None:
    """One comes back sick, one not at all; the third is not begun, and a later run takes up what this one has left."""
    bench.nodes.findings["n1"] = [
        {"id": "x", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8 GPUs"}
    ]
    bench.nodes.lost.add("n2")
    run = bench.begin(reboot=True, batch=2, max_failed=1, verify_seconds=2.0, reboot_seconds=10.0)
    said = bench.drive(run)
    assert {n.node: n.step for n in said.nodes} == {"n1": "failed", "n2": "failed", "n3": "not_begun"} and said.exit_code == 69
    assert "FAILED: not well after 2 s: gpu_count: 7 of 8 GPUs" in bench.reason("n1")
    assert "FAILED: did not come back in 10 s: ssh: connect to host n2 port 22: No route to host" in bench.reason("n2")
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
    assert max(sum(n.drained and n.name != "n8" for n in look) for look in looks) == 1
    serving = [[n.name for n in look if n.available and not silent(n)] for look in looks]  # what was resumed answers slurmctld
    assert min(map(len, serving)) == 6, min(serving, key=len)


@on("trixie")
def test_a_window_that_ends_in_the_middle_and_the_next_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it begins nothing is drained; what is under way at its end is finished, no other is begun, and the next goes on."""
    monkeypatch.setattr(run_module, "EXPECTED_SECONDS", {False: 0.1, True: 0.1})
    bench.nodes.lost.add("n1")
    opens = time.time() + 1.5
    run = bench.begin(reboot=True, batch=1, opens=opens, window=opens + 3600)
    maintenance = bench.maintenance(run)

    def close() -> None:
        """The window ends while n1 is down; only then is it back."""
        try:
            wait(lambda: maintenance.works[0].step is Step.REBOOTING and not bench.nodes.up("n1"), "n1 is under way", 90)
            maintenance._plan = replace(run.plan, window=time.time())
            wait(lambda: bool(maintenance.closed), "the window has ended")
        finally:
            bench.nodes.lost.clear()

    with ThreadPoolExecutor(1) as beside:
        closing = beside.submit(close)
        assert not maintenance.drive()
        closing.result()
    first, *rest = bench.journal.run(run.id).works
    assert (first.step, {w.step for w in rest}) == (Step.DONE, {Step.QUEUED}) and first.began >= opens
    assert maintenance.closed == "the window has ended" and not any(bench.reason(n) for n in bench.nodes.names)
    assert report(bench.journal.run(run.id)).exit_code == 75
    bench.journal.replan(run, replace(run.plan, opens=0.0, window=time.time() + 300))
    assert {n.step for n in bench.drive(run).nodes} == {"done"} and bench.journal.run(run.id).ended


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


MEET = """#!/bin/sh
# Whoever drains first has read and waits here, until the other has read too.
case "$*" in *State=DRAIN*)
    : > {here}/met.$$; tries=0
    while [ "$(ls {here}/met.* | wc -l)" -lt 2 ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done ;;
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


def watched(bench: Bench, runs: list[tuple[Bench, Run]], children: list[subprocess.Popen[str]], floor: int) -> float:
    """The longest time in seconds that fewer nodes than the floor were usable, until all have ended; who is killed goes on."""
    longest, since, last = 0.0, 0.0, time.monotonic()
    while any(child.poll() is None for child in children):
        for at, child in enumerate(children):
            if child.poll() == -signal.SIGKILL:
                children[at] = driven(*runs[at])
        usable = sum(n.available and not silent(n) for n in bench.client.nodes())
        now = time.monotonic()
        since = 0.0 if usable >= floor else since or last
        longest = max(longest, now - since if since else 0.0)
        last = now
        time.sleep(0.05)
    return longest


@on("bookworm")
@pytest.mark.parametrize("killed", [None, "after"], ids=["", "killed"])
def test_two_runs_of_two_admin_hosts_keep_one_floor(bench: Bench, tmp_path: Path, killed: str | None) -> None:
    """Each has read room for one more node before the other has drained: one gives back, later both are done. One of them may
    be killed as it has given back."""
    jobs = [bench.cluster.submit("#!/bin/sh\nsleep 12\n", "-w", node) for node in ("n1", "n2")]
    for job in jobs:
        bench.cluster.wait_job(job, "RUNNING")
    bin_dir = meeting(bench, tmp_path / "bin")
    other = Bench(bench.cluster, bench.client, bench.nodes, tmp_path / "other")
    runs = [(bench, bench.begin("n1", floor=["main=7"])), (other, other.begin("n2", floor=["main=7"]))]
    # 0: draining, 1: sent, 2: waiting, 3: undoing
    children = [driven(b, run, at=3, when=killed or "never", bin_dir=bin_dir) for b, run in runs]
    below = watched(bench, runs, children, floor=7)
    print(f"below the floor for {below:.2f} s at most, load {os.getloadavg()[0]:.0f}")
    assert [child.returncode for child in children] == [0, 0]
    log = [(s.node, s.step) for b, run in runs for s in b.journal.log(run.id)]
    assert [step for _, step in log].count("undoing") >= 1, log
    assert set(bench.steps(runs[0][1]).values()) | set(other.steps(runs[1][1]).values()) == {"done"}, log
    assert killed or below <= 5.0
    assert [bench.cluster.job_state(job) for job in jobs] == ["COMPLETED"] * 2 and not any(map(bench.reason, ("n1", "n2")))


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


def driven(bench: Bench, run: Run, at: int = 0, when: str = "never", bin_dir: str = "") -> subprocess.Popen[str]:
    """The run in a process of its own, which ends itself at a write to the journal."""
    tools = bin_dir or str(bench.cluster.bin)
    command = [sys.executable, "-m", "tests.slurm.maintain_killed", tools, str(bench.nodes.folder)]
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"}
    return subprocess.Popen(
        [*command, bench.path, run.id, str(at), when], cwd=PROJECT, env=env, stdout=subprocess.DEVNULL, text=True
    )


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
