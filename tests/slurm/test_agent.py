"""The whole agent, as a process, against real slurmctld: kernel line to DRAIN and back, and everybody who comes between."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.why_text import why_text
from fairlead.model.verdict import State
from tests.daemon.conftest import XID79, Agent
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES
from tests.lab.silent import silent_disk, why_not
from tests.lab.trees import MACHINES
from tests.slurm.conftest import client_of, kill_slurmctld, running, save
from tests.slurm.test_began import registered

pytestmark = pytest.mark.slurm

Make = Callable[..., Agent]


def xid79(n: int = 1) -> str:
    return XID79.format(n=n, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6))


@pytest.fixture
def agents(cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    made: list[Agent] = []

    def make(name: str = "n1", **options: dict[str, Any]) -> Agent:
        slurm = {
            "conf": "/etc/slurm/slurm.conf",
            "bin_dir": str(cluster.bin),
            "node_name": name,
            "deadline_seconds": 2,
            "reconcile_seconds": 1,
        }
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        options = {"policy": {"budget_percent": 100}, **options}
        agent = Agent(folder, MACHINES / "hgx-h100", slurm=slurm, **options)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        if agent.process is not None and agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()


def drained(agent: Agent, cluster: Cluster, name: str = "n1") -> str:
    """Wait for the verdict ``drain``; the reason in slurmctld."""
    agent.until(lambda: agent.verdict().state is State.DRAIN, "verdict drain")
    node = client_of(cluster).node(name)
    assert "DRAIN" in node.states
    return node.reason


def test_xid_to_drain_and_a_persons_resume(agents: Make, cluster: Cluster) -> None:
    agent = agents().start()
    agent.kernel(xid79())
    reason = drained(agent, cluster)
    assert reason.startswith("fairlead:xid:") and "0000:1b:00.0" in reason and "79" in reason and "python3" not in reason
    agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == reason, "the drain in the status")
    cluster.scontrol("update", "nodename=n1", "state=resume")
    agent.until(lambda: "acknowledged" in agent.verdict().text, "acknowledgement")
    assert agent.verdict().state is State.WARN
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 4, "later verdicts")
    assert not client_of(cluster).node("n1").drained
    agent.kernel(xid79(2))
    assert drained(agent, cluster) != reason


@pytest.mark.root
@pytest.mark.one_release
def test_a_drain_while_the_disk_does_not_answer(agents: Make, cluster: Cluster, tmp_path: Path) -> None:
    """The ledger goes to /run; a killed agent knows the drain for its own, with the disk silent and after it has come back."""
    if why_not():
        pytest.skip(why_not())
    with silent_disk(tmp_path / "silent") as disk:
        agent = agents(agent={"state_dir": f"{disk.mount}/state"})
        agent.before = disk.enter
        agent.start()
        disk.freeze()
        agent.kernel(xid79())
        reason = drained(agent, cluster)
        agent.until(lambda: "the disk does not answer" in str(agent.status()["trouble"]), "word of the disk")
        first = agent.process
        agent.send(signal.SIGKILL)
        agent.start(wait=False)
        agent.kernel(xid79())
        agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == reason, "the drain in the next agent's status")
        disk.thaw()
        assert first is not None
        first.wait(60)
        agent.until(lambda: not any("answer" in told for told in agent.status()["trouble"]), "status without that trouble")
        agent.end(signal.SIGKILL)
        sequence = agent.sequence()
        agent.start(wait=False)
        agent.until(lambda: agent.sequence() > sequence, "verdict of the third agent")
        assert drained(agent, cluster) == reason


@pytest.mark.parametrize("up", ["trixie"], indirect=True)
def test_a_drain_that_a_killed_slurmctld_forgot_is_made_again(agents: Make, cluster: Cluster) -> None:
    agent = agents().start()
    client = client_of(cluster)
    for attempt in range(1, 6):
        save(cluster)
        agent.kernel(xid79(attempt))
        reason = drained(agent, cluster)
        kill_slurmctld(cluster)
        registered(client)
        agent.until(lambda: client.node("n1").drained, "the drain, this one or another", seconds=60)
        node = client.node("n1")
        if node.reason != reason:  # it was lost: or else it had been saved after all, which is seldom
            break
        cluster.scontrol("update", "nodename=n1", "state=resume")
        agent.until(lambda: "acknowledged" in agent.verdict().text, "acknowledgement", seconds=60)
    assert node.reason.startswith("fairlead:xid:") and node.reason != reason
    agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == node.reason, "the drain in the status")
    assert agent.verdict().state is State.DRAIN and "acknowledged" not in agent.verdict().text
    assert '"drain lost"' in (agent.state_dir / "audit.jsonl").read_text()


@pytest.mark.release("trixie")
def test_a_persons_resume_is_seen_at_once_on_sigusr1(agents: Make, cluster: Cluster) -> None:
    """As `fairlead resume` and `fairlead hold` send it: until then our prolog would refuse jobs on a node in service."""
    agent = agents(agent={"interval_seconds": 600})
    agent.write_document(
        slurm={"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "reconcile_seconds": 600},
        agent={"interval_seconds": 600},
        policy={"budget_percent": 100},
    )
    agent.start()
    agent.kernel(xid79())
    drained(agent, cluster)
    cluster.scontrol("update", "nodename=n1", "state=resume")
    agent.send(signal.SIGUSR1)
    agent.until(lambda: "acknowledged" in agent.verdict().text, "acknowledgement")
    assert not client_of(cluster).node("n1").drained


@pytest.mark.release("bookworm")
def test_what_comes_after_a_persons_resume_drains_again(agents: Make, cluster: Cluster) -> None:
    """The resume is not noticed yet: the new record must not be taken for part of what was acknowledged."""
    agent = agents(agent={"interval_seconds": 0.5}, policy={"budget_percent": 100})
    slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(cluster.bin), "node_name": "n1", "reconcile_seconds": 600}
    agent.write_document(slurm=slurm, policy={"budget_percent": 100})
    agent.start()
    agent.kernel(xid79())
    reason = drained(agent, cluster)
    cluster.scontrol("update", "nodename=n1", "state=resume")
    agent.kernel(xid79(2).replace("1b:00", "43:00"))
    client = client_of(cluster)
    agent.until(lambda: client.node("n1").drained, "another drain")
    assert client.node("n1").reason != reason and "0000:43:00.0" in client.node("n1").reason


@pytest.mark.release("bookworm")
def test_kernel_line_to_drain(agents: Make, cluster: Cluster) -> None:
    """Not a timed assertion: prints what `make bench` measures."""
    agent = agents(agent={"interval_seconds": 600}).start()
    began = time.monotonic()
    agent.kernel(xid79())
    agent.until(lambda: "79" in agent.verdict().text, "decision")
    decided = time.monotonic()
    drained(agent, cluster)
    print(f"\n{cluster.suite}: decided {1000 * (decided - began):.0f} ms, drained {1000 * (time.monotonic() - began):.0f} ms")


@pytest.mark.release("bookworm", "forky")
def test_an_admins_drain_is_left_alone(agents: Make, cluster: Cluster) -> None:
    cluster.scontrol("update", "nodename=n1", "state=drain", "reason=riser swap by ann")
    agent = agents().start()
    agent.kernel(xid79())
    agent.until(lambda: "somebody else has drained" in agent.verdict().text, "word of the other drain")
    assert agent.verdict().state is State.WARN and "ann" not in agent.verdict().text
    agent.until(lambda: "riser swap by ann" in agent.status()["slurm"]["held"], "the whole story in the status")
    assert client_of(cluster).node("n1").reason == "riser swap by ann"


@pytest.mark.release("forky")
def test_a_drain_that_could_not_be_sent_is_sent(agents: Make, cluster: Cluster) -> None:
    agent = agents().start()
    cluster.stop_slurmctld()
    try:
        agent.kernel(xid79())
        agent.until(lambda: "slurmctld does not answer" in agent.verdict().text, "word of slurmctld")
        assert agent.verdict().state is State.WARN
        agent.end(signal.SIGKILL)
        agent.start()
    finally:
        cluster.start_slurmctld()
    agent.until(lambda: agent.verdict().state is State.DRAIN, "verdict drain", seconds=90)
    assert client_of(cluster).node("n1").reason.startswith("fairlead:xid:")


@pytest.mark.release("forky")
def test_killed_and_started_again_the_drain_is_its_own(agents: Make, cluster: Cluster) -> None:
    agent = agents().start()
    agent.kernel(xid79())
    reason = drained(agent, cluster)
    agent.end(signal.SIGKILL)
    agent.start()
    assert agent.verdict().state is State.DRAIN
    assert client_of(cluster).node("n1").reason == reason


@pytest.mark.release("trixie")
def test_repaired_and_booted_again_it_resumes_its_own(agents: Make, cluster: Cluster, tmp_path: Path) -> None:
    agent = agents().start()
    agent.kernel(xid79())
    drained(agent, cluster)
    agent.end()
    agent.tree = shutil.copytree(agent.tree, tmp_path / "next boot", symlinks=True)
    (agent.tree / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    agent.start()
    agent.until(lambda: agent.verdict().state is State.OK, "verdict ok")  # before the resume: the next job is not refused
    agent.until(lambda: agent.status()["drain"] is None, "resume")
    assert not client_of(cluster).node("n1").drained


@pytest.mark.parametrize("up", list(SUITES)[-1:], indirect=True)  # nothing of it depends on the release
def test_the_return_command_decides_and_the_same_fault_again_is_for_a_person(
    agents: Make, cluster: Cluster, tmp_path: Path
) -> None:
    """Reboot, a command that fails and then passes, back in service; the fault again: hardware, and no resume by itself."""
    command = ["/bin/sh", "-c", f'test -e {tmp_path}/fast || {{ echo "busbw 12 GB/s"; exit 4; }}']
    policy = {"budget_percent": 100, "return_command": command, "return_retry_seconds": 1}
    policy["reboots_window_seconds"] = 10 * 365 * 86400  # the boots of the test are as long ago as the boot of this machine
    agent = agents(policy=policy).start()
    agent.kernel(xid79())
    assert drained(agent, cluster).endswith("(fallen off the bus): reboot_node")
    next_boot(agent, tmp_path, 1)
    agent.until(lambda: "the return command has failed and is tried again" in agent.verdict().text, "word of the command")
    agent.until(lambda: (agent.status()["return"] or {}).get("outcome") == "exit 4", "the command in the status")
    assert agent.status()["return"]["said"] == "busbw 12 GB/s" and "busbw" not in agent.verdict().text
    assert client_of(cluster).node("n1").drained
    (tmp_path / "fast").touch()
    agent.until(lambda: not client_of(cluster).node("n1").drained, "resume")
    agent.until(lambda: agent.verdict().state is State.OK and agent.status()["drain"] is None, "that it is known")
    agent.kernel(xid79(2))
    assert drained(agent, cluster).endswith("(fallen off the bus): check_hardware (again after reboot_node)")
    agent.until(lambda: bool(agent.status()["findings"]), "the finding in the status")
    agent.until(lambda: "check_hardware" in (agent.run_dir / "metrics.prom").read_text(), "the step in the metrics")
    (finding,) = agent.status()["findings"]
    assert (finding["action"], finding["raised"]["from"]) == ("check_hardware", "reboot_node")
    why = "\n".join(why_text("n1", {"status": agent.status(), "state": "drain"}, None))
    assert "check_hardware (again after reboot_node; the check alone says reboot_node" in why and "reboots:  1 for faults" in why
    metrics = (agent.run_dir / "metrics.prom").read_text()
    assert 'step="check_hardware"} 1.0' in metrics and "fairlead_reboots_for_faults 1.0" in metrics
    assert 'fairlead_return_command_runs_total{outcome="passed"} 1.0' in metrics
    next_boot(agent, tmp_path, 2)
    agent.until(lambda: "wants check_hardware: resume by hand" in agent.verdict().text, "word of the person")
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 4, "later verdicts")
    assert client_of(cluster).node("n1").drained


def next_boot(agent: Agent, folder: Path, number: int) -> None:
    """The machine boots with the agent."""
    agent.end()
    agent.tree = shutil.copytree(agent.tree, folder / f"boot {number}", symlinks=True)
    (agent.tree / "proc/sys/kernel/random/boot_id").write_text(f"{number}1111111-2222-3333-4444-555555555555\n")
    agent.start()


@pytest.mark.release("trixie")
def test_repaired_but_an_admin_took_over(agents: Make, cluster: Cluster, tmp_path: Path) -> None:
    agent = agents().start()
    agent.kernel(xid79())
    drained(agent, cluster)
    agent.end()
    cluster.scontrol("update", "nodename=n1", "state=drain", "reason=ann keeps it")
    agent.tree = shutil.copytree(agent.tree, tmp_path / "next boot", symlinks=True)
    (agent.tree / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    agent.start()
    agent.until(lambda: agent.verdict().state is State.OK, "verdict ok")
    node = client_of(cluster).node("n1")
    assert node.drained and node.reason == "ann keeps it"


@pytest.mark.release("forky")
def test_disabled_stops_every_drain(agents: Make, cluster: Cluster, tmp_path: Path) -> None:
    agent = agents(policy={"mode": "observe"}).start()
    agent.kernel(xid79())
    agent.until(lambda: "observed only" in agent.verdict().text, "observed")
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 2, "later verdicts")
    assert not client_of(cluster).node("n1").drained


@pytest.mark.release("bookworm")
def test_no_rpc_while_nothing_is_wrong(agents: Make, cluster: Cluster) -> None:
    from tests.slurm.test_drain import rpcs

    agent = agents().start()
    asked = []
    for _ in range(5):  # what it may have asked at its start still arrives in the first of them
        cluster.run(["/usr/bin/sdiag", "--reset"])
        before = agent.sequence()
        agent.until(lambda n=before: agent.sequence() > n + 6, "later verdicts")  # type: ignore[misc]
        asked.append(rpcs(cluster))
        if asked[-1] == 0:
            return
    raise AssertionError(asked)


def test_the_prologs_refusal_is_lifted(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm marks the node for our prolog. n1: a job comes between the admin's resume and our noticing. n2: the site refuses
    jobs while there is no agent (`on_stale`); the agent comes after the mark."""
    prolog = Path(__file__).resolve().parents[2] / "slurm/prolog"
    conf = {"conf": "/etc/slurm/slurm.conf", "reconcile_seconds": 600}
    made: list[Agent] = []

    def agent_of(own: Cluster, name: str) -> Agent:
        slurm = {**conf, "bin_dir": str(own.bin), "node_name": name}
        folder = tmp_path / name
        folder.mkdir()
        agent = Agent(folder, MACHINES / "hgx-h100")
        agent.run_dir = own.node_dirs(name).run
        agent.write_document(slurm=slurm, policy={"budget_percent": 100})
        made.append(agent)
        return agent

    def wait_for_limit(own: Cluster, job: int) -> None:
        """Requeued and held, not lost."""
        deadline = time.monotonic() + 90
        while "held" not in (told := own.scontrol("-o", "show", "job", str(job))):
            assert time.monotonic() < deadline, told
            time.sleep(0.02)

    with running(Cluster(cluster.suite, nodes=2, cores=4, prolog=prolog)) as own:
        client = client_of(own)
        try:
            first = agent_of(own, "n1").start()
            (own.node_dirs("n2").run / "jobs").mkdir(mode=0o711)
            (own.node_dirs("n2").etc / "hooks").write_text("1\trefuse\n")
            first.kernel(xid79())
            drained(first, own)
            own.scontrol("update", "nodename=n1", "state=resume")
            own.wait_idle()
            jobs = [own.submit("#!/bin/sh\ntrue\n", f"-w{name}") for name in ("n1", "n2")]
            for job in jobs:
                wait_for_limit(own, job)
            second = agent_of(own, "n2")
            deadline = time.monotonic() + 90
            while client.node("n2").reason != "Prolog error":
                assert time.monotonic() < deadline, client.node("n2")
                time.sleep(0.02)
            second.start()
            first.until(lambda: "acknowledged" in first.verdict().text, "acknowledgement", seconds=60)
            for agent, name in ((first, "n1"), (second, "n2")):
                agent.until(lambda n=name: client.node(n).states == {"IDLE"}, f"{name} in service", seconds=60)  # type: ignore[misc]
            for agent in made:
                kept = agent.run_dir / "jobs"
                agent.until(lambda k=kept: not list(k.iterdir()), "the end of the refusals' records", seconds=60)  # type: ignore[misc]
            for job in jobs:
                own.scontrol("release", str(job))
                own.scontrol("update", f"jobid={job}", "starttime=now")
                own.wait_job(job, "COMPLETED")
        finally:
            for agent in made:
                agent.end()


