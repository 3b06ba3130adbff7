"""A node on which jobs are played: the real agent on the simulated NVML library, with a clock that goes fast.

What a job does is written down for each of its seconds (``Part``): the GPU's load, the memory it holds, and what the job's
processes use. The loads go to the library ahead of time. The memory and the control group's files follow while the time passes.
Everything between is real: NVML calls, the worker, the agent's sums and the usage records on the disk.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead import checks, config
from fairlead.jobs.usage_record import UsageRecord, decoded
from tests.daemon.conftest import Agent
from tests.lab import cpus
from tests.lab.faults import Faults, Load
from tests.lab.nvml.library import write_conf
from tests.lab.trees import MACHINES
from tests.scorecard.running import CLOCK

MIB, GB = 1 << 20, 10**9
IDLE = Load(0, 0, 0, 0, 70, 0, 0)
GROUP = "sys/fs/cgroup/system.slice/slurmstepd.scope"
#: The library keeps so many samples of 1/6 s: with a fast clock, a busy machine lets the agent come late by many of its seconds.
SAMPLES = 3600


@dataclass(frozen=True)
class Clock:
    """The clock of all nodes: ``speed`` seconds pass in one of ours."""

    speed: float
    monotonic: int = field(default_factory=lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    boottime: int = field(default_factory=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    realtime: int = field(default_factory=time.time_ns)

    def environment(self) -> dict[str, str]:
        since = f"{self.monotonic} {self.boottime} {self.realtime}"
        return {"LD_PRELOAD": str(cpus.preload(CLOCK)), "SCORE_CLOCK": f"{self.speed} {since} 0"}

    def boot(self) -> float:
        return (self.boottime + self._passed()) / 1e9

    def unix(self) -> float:
        return (self.realtime + self._passed()) / 1e9

    def _passed(self) -> float:
        return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self.boottime) * self.speed


@dataclass(frozen=True)
class Part:
    """What a GPU and its job do from a second of the job on. load: on for ``on_seconds`` of each period, or all the time.
    cores: of the job's processes on average. host_bytes: their memory, which grows by ``host_bytes_per_second``."""

    since: float = 0.0
    load: Load = IDLE
    on_seconds: float = 0.0
    period_seconds: float = 0.0
    memory: int = 0
    cores: float = 0.0
    host_bytes: int = 100 * MIB
    host_bytes_per_second: int = 0


@dataclass(frozen=True)
class PlayedJob:
    """A job on one node. parts: of each of its GPUs by NVML's index; the first GPU's parts say what the processes do. grouped:
    its control group can be read."""

    number: int
    parts: dict[int, tuple[Part, ...]]
    memory_limit: int = 256 * GB
    grouped: bool = True


