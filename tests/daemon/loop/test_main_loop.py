"""The agent as a process: what it publishes, what wakes it, and what it survives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.daemon.loop.agent_lock import claim
from fairlead.errors import AgentRuns
from fairlead.model.verdict import State
from tests.daemon.conftest import NO_SLOW_CHECKS, XID79, Agent
from tests.host.test_hung_trace import ANSWER, NFS, report
from tests.ports import free_port

Make = Callable[..., Agent]


def xid79(n: int = 1) -> str:
    return XID79.format(n=n, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6))


def test_healthy_machine(agents: Make) -> None:
    agent = agents().start()
    assert agent.verdict().state is State.OK
    assert agent.verdict().expires > time.clock_gettime(time.CLOCK_BOOTTIME) + 60
    first = agent.sequence()
    agent.until(lambda: agent.sequence() > first + 1, "later verdict")
    assert (agent.run_dir / "topology").read_text().startswith("1\tnode\t")
    assert {p.name for p in (agent.run_dir / "plans").iterdir()} >= {"1", "8"}
    assert (agent.run_dir / "jobs").stat().st_mode & 0o7777 == 0o711
    assert (agent.run_dir / "env").read_text().endswith("\n.'\n")
    status = agent.status()
    assert (status["node"], status["findings"], status["drain"]) == ("n1", [], None)
    assert agent.end() == 0


def test_the_sites_own_variables_reach_the_task_prolog(agents: Make) -> None:
    agent = agents(jobenv={"extra": {"SITE_SCRATCH": "/scratch"}, "skip": ["NCCL_DEBUG"]}).start()
    agent.until((agent.run_dir / "env").exists, "job environment")
    lines = [line.rpartition("\t")[0] for line in (agent.run_dir / "env").read_text().splitlines()]
    assert "SITE_SCRATCH\talways\t/scratch\tfull" in lines and not any(line.startswith("NCCL_DEBUG\t") for line in lines)


def test_what_jobs_read_of_this_node(agents: Make, tmp_path: Path) -> None:
    """NCCL's interface for Gloo, values of the fabric, a preset, and the scratch folder once it can be used."""
    disk = tmp_path / "disk"
    presets = {"deep": {"extra": {"OURS": "1"}, "skip": ["NCCL_DEBUG"]}}
    fabric = [{"name": "NCCL_NET", "value": "IB", "unless": "NCCL_NET_PLUGIN"}]
    options = {"scratch": str(disk), "presets": presets, "fabric": fabric, "rail_only": True, "master_suffix": "i"}
    agent = agents(jobenv=options, settings={"nccl": {"mode": "observe"}}).start()
    agent.until((agent.run_dir / "presets/deep").exists, "preset")

    def lines(name: str = "env") -> list[str]:
        return [line.rpartition("\t")[0] for line in (agent.run_dir / name).read_text().splitlines()]

    assert "GLOO_SOCKET_IFNAME\tnodes\tenp170s0np0\tfull" in lines()
    assert "NCCL_NET\tnodes!NCCL_NET_PLUGIN\tIB\tfull" in lines() and "NCCL_CROSS_NIC\tnodes\t0\tfull" in lines()
    assert "MASTER_ADDR\tdistributed\t@first_hosti\tfull" in lines()
    assert not any("@scratch" in line for line in lines())
    agent.until(lambda: f"{disk} is not ready: systemctl status" in agent.log.read_text(), "why there is no scratch")
    assert "OURS\talways\t1\tfull" in lines("presets/deep") and not any(
        x.startswith("NCCL_DEBUG\t") for x in lines("presets/deep")
    )
    published = agent.run_dir / "scratch"  # as fairlead-scratch@.service writes it; the agent itself never looks at the disk
    for text in ("1\t/elsewhere/fairlead/b\t.\n", f"1\t{disk}/fairlead/b\t\n", f"1\t{disk}/fairlead/b\t.\n"):
        published.write_text(text)
    agent.until(lambda: f"TMPDIR\talways\t@scratch:{disk}/fairlead/b:tmp\tfull" in lines(), "scratch")
    published.unlink()
    agent.until(lambda: not any("@scratch" in line for line in lines()), "a disk that is not ready any more")
    published.write_text(f"1\t{disk}/fairlead/b\t.\n")
    (agent.run_dir / "ended").mkdir()
    (agent.run_dir / "ended/7.1.00").touch()
    if os.geteuid() == 0:
        agent.write_document()
        agent.send(signal.SIGHUP)
        agent.until(
            lambda: not published.exists() and not (agent.run_dir / "ended").exists(), "a disk that is not declared any more"
        )
        agent.until(lambda: not (agent.run_dir / "presets/deep").exists(), "a preset that is gone")


