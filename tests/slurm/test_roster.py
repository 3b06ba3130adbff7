"""`fairlead fleet` on real Slurm: once, as a watch in a pipe and on a terminal; and what it asks of slurmctld."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ClusterShell")

from fairlead.cli import main
from fairlead.errors import ExitCode, SlurmError
from fairlead.slurm.listing import jobs_by_node, listed
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.provision.test_agent_accounts import Nodes
from tests.slurm.conftest import NODES, running
from tests.slurm.crowd import rpcs
from tests.terminal import Pty

pytestmark = pytest.mark.slurm

PROJECT = Path(__file__).resolve().parents[2]
ASKED = {f"REQUEST_{what}_INFO" for what in ("PARTITION", "NODE", "JOB")} | {f"REQUEST_{w}_INFO_SINGLE" for w in ("NODE", "JOB")}
OURS = "fairlead:xid:abcdef012345 Xid 79 on GPU 0000:1b:00.0 job=11"


def words(cluster: Cluster, *more: str) -> list[str]:
    return ["fleet", "--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(cluster.bin), *more]


@contextmanager
def watching(cluster: Cluster, *more: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process, interrupted at the end as a person would."""
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}", "TERM": "xterm", "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "fairlead", *words(cluster, "--watch", "1", *more)]
    with subprocess.Popen(command, env=env, cwd=PROJECT, **how) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(90) == 0
        finally:
            process.kill()


def until(read: Callable[[], str], *wanted: str) -> str:
    deadline = time.monotonic() + 60
    while not all(w in (said := read()) for w in wanted):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    return said


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Agents' accounts for all but n8, which does not let us in."""
    made = Nodes(tmp_path)
    for name in NODES[:-1]:
        made.add(name, verdict="drain" if name == "n7" else "ok", status={"findings": [], "hold": None})
    made.program.write_text(made.program.read_text().replace("refuses)", "n8|refuses)"))
    return made


def test_what_slurm_says_of_every_node(cluster: Cluster, client: Scontrol) -> None:
    job = cluster.submit("#!/bin/sh\nsleep 600\n", "-wn[2-3]", "-N2")
    cluster.wait_job(job, "RUNNING")
    cluster.scontrol("update", "nodename=n5", "state=drain", "reason=two | words=x")
    cluster.run(["/usr/bin/sdiag", "--reset"])
    found = {n.state.name: n for n in listed(client)}
    asked = {name: count for name, (count, _) in rpcs(cluster).items() if name in ASKED}
    assert asked == {"REQUEST_PARTITION_INFO": 2, "REQUEST_NODE_INFO": 1, "REQUEST_JOB_INFO": 1}
    assert list(found) == list(NODES)
    assert {n.state.name: n.state for n in found.values()} == {n.name: n for n in client.nodes()}
    assert {name for name, n in found.items() if [j.id for j in n.jobs] == [str(job)]} == {"n2", "n3"}
    assert found["n5"].state.reason == "two | words=x"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", n.version) for n in found.values())


