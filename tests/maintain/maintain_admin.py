"""The admin host of a rack whose nodes are provisioned: `fairlead maintain` as a person runs it, killed and looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_report import NodeReport, report
from tests import printed_json
from tests.lab import roots
from tests.lab.demo_steps import EXTRA, HOOKS, SITE, memlock
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import LabError
from tests.terminal import Pty

PROJECT = Path(__file__).resolve().parents[2]
JOB = "#!/bin/sh\nsleep {seconds}\n"
WAITING = "#!/bin/sh\nuntil [ -e /run/go ]; do sleep 0.2; done\n"


class Admin:
    """``folder`` holds the site's declaration and the journal."""

    def __init__(self, rack: Rack, folder: Path) -> None:
        self.rack = rack
        self.site = folder / "site.toml"
        self.journal = folder / "maintain.db"
        self.output = folder / "told"
        limit, why = memlock()
        hosts = "\n".join(f'{h.name} = "{h.address}"' for h in rack.nodes)
        self.site.write_text(
            SITE.format(nodes=len(rack.nodes), memlock=limit, why=why, key=roots.ssh_key(), ssh=rack.ssh_config, hosts=hosts)
        )

    def node(self, number: int) -> Host:
        return self.rack.nodes[number - 1]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """`fairlead WORDS` as a process of its own; what it says is added to ``told``."""
        command = [*self.rack.enter, sys.executable, "-m", "fairlead", *words]
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
        with self.output.open("ab") as out:
            return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def words(self, *words: str) -> tuple[str, ...]:
        """`fairlead maintain` with this rack's places."""
        slurm = ("--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(self.rack.bin))
        return ("maintain", "--site", str(self.site), "--journal", str(self.journal), *slurm, *words)

    def maintain(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start(*self.words(*words))

    def terminal(self, *words: str, rows: int = 24, columns: int = 80) -> Pty:
        """`fairlead maintain` as a person runs it, on a terminal."""
        command = [*self.rack.enter, sys.executable, "-m", "fairlead", *self.words(*words)]
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "TERM": "xterm"}
        return Pty(command, rows=rows, columns=columns, env=env, cwd=PROJECT)

    def ended(self, process: subprocess.Popen[bytes], seconds: float = 240) -> int:
        """Its exit code. Raises what it said when it does not end."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"not ended after {seconds:.0f} s:\n{self.said()}") from None

    def run(self, *words: str) -> int:
        return self.ended(self.maintain(*words))

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def ask(self, *words: str) -> Any:
        """What a reading command answers with --json; None for nothing."""
        command = [*self.rack.enter, sys.executable, "-m", "fairlead", *words, "--json"]
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        return printed_json.hold(words[0], done.stdout) if done.stdout else None

    def newest(self) -> MaintenanceRun | None:
        """The newest run, with its nodes."""
        if not self.journal.exists():
            return None
        journal = Journal(str(self.journal), write=False)
        try:
            runs = journal.runs()
            return journal.run(runs[0].id) if runs else None
        finally:
            journal.close()

    def ansible_lock(self) -> str:
        """What the Ansible of the newest run holds locked."""
        newest = self.newest()
        return f"{self.journal}.{newest.id if newest is not None else ''}.ansible"

    def begun(self, *words: str) -> subprocess.Popen[bytes]:
        """`fairlead maintain` of a new run, which is in the journal by now."""
        before = self.newest()
        process = self.maintain(*words)
        until(lambda: (now := self.newest()) is not None and (before is None or now.id != before.id), self.said)
        return process

    def shown(self) -> dict[str, NodeReport]:
        """The nodes of the newest run, by their names; none before there is a run."""
        newest = self.newest()
        return {n.node: n for n in report(newest).nodes} if newest is not None else {}

    def fleet(self) -> dict[str, dict[str, Any]]:
        """The nodes as `fairlead fleet` has them."""
        slurm = ("--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(self.rack.bin))
        return {n["node"]: n for n in self.ask("fleet", "--site", str(self.site), *slurm)["nodes"]}

    def steps(self) -> dict[str, str]:
        return {name: n.step for name, n in self.shown().items()}

    def boots(self, host: Host) -> int:
        """How often it has rebooted, as the lab's power supply has it."""
        return (self.rack.folder / "supervisor.log").read_text().count(f"{host.name}: init ended with 129\n")

    def job(self, seconds: float, *options: str) -> int:
        return self.rack.submit(JOB.format(seconds=seconds), "--exclusive", *options)

    def waiting_job(self, number: int) -> int:
        """A job on that node which runs until it is let go."""
        return self.rack.submit(WAITING, "--exclusive", f"-wgpu{number}")

    def let_go(self, *numbers: int) -> None:
        for number in numbers:
            self.node(number).run("touch /run/go")

    def lost(self, jobs: dict[int, str]) -> list[str]:
        """Jobs that did not run once and to their end."""
        found = []
        for job, what in jobs.items():
            state = self.rack.wait_job(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", seconds=120)
            shown = self.rack.scontrol("-o", "show", "job", str(job))
            if state != "COMPLETED" or " Restarts=0 " not in shown:
                found.append(f"{what}: {shown}")
        return found


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the command alone: what it had started lives on or dies as it would."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def until(what: Callable[[], object], said: Callable[[], str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)


@contextmanager
def provisioned(nodes: int, folder: Path, extra: str = "") -> Iterator[Admin]:
    """A rack whose nodes have fairlead and say ok."""
    with Rack(nodes_wanted=nodes, name=own_name("maintain"), hooks=HOOKS, extra_conf=EXTRA + extra) as rack:
        admin = Admin(rack, folder)
        for _ in range(5):  # a loaded machine: what a node's deadline did not allow is done the next time
            if (code := admin.ended(admin.start("provision", "--site", str(admin.site), "-q"))) == 0:
                break
        assert code == 0, admin.said()
        until(lambda: all(_verdict(host) in ("ok", "warn") for host in rack.nodes), lambda: str([*map(_verdict, rack.nodes)]))
        yield admin


def _verdict(host: Host) -> str:
    try:
        return host.path("/run/fairlead/verdict").read_text().split("\t")[1]
    except (OSError, IndexError, LabError):
        return ""