def test_metrics(agents: Make) -> None:
    agent = agents().start()
    agent.until((agent.run_dir / "metrics.prom").exists, "metrics")
    assert len(_series(agent)) > 500
    agent.end()
    agent = agents("hgx-h100.row-remap-failed").start()
    agent.until(lambda: _series(agent)['fairlead_verdict_state{state="warn"}'] == "1.0", "warn in the metrics")
    series = _series(agent)
    assert series['fairlead_check_status{check="row_remap",mode="enforce"}'] == "2.0"
    assert [k for k, v in series.items() if k.startswith("fairlead_gpu_row_remap_state") and "failed" in k and v == "1.0"]
    assert not [k for k in series if "python3" in k]


def _series(agent: Agent) -> dict[str, str]:
    text = (agent.run_dir / "metrics.prom").read_text()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_an_xid_wakes_the_check_at_once(agents: Make) -> None:
    agent = agents(agent={"interval_seconds": 600}).start()
    agent.kernel("14,7,1,-;something else", "30,8,1,-;NVRM: Xid (PCI:0000:1b:00): 79, not from the kernel", xid79())
    agent.until(lambda: "79" in agent.verdict().text, "word of the Xid")
    verdict = agent.verdict()
    assert verdict.state is State.WARN and "0000:1b:00.0" in verdict.text and "pending" in verdict.text
    assert "python3" not in verdict.text
    agent.until(lambda: any(f["check"] == "xid" for f in agent.status()["findings"]), "the Xid in the status")
    finding = next(f for f in agent.status()["findings"] if f["check"] == "xid")
    assert (finding["level"], finding["mode"], finding["device"]) == ("drain", "enforce", "0000:1b:00.0")


def test_a_kernel_log_that_cannot_be_read_is_no_health(agents: Make) -> None:
    agent = agents(checks=NO_SLOW_CHECKS)
    agent.fifo.unlink()
    agent.start()
    assert agent.verdict().state is State.UNKNOWN and "the kernel log cannot be read" in agent.verdict().text
    agent.until(lambda: "kmsg: No such file" in str(agent.status()["findings"]), "the reason in the status")
    os.mkfifo(agent.fifo)
    agent.until(lambda: agent.verdict().state is State.OK, "a log that can be read")
    agent.kernel(xid79())
    agent.until(lambda: "Xid 79" in agent.verdict().text, "the fault")


def test_records_of_another_facility_change_nothing(agents: Make) -> None:
    agent = agents().start()
    agent.kernel("14,7,1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, fake")
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 2, "later verdicts")
    assert agent.verdict().state is State.OK


def test_a_user_s_records_change_nothing_and_hide_nothing(agents: Make) -> None:
    """Processes and executables that are called like a driver's messages, a thousand of each, around one true fault."""
    forged = [
        "XFS (sda1): x[{n}]: segfault at 0 ip 0 sp 0 error 4 in Filesystem has been shut down[1+2]",
        "EDAC MC0: 1 UE [{n}]: segfault at 0 ip 0 sp 0 error 4 in on EVILNAME (page[1+2]",
        "NVRM: Xid (): 7[{n}]: segfault at 0 ip 0 sp 0 error 4 in EVILNAME[1+2]",
        "nvme nvme0: I/O[{n}]: segfault at 0 ip 0 sp 0 error 4 in EVILNAME timeout[1+2]",
        "INFO: task [{n}]: segfault at 0 ip 0 sp 0 error 4 in EVILNAME:4 blocked for more than 120 seconds[1+2]",
        "I/O error, dev  invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj={n}",
    ]
    agent = agents(checks={name: {"mode": "enforce"} for name in ("disks", "memory_errors", "stuck_tasks")}).start()
    agent.kernel(*(f"6,{n},{n},-;{text.format(n=n)}" for n in range(1000, 2000) for text in forged[n % 6 : n % 6 + 1]))
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 2, "later verdicts")
    assert agent.verdict().state is State.OK, agent.verdict().text
    agent.kernel(xid79())
    agent.kernel(*(f"6,{n},{n},-;{text.format(n=n)}" for n in range(3000, 4000) for text in forged[n % 6 : n % 6 + 1]))
    agent.until(lambda: "Xid 79" in agent.verdict().text, "the true fault")
    agent.end()
    agent.start()
    assert "Xid 79" in agent.verdict().text
    shown = agent.verdict().text + str(agent.status()) + (agent.run_dir / "metrics.prom").read_text()
    assert "EVILNAME" not in shown and "sda1" not in shown


