"""The real agent on a machine tree, with the simulated NVML library behind its worker, and the real prolog before it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from fairlead.model.verdict import State
from tests.daemon.conftest import NO_SLOW_CHECKS, PROJECT, Agent
from tests.hooks.stage import Ran, Stage
from tests.lab import kernel
from tests.lab.faults import Faults
from tests.lab.nvml.library import build, write_conf
from tests.lab.trees import MACHINES

PROLOG_SECONDS = 30  # a bound for a loaded machine: what it takes is measured by tests/bench


class Living(Agent):
    """An agent whose NVML is the simulated library. ``faults`` breaks it, ``prolog()`` asks what a job would be told."""

    def __init__(self, folder: Path, library: Path, stage: Stage, machine: str = "hgx-h100", **options: dict[str, Any]) -> None:
        options["checks"] = NO_SLOW_CHECKS | options.get("checks", {})
        agent = {"interval_seconds": 0.3, "nvml_deadline_seconds": 20.0, **options.pop("agent", {})}
        super().__init__(folder, MACHINES / machine, agent=agent, **options)
        self.stage = stage
        self.faults = Faults(folder / "control")
        self.faults.control.touch()
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(library),
            "FAIRLEAD_SIM_NVML": os.fspath(write_conf(self.tree, folder / "nvml.conf")),
            "FAIRLEAD_SIM_CONTROL": os.fspath(self.faults.control),
        }
        self._jobs = itertools.count(100)

    def command(self) -> list[str]:
        """What starts it."""
        return [*super().command(), "--ask-nvml"]

    def start(self, *, wait: bool = True) -> Self:
        """As an agent's; ``wait``: also until it knows, which on a loaded machine the first sweep may not."""
        super().start(wait=wait)
        if wait:
            self.until(lambda: self.verdict().state is not State.UNKNOWN, "a verdict that knows")
        return self

    def again(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait for a verdict of the next one."""
        self.end(number)
        sequence = self.sequence()
        self.start(wait=False)
        self.until(lambda: self.sequence() > sequence, "verdict of the next agent")

    def prolog(self, *enter: str, on_stale: str = "allow", hook: Path = PROJECT / "slurm/prolog") -> Ran:
        """The prolog with this agent's run directory as /run/fairlead, within its bound."""
        self.stage.hooks_line(on_stale)
        script = 'mount --bind "$1" /run/fairlead && exec "$2"'
        words = ["nsenter", "-m", "-t", str(self.stage.pid), *enter, "unshare", "-m", "sh", "-c", script, "sh"]
        words += [str(self.run_dir), str(hook)]
        job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1000", "PATH": os.environ["PATH"]}
        done = subprocess.run(words, env=job, capture_output=True, text=True, timeout=PROLOG_SECONDS, check=False)
        (self.run_dir / "jobs/4711").unlink(missing_ok=True)
        return Ran(done.returncode, done.stdout, done.stderr)

    def log_text(self) -> str:
        """What the prolog had to say last."""
        try:
            return (self.run_dir / "prolog.log").read_text()
        except FileNotFoundError:
            return ""

    def render(self) -> None:
        """Have the text file rendered now: it is every 14 s, and when the jobs of the node change."""
        count = next(self._jobs)
        (self.run_dir / f"jobs/{count - 1}").unlink(missing_ok=True)
        (self.run_dir / f"jobs/{count}").write_text("1\trunning\t2001\t-\t5\t-\t-\t.\n")
        before = (self.run_dir / "metrics.prom").stat().st_mtime_ns
        self.until(lambda: (self.run_dir / "metrics.prom").stat().st_mtime_ns != before, "metrics")

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of one series of the text file; NaN where there is none. labels: some of the series' labels."""
        for line in (self.run_dir / "metrics.prom").read_text().splitlines():
            series, _, value = line.rpartition(" ")
            known = series.partition("{")[2] if labels else ""
            if (series.partition("{")[0] if labels else series) == name and all(f'{k}="{v}"' in known for k, v in labels.items()):
                return float(value)
        return float("nan")

    def says(self, *words: str) -> None:
        """Wait until the verdict has all these words."""
        self.until(lambda: all(word in self.verdict().text for word in words), f"verdict with {words}, but {self.verdict()}")

    def well(self) -> None:
        """Wait until the verdict is ok, and a job may start without a word."""
        self.until(lambda: self.verdict().state is State.OK and self._shown_ok(), "verdict ok, and the metrics too")
        while True:
            (self.run_dir / "prolog.log").unlink(missing_ok=True)
            done = self.prolog(on_stale="refuse")
            if (done.rc, done.err, self.log_text()) == (0, "", ""):
                return
            assert "does not know the state" in done.err, done  # a busy machine: the driver was late once more
            self.until(lambda: self.verdict().state is State.OK, "verdict ok")

    def _shown_ok(self) -> bool:
        self.render()
        return self.metric('fairlead_verdict_state{state="ok"}') == 1


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The folder of the simulated libnvidia-ml.so.1, kept in pytest's cache between runs."""
    return build(Path(request.config.cache.mkdir("simulated-nvml"))).parent


@pytest.fixture(scope="session")
def preload(request: pytest.FixtureRequest) -> Path:
    """The library with a kernel's clocks and log."""
    return kernel.build(Path(request.config.cache.mkdir("simulated-kernel")))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the prolog runs in a private mount namespace")
    made = Stage()
    yield made
    made.close()


Make = Callable[..., Living]


@pytest.fixture(scope="module")
def living(library: Path, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes agents in folders of their own; ends them all."""
    made: list[Living] = []

    def make(machine: str = "hgx-h100", **options: dict[str, Any]) -> Living:
        agent = Living(tmp_path_factory.mktemp("agent"), library, stage, machine, **options)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        if agent.process is not None and agent.process.poll() is None:
            agent.faults.clear()
            agent.process.kill()
            agent.process.wait()
