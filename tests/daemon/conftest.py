"""A real agent process on a machine tree, with a FIFO for its kernel log and folders of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from fairlead import checks, config
from fairlead.model.verdict import Verdict, parse_line
from tests.lab.pause import pause
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
#: Judged every 14 s, and well again three looks later: what they say of a fault is for their own tests.
NO_SLOW_CHECKS = {name: {"enabled": False} for name, check in checks.load().items() if check.slow}
XID79 = "6,{n},{us},c;NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


class Agent:
    """``options``: changes to the document, as {"agent": {...}}."""

    def __init__(self, folder: Path, tree: Path = MACHINES / "hgx-h100", **options: dict[str, Any]) -> None:
        self.folder = folder
        self.tree = tree
        self.run_dir, self.state_dir, self.fifo = folder / "run", folder / "state", folder / "kmsg"
        self.document = folder / "node.json"
        self.log = folder / "log"
        if not self.fifo.exists():
            os.mkfifo(self.fifo)
        self.environment: dict[str, str] = {}
        self.before: tuple[str, ...] = ()  # words before the command, such as nsenter
        self.process: subprocess.Popen[bytes] | None = None
        self.write_document(**options)

    def write_document(self, **options: dict[str, Any]) -> None:
        data = config.to_data(config.profile_document("n1", "hgx-h100"))
        data["agent"] |= {
            "run_dir": str(self.run_dir),
            "state_dir": str(self.state_dir),
            "metrics_textfile": str(self.run_dir / "metrics.prom"),
            "kmsg_path": str(self.fifo),
            "interval_seconds": 0.5,
        }
        data["settings"] = {}  # drift has tests of its own
        for section, changes in options.items():
            data[section] |= changes
        del data["hash"]
        document = config.decode_document(msgspec.json.encode(data), "test")
        self.document.write_bytes(config.encode_document(document))

    def command(self) -> list[str]:
        """What starts it."""
        words = [sys.executable, "-m", "fairlead", "agent", "--document", str(self.document), "--root", str(self.tree)]
        return [*self.before, *words]

    def start(self, *, wait: bool = True) -> Self:
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.command(),
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT / "agent"), **self.environment},
                stderr=out,
                stdout=out,
            )
        if wait:
            before = self.sequence()
            self.until(lambda: self.sequence() > before, "a first verdict")
            self.until((self.run_dir / "metrics.prom").exists, "first metrics")
        return self

    def sequence(self) -> int:
        try:
            return self.verdict().sequence
        except FileNotFoundError:
            return 0

    def verdict(self) -> Verdict:
        return parse_line((self.run_dir / "verdict").read_text())

    def status(self) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.json.decode((self.run_dir / "status.json").read_bytes())
        return data

    def kernel(self, *lines: str) -> None:
        with open(self.fifo, "w") as out:
            out.write("".join(f"{line}\n" for line in lines))

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def until(self, met: Callable[[], bool], what: str, seconds: float = 90) -> None:
        """Wait for something to become true; fails with the log's end."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if met():
                return
            ended = self.process is not None and self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                told = self.log.read_text(errors="replace").splitlines()[-15:]
                raise AssertionError(f"no {what}; agent {'ended' if ended else 'runs'}; its log:\n" + "\n".join(told))
            pause(began, 0.005)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()


#: Tests of a real agent that `make unit ROOM=daemon` runs all the same.
SHORT = {"test_healthy_machine", "test_an_xid_wakes_the_check_at_once", "test_sigterm_ends_it_while_everything_is_quiet"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start agents: half a second of CPU time and more, each."""
    for item in items:
        here = Path(__file__).parent in item.path.parents
        if here and "agents" in getattr(item, "fixturenames", ()) and getattr(item, "originalname", "") not in SHORT:
            item.add_marker(pytest.mark.heavy)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Makes agents below tmp_path; ends them all."""
    made: list[Agent] = []

    def make(tree: str = "hgx-h100", **options: dict[str, Any]) -> Agent:
        agent = Agent(tmp_path, MACHINES / tree, **options)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        if agent.process is not None and agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
