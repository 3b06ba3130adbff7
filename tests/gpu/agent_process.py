"""Runs the real agent for the proof, in folders of its own, and measures it: CPU time, memory, sweeps, findings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from fairlead import config
from tests.gpu import children

FIRST_SWEEP_SECONDS = 60.0
POLL_SECONDS = 0.5
DIGITS = re.compile(r"\d+(?:\.\d+)?")


class AgentFailed(Exception):
    """The agent ended, or made no sweep. The text has the end of its log."""


@dataclass
class Phase:
    """What was measured in one phase. ``findings``: each finding that is not ok, with the number of polls that had it.

    The agent writes its status when a finding comes or goes, and otherwise every 14 s. So ``findings`` has them all, and
    ``sweeps`` and ``sweep_seconds`` are those of the statuses that were written.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    pss_kib: int = 0
    sweeps: int = 0
    sweep_seconds: list[float] = field(default_factory=list)
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)

    def add(self, findings: list[dict[str, Any]]) -> None:
        """Add the findings of one poll. Findings whose summaries differ only in numbers are one."""
        for finding in findings:
            key = f"{finding['check']} {finding['level']} {finding['device']} {DIGITS.sub('N', finding['summary'])}"
            self.findings.setdefault(key, {**finding, "polls": 0})["polls"] += 1

    @property
    def cpu_percent(self) -> float:
        """CPU time of the agent and its worker in percent of one core."""
        return 100 * self.cpu_seconds / max(self.seconds, 1e-6)


class AgentProcess:
    """The agent on this machine, or on a machine tree with this machine's NVML library. It never reaches slurmctld.

    ``folder``: where its files go. ``interval_seconds``: between two sweeps.
    """

    def __init__(self, folder: Path, root: str, interval_seconds: float) -> None:
        self.folder, self.run_dir, self.root = folder, folder / "run", root
        folder.mkdir(parents=True, exist_ok=True)
        data = config.to_data(config.profile_document("localhost"))
        options = {"run_dir": str(self.run_dir), "state_dir": str(folder / "state"), "interval_seconds": interval_seconds}
        data["agent"] |= {**options, "metrics_textfile": str(self.metrics), "nvml_deadline_seconds": 20.0}
        data["checks"]["gpu_leftovers"]["allowed_units"] = ["*"]  # the matrix product runs outside of any job
        data["slurm"] |= {"bin_dir": str(folder / "no-slurm-here")}
        if root != "/":
            data["agent"]["kmsg_path"] = str(folder / "kmsg")
            if not (folder / "kmsg").exists():
                os.mkfifo(folder / "kmsg")
        del data["hash"]
        self.document = folder / "node.json"
        self.document.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "gpu proof")))
        self._process: subprocess.Popen[str] | None = None

    @property
    def metrics(self) -> Path:
        """The text file of its metrics."""
        return self.run_dir / "metrics.prom"

    def command(self) -> list[str]:
        """What starts it."""
        tree = ["--root", self.root, "--ask-nvml"] if self.root != "/" else []
        return children.python("fairlead", "agent", "--document", self.document, *tree)

    def once(self, seconds: float) -> str:
        """Make one sweep, and return the metrics. Raises AgentFailed."""
        self.metrics.unlink(missing_ok=True)
        ended = children.ended([*self.command(), "--once"], seconds)
        try:
            return self.metrics.read_text()
        except FileNotFoundError:
            raise AgentFailed(f"the agent wrote no metrics; it {ended.how}") from None

    def __enter__(self) -> Self:
        with (self.folder / "log").open("w") as log:
            self._context = children.started(self.command(), errors=log.fileno())
            self._process = self._context.__enter__()
        end = time.monotonic() + FIRST_SWEEP_SECONDS
        while not self.status():
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise AgentFailed("the agent made no sweep: " + " | ".join(self.last_lines(3)))
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        self._context.__exit__(None, None, None)

    def last_lines(self, count: int = 20) -> list[str]:
        """Return the end of its log."""
        return (self.folder / "log").read_text(errors="replace").splitlines()[-count:]

    def status(self) -> dict[str, Any]:
        """Return its status file, or {} if there is none yet."""
        try:
            found: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
            return found
        except (FileNotFoundError, ValueError):
            return {}

    def measure(self, seconds: float) -> Phase:
        """Measure the agent for this time. Raises AgentFailed if it ends meanwhile."""
        assert self._process is not None
        phase = Phase()
        first = self.status()
        seen = first["sweep"]["count"]
        start, cpu = time.monotonic(), self._cpu_seconds()
        while time.monotonic() < start + seconds:
            time.sleep(min(POLL_SECONDS, seconds))
            if self._process.poll() is not None:
                raise AgentFailed("the agent ended: " + " | ".join(self.last_lines(3)))
            status = self.status() or first
            if status["sweep"]["count"] != seen:
                seen = status["sweep"]["count"]
                phase.sweep_seconds.append(status["sweep"]["seconds"])
            phase.add(status["findings"])
            verdict = (self.run_dir / "verdict").read_text().split("\t")[1]
            if phase.verdicts[-1:] != [verdict]:
                phase.verdicts.append(verdict)
        phase.seconds = time.monotonic() - start
        phase.cpu_seconds = self._cpu_seconds() - cpu
        phase.pss_kib = sum(pss_kib(pid) for pid in self._pids())
        phase.sweeps = seen - first["sweep"]["count"]
        return phase

    def _pids(self) -> Iterator[int]:
        assert self._process is not None
        yield self._process.pid
        try:
            path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            yield from map(int, path.read_text().split())
        except FileNotFoundError:
            return

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids())


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process: by the scheduler (proc(5), schedstat), else in clock ticks (stat)."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except FileNotFoundError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        return 0.0


def pss_kib(pid: int) -> int:
    """Return the proportional set size of a process (proc(5), smaps_rollup), or 0 where it cannot be read."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