def test_a_logged_wait_for_a_users_server_is_no_hang_and_a_hang_beside_it_is(agents: Make) -> None:
    agent = agents().start()
    waits, hangs = report(5000, ANSWER), report(5001, NFS)
    agent.kernel(*(f"3,{n},9000000000000000,-;{text}" for n, text in enumerate((*waits, *hangs), 1000)))
    agent.until(lambda: "process 5001" in str(agent.status()), "word of the hang")
    agent.end()
    agent.start()
    agent.until(lambda: "process 5001" in str(agent.status()), "word of the hang again")
    assert "5000" not in str(agent.status())


def test_killed_and_started_again_it_still_knows(agents: Make) -> None:
    agent = agents().start()
    agent.kernel(xid79())
    agent.until(lambda: "79" in agent.verdict().text, "word of the Xid")
    sequence = agent.sequence()
    agent.end(signal.SIGKILL)
    assert agent.verdict().sequence >= sequence
    agent.start()
    assert "79" in agent.verdict().text and agent.sequence() > sequence


def test_damaged_history_is_moved_aside(agents: Make) -> None:
    agent = agents().start()
    agent.end()
    database = agent.state_dir / "history.sqlite"
    database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    agent.start()
    assert agent.verdict().state is State.OK
    assert list(agent.state_dir.glob("history.sqlite.bad*"))
    agent.end()
    with sqlite3.connect(database) as db:
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.parametrize("what", ["state", "run"])
def test_a_folder_that_cannot_be_made_does_not_end_it(agents: Make, tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    agent = agents(agent={f"{what}_dir": str(tmp_path / "file" / "x")})
    agent.start(wait=what == "state")
    if what == "state":
        assert agent.verdict().state is State.OK
        assert any("history" in t for t in agent.status()["trouble"])
    else:
        agent.until(lambda: "cannot_publish" in agent.log.read_text(), "complaint")
        agent.until(lambda: "verdict state=" in agent.log.read_text(), "a verdict, if only in the log")
    assert agent.end() == 0


def test_reload(agents: Make) -> None:
    agent = agents().start()
    good = agent.document.read_bytes()
    agent.document.write_bytes(good.replace(b'"interval_seconds"', b'"interval_secs"'))
    agent.send(signal.SIGHUP)
    agent.until(lambda: "document_refused" in agent.log.read_text(), "refusal")
    assert "interval_secs" in agent.log.read_text()
    for bad in (b'{"node":"\xff"}', b"[" * 200_000, good.replace(b'"node"', b'"node":"n1","node"'), b"\0" * 5_000_000):
        refused = agent.log.read_text().count("document_refused")
        agent.document.write_bytes(bad)
        agent.send(signal.SIGHUP)
        agent.until(lambda n=refused: agent.log.read_text().count("document_refused") > n, "refusal")  # type: ignore[misc]
    assert max(len(line) for line in agent.log.read_text().splitlines()) < 600
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 1, "later verdict")
    agent.write_document(checks={"xid": {"enabled": False}})
    agent.send(signal.SIGHUP)
    agent.until(lambda: "document_loaded" in agent.log.read_text(), "new document")
    agent.kernel(xid79())
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 2, "later verdicts")
    assert agent.verdict().state is State.OK


def test_reload_of_what_only_a_restart_takes_up(agents: Make, tmp_path: Path) -> None:
    agent = agents().start()
    elsewhere = {"run_dir": str(tmp_path / "run2"), "state_dir": str(tmp_path / "state2"), "interval_seconds": 0.3}
    agent.write_document(agent=elsewhere, slurm={"node_name": "n2"})
    agent.send(signal.SIGHUP)
    said = 'configuration_change_ignored_until_the_agent_is_restarted keys="agent.state_dir, agent.run_dir, slurm.node_name"'
    agent.until(lambda: said in agent.log.read_text(), "word of it")
    before = agent.sequence()
    agent.until(lambda: agent.sequence() > before + 1, "verdicts in the old place")
    assert not (tmp_path / "run2").exists() and not (tmp_path / "state2").exists()
    assert agent.status()["slurm_node"] == "n1"