@pytest.mark.one_release
def test_a_clock_that_goes_back_a_year_drains_nobody_and_loses_nothing(agents: Make, cluster: Cluster, tmp_path: Path) -> None:
    """It goes back while the node is drained, stays so over a restart and a person's resume, and is right again."""
    wrong = tmp_path / "wrong"
    agent = agents()
    agent.before = (sys.executable, "-m", "tests.slurm.wrong_clock", str(wrong))

    def clock(seconds: float) -> None:
        (tmp_path / "new").write_text(f"{seconds}")
        (tmp_path / "new").rename(wrong)

    def later() -> None:
        before = agent.sequence()
        agent.until(lambda: agent.sequence() > before + 4, "later verdicts")

    def trail() -> list[str]:
        lines = (agent.state_dir / "audit.jsonl").read_text().splitlines()
        return [entry["what"] for entry in map(json.loads, lines) if entry["outcome"] != "asked"]

    clock(0)
    agent.start().kernel(xid79())
    reason = drained(agent, cluster)
    agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == reason, "the drain in the status")
    clock(-365 * 86400)
    later()
    agent.end()
    agent.start()
    later()
    agent.until(lambda: (agent.status()["drain"] or {}).get("reason") == reason, "its own drain after the restart")
    assert client_of(cluster).node("n1").reason == reason and trail().count("drained") == 1
    cluster.scontrol("update", "nodename=n1", "state=resume")
    agent.until(lambda: "acknowledged" in agent.verdict().text, "acknowledgement")
    later()
    clock(0)
    later()
    agent.end()
    agent.start()
    later()
    assert "acknowledged" in agent.verdict().text and not client_of(cluster).node("n1").drained
    assert trail().count("drained") == 1, trail()
    agent.kernel(xid79(2))
    assert drained(agent, cluster) != reason