def test_the_table_of_a_real_cluster(cluster: Cluster, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.scontrol("update", "nodename=n7", "state=drain", f"reason={OURS}")
    cluster.scontrol("update", "nodename=n[1-2]", "state=drain", "reason=riser swap")
    assert main(words(cluster, "--ssh", str(nodes.program), "--timeout", "30")) == ExitCode.OK
    head, *lines, total = capsys.readouterr().out.splitlines()
    cells = [re.split(r"\s{2,}", line)[:3] for line in lines]
    assert cells == [
        ["n8", "unreachable", "up"],
        ["n7", "drain", "drained"],
        ["n[1-2]", "ok", "drained"],
        ["n[3-6]", "ok", "up"],
    ]
    assert head.startswith("NODES") and "Permission denied" in lines[0] and "agent (xid)" in lines[1]
    assert total.startswith("8 nodes: 6 ok, 1 drain, 1 unreachable; 3 out of service; 0 jobs; asked in ")

    assert main(words(cluster, "--json", "n[6-8]", "--ssh", str(nodes.program), "--timeout", "30")) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["words"] == {"unreachable": "n8", "drain": "n7", "ok": "n6"}
    assert data["nodes"][1]["drained"]["by"] == "agent" and data["nodes"][1]["agent"]["generation"] == 3

    assert main(words(cluster, "--no-agents", "--each", "-p", "main")) == ExitCode.OK
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == list(NODES) and "ok" not in out
    assert main(words(cluster, "--no-agents", "n99")) == ExitCode.NO_INPUT
    assert main(words(cluster, "--no-agents", "n[1")) == ExitCode.USAGE
    assert main(words(cluster, "--no-agents", "--watch", "0")) == ExitCode.USAGE
    assert main(words(cluster, "--site", "/nonexistent")) == ExitCode.NO_INPUT


@pytest.mark.parametrize("up", ["trixie"], indirect=True)
def test_a_watch_in_a_pipe_says_what_changes(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file, watching(cluster, "--no-agents", stdout=file):
        until(out.read_text, "n[1-8]: up\n", "8 nodes: ")
        cluster.scontrol("update", "nodename=n[2-3]", "state=drain", "reason=riser swap")
        until(out.read_text, " n[2-3]: drained by root: riser swap (was up)\n")
        cluster.scontrol("update", "nodename=n[2-3]", "state=resume")
        said = until(out.read_text, " n[2-3]: up")
    assert said.count("n[1-8]: up") == 1


@pytest.mark.parametrize("up", ["trixie"], indirect=True)
def test_a_watch_on_a_terminal_is_a_live_table(cluster: Cluster, nodes: Nodes, tmp_path: Path) -> None:
    """And goes on while slurmctld is away: here a sinfo that says so as long as there is a file."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/squeue").symlink_to(cluster.bin / "squeue")
    away = "sinfo: error: Unable to contact slurm controller (connect failure)"
    (tmp_path / "bin/sinfo").write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/away ] && {{ echo '{away}' >&2; exit 1; }}\nexec {cluster.bin}/sinfo \"$@\"\n"
    )
    (tmp_path / "bin/sinfo").chmod(0o755)
    more = ("--watch", "1", "--ssh", str(nodes.program), "--bin-dir", str(tmp_path / "bin"))
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}", "TERM": "xterm"}
    command = [sys.executable, "-m", "fairlead", *words(cluster, *more)]
    with Pty(command, rows=30, columns=160, env=env, cwd=PROJECT) as terminal:
        head, *rows = terminal.until("NODES", "n8", "unreachable", "n7", "8 nodes: ")
        assert head.split()[:3] == ["NODES", "VERDICT", "SLURM"] and "SLURMD" in head and rows[0].startswith("n8")
        (tmp_path / "away").touch()
        terminal.until("Unable to contact slurm controller", "NODES")
        cluster.scontrol("update", "nodename=n4", "state=drain", "reason=riser swap")
        (tmp_path / "away").unlink()
        terminal.until("riser swap", "8 nodes: ")
        at = len(terminal.said)
        terminal.resize(5, 72)  # what tells least is left out, and what has no room is counted
        terminal.until_said("\x1b[2J", at)
        head, *rows = terminal.until("more rows", "8 nodes: ")
        assert "WHY" in head and "SLURMD" not in head and sum("NODES" in r for r in rows) == 0
        terminal.type(b"\x03")
        assert terminal.end() == 0 and terminal.cursor() and terminal.screen.colours == {"31", "32"}


@pytest.mark.parametrize("text", ["7|R|1", "x|R|1|n1", "|||"])
def test_what_is_no_job_s_line(text: str) -> None:
    with pytest.raises(SlurmError):
        jobs_by_node(text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_128_real_slurmds(up: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Cluster(up.suite, nodes=128, cores=4)) as cluster:
        for size in range(1, 9):
            cluster.submit("#!/bin/sh\nsleep 600\n", f"-N{size}")
        cluster.scontrol("update", "nodename=n[100-110]", "state=drain", "reason=riser swap")
        assert main(words(cluster, "--no-agents", "--json")) == ExitCode.OK
        data = json.loads(capsys.readouterr().out)
        assert len(data["nodes"]) == 128 and data["words"] == {"not asked": "n[1-128]"}
        assert sum(n["drained"] is not None for n in data["nodes"]) == 11
    with capsys.disabled():
        print(f"\n{up.suite}: 128 slurmds looked at in {data['seconds']:.2f} s")