def test_bad_document_at_the_start(agents: Make) -> None:
    agent = agents()
    agent.document.write_text('{"schema": 99}')
    agent.start(wait=False)
    assert agent.process is not None and agent.process.wait(timeout=90) == 78
    assert "schema" in agent.log.read_text()


def test_a_second_agent_on_a_node_is_refused_and_the_first_goes_on(agents: Make, tmp_path: Path) -> None:
    first = agents().start()
    again = subprocess.run(first.command(), env=os.environ, capture_output=True, text=True, timeout=90, check=False)
    assert again.returncode == 75 and again.stdout == ""
    said, hint = again.stderr.splitlines()
    assert said.startswith("fairlead agent: an agent runs on this node already (process ") and "systemctl stop" in hint
    assert first.process is not None and str(first.process.pid) in said
    assert (first.run_dir / "agent.lock").stat().st_mode & 0o777 == 0o600
    before = first.sequence()
    first.until(lambda: first.sequence() > before, "later verdict")
    first.end(signal.SIGKILL)
    first.start()  # what a killed agent leaves holds nobody up
    assert first.end() == 0


def test_a_killed_agent_that_a_dead_disk_keeps_is_no_agent(tmp_path: Path) -> None:
    """Its threads share the lock's descriptor: while one of them hangs, the kernel keeps it. Here: a zombie and its child."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from fairlead.daemon.loop.agent_lock import claim; lock = claim(sys.argv[1])\n"
        "if os.fork() == 0: print('held', flush=True); sys.stdin.read(); os._exit(0)\n"
        "sys.stdin.readline(); os._exit(0)"
    )
    command = [sys.executable, "-c", code, os.fspath(tmp_path), *(p for p in sys.path if p)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(AgentRuns, match=f"process {other.pid}"):
            claim(os.fspath(tmp_path))
        other.send_signal(signal.SIGKILL)
        while Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        lock = claim(os.fspath(tmp_path))
        with pytest.raises(AgentRuns, match=f"process {os.getpid()}"):
            claim(os.fspath(tmp_path))
        os.close(lock)


def test_where_no_lock_can_be_had_the_agent_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert claim(os.fspath(tmp_path / "file")) == -1
    (tmp_path / "agent.lock").symlink_to("/etc/passwd")
    assert claim(os.fspath(tmp_path)) == -1


def test_fresh_sweep_on_demand_and_after_a_job(agents: Make) -> None:
    agent = agents(agent={"interval_seconds": 600}).start()
    before = agent.sequence()
    agent.send(signal.SIGUSR1)
    agent.until(lambda: agent.sequence() > before, "sweep for SIGUSR1")
    half = agent.run_dir / "jobs" / "78"
    half.write_text("1\trunning\t2001\t0")
    job = agent.run_dir / "jobs" / "77"
    before = agent.sequence()
    job.write_text("1\tended\t2001\t0,1\t5\t9\t-\t.\n")
    agent.until(lambda: agent.sequence() > before and not job.exists(), "sweep for the ended job")
    assert half.exists()


def test_a_close_sweep_at_a_jobs_begin_with_the_gpus_of_the_job(agents: Make) -> None:
    agent = agents(agent={"interval_seconds": 600}).start()
    metrics = agent.run_dir / "metrics.prom"
    agent.until(lambda: (agent.run_dir / "topology").exists(), "the topology")
    (agent.run_dir / "jobs" / "79").write_text("1\trunning\t2001\t2\t5\t-\t-\t.\n")
    agent.until(lambda: metrics.exists() and 'fairlead_job_gpu{index="2",job="79"' in metrics.read_text(), "the gauge")


def test_jobs_are_counted(agents: Make) -> None:
    agent = agents().start()
    metrics = agent.run_dir / "metrics.prom"
    (agent.run_dir / "jobs" / "5").write_text("1\trunning\t2001\t0\t5\t-\t-\t.\n")
    agent.until(lambda: metrics.exists() and "jobs 1.0" in metrics.read_text(), "metric of the job")


def test_a_drain_waits_for_the_job_that_was_there_and_not_for_the_next(agents: Make) -> None:
    agent = agents(agent={"interval_seconds": 0.3}).start()
    jobs = agent.run_dir / "jobs"
    (jobs / "11").write_text("1\trunning\t2001\t0\t5\t-\t-\t.\n")
    agent.kernel(xid79().replace("79, pid=1234, name=python3, GPU has", "94, pid=1234, name=python3, Contained"))
    agent.until(lambda: "waits for the job to end: xid: Xid 94" in agent.verdict().text, "the wait")
    (jobs / "12").write_text("1\trunning\t2002\t0\t6\t-\t-\t.\n")
    (jobs / "11").write_text("1\tended\t2001\t0\t5\t9\t-\t.\n")
    agent.until(lambda: "drain pending: xid: Xid 94" in agent.verdict().text, "the drain")


def test_hold(agents: Make) -> None:
    agent = agents().start()
    (agent.state_dir / "hold").write_text('{"who": "ann", "when": "now", "reason": "riser"}')
    agent.kernel(xid79())
    agent.until(lambda: "held by an admin" in agent.verdict().text, "hold")
    agent.until(lambda: (agent.status()["hold"] or {}).get("who") == "ann", "the hold in the status")


def test_sigterm_ends_it_while_everything_is_quiet(agents: Make) -> None:
    agent = agents(agent={"interval_seconds": 3600}).start()
    assert agent.end() == 0
    assert "agent_ends" in agent.log.read_text()


def test_a_tree_drains_nothing_unless_a_cluster_is_named(agents: Make) -> None:
    agent = agents(slurm={"bin_dir": "/nowhere"}).start()
    agent.kernel(xid79())
    agent.until(lambda: "79" in agent.verdict().text, "word of the Xid")
    assert agent.status()["slurm"]["error"] == ""


def test_slurm_that_is_not_there_is_said(agents: Make) -> None:
    agent = agents(slurm={"bin_dir": "/nowhere", "conf": "/nowhere/slurm.conf"}).start()
    agent.kernel(xid79())
    agent.until(lambda: "slurmctld does not answer" in agent.verdict().text, "word of slurmctld")
    agent.until(lambda: "/nowhere/sinfo" in agent.status()["slurm"]["error"], "the error in the status")
    assert agent.verdict().state is State.WARN


def metrics(agent: Agent) -> str:
    return (agent.run_dir / "metrics.prom").read_text()


def test_slurm_up_is_absent_until_slurmctld_was_asked(agents: Make) -> None:
    agent = agents(slurm={"bin_dir": "/nowhere", "conf": "/nowhere/slurm.conf"}).start()
    assert "\nfairlead_slurm_up" not in metrics(agent)
    agent.kernel(xid79())
    agent.until(lambda: "\nfairlead_slurm_up 0.0\n" in metrics(agent), "word of slurmctld")


def test_xids_are_counted_over_a_restart(agents: Make) -> None:
    agent = agents().start()
    agent.kernel(*(f"6,{n},{n},c;NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, MMU Fault" for n in range(1, 10)), xid79(10))
    wanted = re.compile(r'fairlead_xids_total\{index="0",pci="0000:1b:00.0",uuid="GPU-[0-9a-f-]+",xid="(\d+)"\} (\d+)')
    agent.until(lambda: wanted.findall(metrics(agent)) == [("31", "9"), ("79", "1")], "the count")
    agent.end(signal.SIGKILL)
    (agent.run_dir / "metrics.prom").unlink()
    agent.start()
    assert wanted.findall(metrics(agent)) == [("31", "9"), ("79", "1")]


def test_metrics_that_cannot_be_written_are_told_once_and_the_agent_goes_on(agents: Make, tmp_path: Path) -> None:
    agent = agents(agent={"metrics_textfile": str(tmp_path / "later/fairlead.prom")}).start(wait=False)
    agent.until((agent.run_dir / "status.json").exists, "status")
    agent.until(lambda: any("later/fairlead.prom: No such file" in t for t in agent.status()["trouble"]), "word in the status")
    agent.until(lambda: agent.verdict().sequence > 4, "verdicts")
    assert agent.log.read_text().count("cannot_publish") == 1
    (tmp_path / "later").mkdir()
    agent.kernel(xid79())
    agent.until((tmp_path / "later/fairlead.prom").exists, "metrics")
    agent.until(lambda: not any("later" in t for t in agent.status()["trouble"]), "status without it")


def test_scrape(agents: Make) -> None:
    port = free_port()
    agent = agents(agent={"metrics_listen": f"127.0.0.1:{port}"}).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=90) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [s.value for s in families["fairlead_verdict_state"].samples if s.labels["state"] == "ok"] == [1.0]
    assert all(family.documentation for family in families.values())
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=90)
    assert agent.end() == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing(agents: Make) -> None:
    agent = agents("hgx-h100.row-remap-failed").start()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=(agent.run_dir / "metrics.prom").read_bytes(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