class PlayedNode(Agent):
    """``start`` the agent, ``begin`` the jobs, and call ``follow`` again and again."""

    def __init__(self, folder: Path, name: str, library: Path, clock: Clock, memory_bytes: int = 512 * GB) -> None:
        self.name, self.clock = name, clock
        folder.mkdir()
        shutil.copytree(MACHINES / "hgx-h100.tuned", folder / "tree", symlinks=True)
        super().__init__(folder, folder / "tree")
        self.faults = Faults(folder / "control")
        self.faults.control.touch()
        self.jobs: list[PlayedJob] = []
        self.began_boot = self.began_unix = 0.0
        self._memory: dict[int, int] = {}
        (self.tree / "proc/meminfo").write_text(f"MemTotal: {memory_bytes >> 10} kB\n")
        (self.tree / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        (self.tree / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(library.parent),
            "FAIRLEAD_SIM_NVML": os.fspath(write_conf(self.tree, folder / "nvml.conf")),
            "FAIRLEAD_SIM_CONTROL": os.fspath(self.faults.control),
            **clock.environment(),
        }

    def write_document(self, **options: object) -> None:
        """The defaults, without checks: a finding spares a job, and the checks have tests of their own."""
        data = config.to_data(config.profile_document(self.name, "hgx-h100"))
        data["agent"] |= {"run_dir": str(self.run_dir), "state_dir": str(self.state_dir), "kmsg_path": str(self.fifo)}
        data["agent"] |= {"metrics_textfile": str(self.run_dir / "metrics.prom"), "interval_seconds": 7.0}
        data["agent"] |= {"nvml_deadline_seconds": 300.0, "verdict_ttl_seconds": 3600}  # the worker starts by our time
        data["checks"] = {name: {"enabled": False} for name in checks.load()}
        data["settings"] = {}
        data["slurm"] |= {"bin_dir": str(self.folder / "no-slurm-here")}
        del data["hash"]
        self.document.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "played")))

    def command(self) -> list[str]:
        return [*super().command(), "--ask-nvml"]

    def begin(self, *jobs: PlayedJob) -> None:
        """Begin the jobs now, as the prolog does, and write down all loads."""
        self.jobs = list(jobs)
        self.began_boot, self.began_unix = self.clock.boot(), self.clock.unix()
        for job in jobs:
            for gpu, parts in job.parts.items():
                self.faults.set(gpu, "samples.entries", SAMPLES)
                for part in parts:
                    times = int(part.on_seconds * 1000), int(part.period_seconds * 1000)
                    since = int((self.began_unix + part.since) * 1e6)
                    self.faults.work(gpu, part.load, *times, since_microseconds=since)
        self.follow()
        for job in jobs:
            self._job_record(job, "running", None)

    def end(self, number: int = 15) -> int:  # type: ignore[override]
        return super().end(number)  # type: ignore[arg-type]

    def end_jobs(self) -> None:
        """End all jobs, as the epilog does."""
        end = self.clock.boot()
        self.follow()
        for job in self.jobs:
            self._job_record(job, "ended", end)

    def seconds(self) -> float:
        """For how long the jobs run."""
        return self.clock.boot() - self.began_boot

    def follow(self) -> None:
        """Set the GPUs' memory, and the control groups' files, to what they are now."""
        now = max(0.0, self.clock.boot() - self.began_boot)
        for job in self.jobs:
            for gpu, parts in job.parts.items():
                memory = [part.memory for part in parts if part.since <= now][-1]
                if self._memory.get(gpu) != memory:
                    self._memory[gpu] = memory
                    self.faults.set(gpu, "memory.used_bytes", memory + 4 * MIB)  # the driver's own, without what it reserves
            if job.grouped:
                self._group(job, now)

    def _group(self, job: PlayedJob, now: float) -> None:
        parts = next(iter(job.parts.values()))
        spans = [(p, min(now, q.since if q else now) - p.since) for p, q in zip(parts, (*parts[1:], None), strict=True)]
        begun = [(part, seconds) for part, seconds in spans if seconds >= 0]
        cpu = sum(part.cores * seconds for part, seconds in begun)
        host = max(part.host_bytes + int(part.host_bytes_per_second * seconds) for part, seconds in begun)
        folder = self.tree / GROUP / f"job_{job.number}"
        folder.mkdir(parents=True, exist_ok=True)
        values = {"cpu.stat": f"usage_usec {int(cpu * 1e6)}", "memory.peak": host, "memory.max": job.memory_limit}
        for name, value in {**values, "cpuset.cpus.effective": "0-7"}.items():
            (folder / f".{name}").write_text(f"{value}\n")
            (folder / f".{name}").rename(folder / name)

    def _job_record(self, job: PlayedJob, state: str, end: float | None) -> None:
        gpus = ",".join(map(str, sorted(job.parts)))
        last = "-" if end is None else f"{end:.2f}"
        line = f"1\t{state}\t1000\t{gpus}\t{self.began_boot:.2f}\t{last}\t-\t.\n"
        (self.run_dir / "jobs" / str(job.number)).write_text(line)

    def records(self) -> list[UsageRecord]:
        """The usage records on the disk."""
        found = []
        for path in (self.state_dir / "usage").glob("*.json"):
            try:
                found.append(decoded(path.read_bytes()))
            except FileNotFoundError:
                continue
        return found
